// Boxes of any shape on each device, against what is slow and surely right: bit for bit.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/kernels/box.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using box_testing::Backed;

// A tensor in the host's memory, and one alike on the device, `shift` elements into its memory
// there.
struct Twin {
  Backed host;
  Tensor memory, tensor;
  int64_t shift;
};

// What is moved, and what the destination's memory holds then.
struct Move {
  ReceiveBox box;
  Twin dst;
  std::vector<Twin> sources;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  std::vector<std::byte> expected;
};

std::vector<ReduceOp> OpsOf(DType dtype) {
  if (dtype == DType::kBool) return {ReduceOp::kMax, ReduceOp::kMin};
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};
  if (IsFloat(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

std::vector<DType> ResultsOf(DType dtype) {
  std::vector<DType> results;
  for (const DType to : box_testing::kAllDTypes) {
    if (ConvertsOnTheWay(dtype, to)) results.push_back(to);
  }
  return results;
}

class BoxRandomTest : public KernelTest {
 protected:
  Twin OnDevice(Backed host, int64_t shift) {
    const DType dtype = host.tensor.dtype();
    const int64_t bytes = static_cast<int64_t>(host.bytes.size());
    const Tensor memory = Empty(dtype, {shift + bytes / SizeOf(dtype)});
    DT_EXPECT_OK(device().CopyFromHost(memory.data<std::byte>() + shift * SizeOf(dtype),
                                       host.bytes.data(), bytes));
    DT_EXPECT_OK(device().Synchronize());
    const Tensor tensor = memory.View(host.tensor.shape(), host.tensor.strides(), shift);
    return {std::move(host), memory, tensor, shift};
  }

  Twin RandomTwin(TestRandom& random, DType dtype, absl::Span<const int64_t> shape, int64_t shift) {
    return OnDevice(box_testing::RandomTensor(random, *host_, dtype, shape), shift);
  }

  // A whole row-major tensor, whose dimensions have `strides` in elements.
  Twin StridedTwin(TestRandom& random, DType dtype, absl::Span<const int64_t> shape,
                   absl::Span<const int64_t> strides, int64_t shift) {
    int64_t elements = 1;
    for (size_t d = 0; d < shape.size(); ++d) elements += (shape[d] - 1) * strides[d];
    Backed host = box_testing::RandomTensor(random, *host_, dtype, {2 * elements});
    host.tensor = host.tensor.View(shape, strides, 0);
    return OnDevice(std::move(host), shift);
  }

  // The same for all: what is moved may be aligned alike.
  static int64_t RandomShift(TestRandom& random, int64_t common) {
    return random.Chance(70) ? common : random.In(0, 17);
  }

  Move RandomMove(TestRandom& random) {
    Move move{.box = box_testing::RandomReceiveBox(random, random.In(0, 4), {0})};
    const DType in = random.Of<DType>(box_testing::kAllDTypes);
    const DType out = random.Chance(70) ? in : random.Of<DType>(ResultsOf(in));
    const bool in_place = in == out && random.Chance(20);
    for (MatchedRun& piece : move.box.dims) {
      if (!in_place) continue;
      piece.src = piece.dst;
      piece.src_stride = piece.dst_stride;
    }
    const int64_t shift = random.In(0, 17);
    const Dims dst_shape = box_testing::DstShape(move.box);
    move.dst = RandomTwin(random, out, dst_shape, RandomShift(random, shift));
    move.sources.resize(random.In(1, random.Chance(3) ? 150 : 5));
    for (Twin& source : move.sources) {
      source =
          RandomTwin(random, in, box_testing::SourceShape(move.box), RandomShift(random, shift));
    }
    if (in_place) move.sources[random.In(0, move.sources.size() - 1)] = move.dst;
    move.op = random.Of<ReduceOp>(OpsOf(in));
    if (IsFloat(in) && random.Chance(50)) move.scale = 1.0 / 3;
    return move;
  }

  static void Expect(Move& move) {
    std::vector<std::vector<const std::byte*>> terms(move.box.elements());
    for (const Twin& source : move.sources) {
      size_t i = 0;
      box_testing::ForEachElement(
          move.box, move.dst.tensor, source.tensor,
          [&](int64_t from, int64_t) { terms[i++].push_back(&source.host.bytes[from]); });
    }
    move.expected = move.dst.host.bytes;
    size_t i = 0;
    const Tensor &dst = move.dst.tensor, &source = move.sources[0].tensor;
    box_testing::ForEachElement(move.box, dst, dst, [&](int64_t, int64_t to) {
      box_testing::NaiveReduce(source.dtype(), dst.dtype(), move.op, move.scale, terms[i++],
                               &move.expected[to]);
    });
  }

  // All the memory: a byte beside the box that changed is found.
  void ExpectMoved(std::vector<Move> moves, size_t first = 0) {
    std::vector<BoxMove> launched;
    for (Move& move : moves) {
      Expect(move);
      std::vector<const Tensor*> sources;
      for (const Twin& source : move.sources) sources.push_back(&source.tensor);
      launched.emplace_back(move.box, move.dst.tensor, sources, move.op, move.scale);
    }
    DT_ASSERT_OK(MoveBoxes(device(), "Test", launched, first));
    for (const Move& move : moves) {
      const DType in = move.sources[0].tensor.dtype(), out = move.dst.tensor.dtype();
      std::vector<std::byte> got(move.expected.size());
      DT_ASSERT_OK(device().CopyToHost(
          got.data(), move.dst.memory.data<std::byte>() + move.dst.shift * SizeOf(out),
          static_cast<int64_t>(got.size())));
      DT_ASSERT_OK(device().Synchronize());
      EXPECT_TRUE(box_testing::SameElements(out, got, move.expected))
          << std::string(ToString(move.op)) << " of " << move.sources.size() << " "
          << std::string(ToString(in)) << " to " << std::string(ToString(out));
    }
  }

  const std::unique_ptr<Device> host_ = MakeCpuDevice();
};
DT_INSTANTIATE_KERNEL_TESTS(BoxRandomTest);

TEST_P(BoxRandomTest, AnyBoxes) {
  TestRandom random;
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    std::vector<Move> moves(random.In(1, random.Chance(5) ? 40 : 5));
    for (Move& move : moves) move = RandomMove(random);
    ExpectMoved(moves, random.In(0, moves.size() - 1));
  }
}

// Longer than the threads of one block, from any alignment, with and without gaps in the sources.
TEST_P(BoxRandomTest, LongRows) {
  TestRandom random;
  for (const DType dtype : box_testing::kAllDTypes) {
    const ReduceOp op = dtype == DType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
    for (const int64_t rows : {1, 3}) {
      for (const int64_t stride : {1, 2}) {
        std::vector<Move> moves(3);
        for (size_t i = 0; i < moves.size(); ++i) {
          const int64_t n = rows == 1 ? 5001 : random.In(1000, 1100), begin = random.In(0, 15);
          moves[i].box = {{}, {{.length = rows}, {.src = begin, .dst = begin, .length = n}}};
          moves[i].op = op;
          const int64_t width = (begin + n + 31) / 16 * 16;
          moves[i].dst = StridedTwin(random, dtype, {rows, width}, {width, 1}, 16);
          for (int64_t k = 0; k < 1 + 2 * static_cast<int64_t>(i); ++k) {
            // Those of the last one step unlike.
            const int64_t row = stride * (i < 2 ? width : width + 16 * k);
            moves[i].sources.push_back(
                StridedTwin(random, dtype, {rows, width}, {row, stride}, 16));
          }
        }
        ExpectMoved(moves);
      }
    }
  }
}

// More than all threads of a launch take at once, in any number of loops that cannot be joined.
TEST_P(BoxRandomTest, ManyElements) {
  TestRandom random;
  for (int loops = 1; loops <= 6; ++loops) {
    ReceiveBox box;
    int64_t elements = 1;
    for (int d = 0; d < loops; ++d) {
      const int64_t left = 150'000 / elements;
      const int64_t n = d + 1 < loops ? random.In(3, 9) : left;
      box.dims.push_back({.src = random.In(1, 2), .dst = random.In(1, 2), .length = n});
      elements *= n;
    }
    std::vector<Move> moves(2);
    for (size_t i = 0; i < moves.size(); ++i) {
      moves[i].box = box;
      moves[i].dst = RandomTwin(random, DType::kBF16, box_testing::DstShape(box), 1);
      for (size_t k = 0; k < 1 + i; ++k) {
        moves[i].sources.push_back(
            RandomTwin(random, DType::kBF16, box_testing::SourceShape(box), 0));
      }
    }
    ExpectMoved(moves);
  }
}

// What is copied is only moved, whatever it means.
TEST_P(BoxRandomTest, CopiesKeepAllBits) {
  const std::vector<int64_t> shape = {3, 40, 70}, turned = {1, 210, 3};
  for (const DType dtype : box_testing::kAllDTypes) {
    const int64_t bytes = 3 * 40 * 70 * SizeOf(dtype);
    std::vector<uint8_t> values(bytes), got(bytes);
    for (int64_t i = 0; i < bytes; ++i) values[i] = static_cast<uint8_t>(i * 37 + i / 256);
    const Tensor a = Empty(dtype, shape), b = Empty(dtype, shape), c = Empty(dtype, shape);
    DT_ASSERT_OK(device().CopyFromHost(a.raw(), values.data(), bytes));
    ReceiveBox all{.peers = {0}};
    for (const int64_t n : shape) all.dims.push_back({.length = n});
    // There and back.
    const Tensor middle = b.View(shape, turned, 0);
    const Tensor *const from[] = {&a}, *const back[] = {&middle};
    const BoxMove there(all, middle, from), here(all, c, back);
    DT_ASSERT_OK(MoveBoxes(device(), "Test", {&there, 1}));
    DT_ASSERT_OK(MoveBoxes(device(), "Test", {&here, 1}));
    DT_ASSERT_OK(device().CopyToHost(got.data(), c.raw(), bytes));
    DT_ASSERT_OK(device().Synchronize());
    EXPECT_TRUE(got == values) << ToString(dtype);
  }
}

}  // namespace
}  // namespace dtensor::kernels
