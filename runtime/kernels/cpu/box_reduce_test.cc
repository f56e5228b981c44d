#include "dtensor/runtime/kernels/cpu/box_reduce.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/reduce_row.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace dtensor {
namespace {

using box_testing::Backed;

std::vector<ReduceOp> OpsOf(DType dtype) {
  if (dtype == DType::kBool) return {ReduceOp::kMax, ReduceOp::kMin};
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};
  if (IsFloat(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

// Where each source's element of the box lies, in the order of the box.
std::vector<std::vector<const std::byte*>> Terms(const ReceiveBox& box, const Tensor& dst,
                                                 absl::Span<const Backed> sources) {
  std::vector<std::vector<const std::byte*>> terms(box.elements());
  for (const Backed& source : sources) {
    size_t i = 0;
    box_testing::ForEachElement(box, dst, source.tensor, [&](int64_t from, int64_t) {
      terms[i++].push_back(&source.bytes[from]);
    });
  }
  return terms;
}

void ExpectReduced(const ReceiveBox& box, absl::Span<const Backed> sources, Backed& dst,
                   ReduceOp op, double scale, bool stream) {
  const DType dtype = dst.tensor.dtype();
  std::vector<std::byte> expected = dst.bytes;
  const auto terms = Terms(box, dst.tensor, sources);
  size_t i = 0;
  box_testing::ForEachElement(box, dst.tensor, dst.tensor, [&](int64_t, int64_t to) {
    box_testing::NaiveReduce(dtype, dtype, op, scale, terms[i++], &expected[to]);
  });
  std::vector<const Tensor*> tensors;
  for (const Backed& source : sources) tensors.push_back(&source.tensor);
  ReduceBox(BoxLoop(box, dst.tensor, tensors), dtype, dtype, op, scale, stream);
  EXPECT_TRUE(box_testing::SameElements(dtype, dst.bytes, expected))
      << std::string(ToString(op)) << " of " << std::string(ToString(dtype));
}

TEST(ReduceBoxTest, RandomBoxes) {
  TestRandom random;
  const auto device = MakeCpuDevice();
  for (int round = 0; round < 1000 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const DType dtype = random.Of<DType>(box_testing::kAllDTypes);
    const ReceiveBox box = box_testing::RandomReceiveBox(random, random.In(0, 4), {0});
    std::vector<Backed> sources(random.In(1, random.Chance(2) ? 150 : 5));
    for (Backed& source : sources) {
      source = box_testing::RandomTensor(random, *device, dtype, box_testing::SourceShape(box));
    }
    Backed dst = box_testing::RandomTensor(random, *device, dtype, box_testing::DstShape(box));
    const double scale = IsFloat(dtype) && random.Chance(50) ? 1.0 / 3 : 1;
    ExpectReduced(box, sources, dst, random.Of<ReduceOp>(OpsOf(dtype)), scale, round % 2 == 0);
  }
}

// More than a buffer holds, from any alignment, with and without gaps in the sources.
TEST(ReduceBoxTest, LongRows) {
  const auto device = MakeCpuDevice();
  TestRandom random;
  for (DType dtype : box_testing::kAllDTypes) {
    for (int64_t stride : {1, 2}) {
      const int64_t n = 20001, begin = random.In(0, 31);
      std::vector<Backed> sources(3);
      for (Backed& source : sources) {
        source = box_testing::RandomTensor(random, *device, dtype, {2 * n});
        source.tensor = source.tensor.View({n}, {stride}, 0);
      }
      Backed dst = box_testing::RandomTensor(random, *device, dtype, {n + 100});
      const ReceiveBox box{{0, 1, 2}, {{.dst = begin, .length = n}}};
      const ReduceOp op = dtype == DType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
      ExpectReduced(box, sources, dst, op, 1, /*stream=*/true);
    }
  }
}

// Long rows that do not follow each other in the sources: what comes next is fetched early.
TEST(ReduceBoxTest, LongRowsApart) {
  const auto device = MakeCpuDevice();
  TestRandom random;
  for (DType dtype : box_testing::kAllDTypes) {
    for (int terms : {2, 3}) {
      for (int64_t n : {257, 1024, 5001}) {
        const int64_t begin = random.In(0, 31);
        std::vector<Backed> sources(terms);
        for (Backed& source : sources) {
          source = box_testing::RandomTensor(random, *device, dtype, {3, 2 * n});
        }
        Backed dst = box_testing::RandomTensor(random, *device, dtype, {3, n + 31});
        ReceiveBox box{{}, {{.length = 3}, {.src = begin, .dst = begin, .length = n}}};
        for (int i = 0; i < terms; ++i) box.peers.push_back(i);
        const ReduceOp op = dtype == DType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
        ExpectReduced(box, sources, dst, op, 1, /*stream=*/true);
      }
    }
  }
}

// Every instruction set that this CPU has gives the bits that dtype.h defines.
class ReduceRowTest : public testing::Test {
 protected:
  ~ReduceRowTest() override { hwy::SetSupportedTargetsForTest(0); }

  static std::vector<int64_t> Targets() {
    std::vector<int64_t> targets;
    for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
      targets.push_back(left & -left);
    }
    return targets;
  }
};

TEST_F(ReduceRowTest, AllHalvesSurviveWideningAndRounding) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> bits(65536), sum(65536), expected(65536);
    for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
    const auto* row = reinterpret_cast<const std::byte*>(bits.data());
    for (int i = 0; i < 65536; ++i) {
      const std::byte* terms[] = {row + 2 * i, row + 2 * ((i * 31) % 65536)};
      box_testing::NaiveReduce(dtype, dtype, ReduceOp::kSum, 0.3, terms,
                               reinterpret_cast<std::byte*>(&expected[i]));
    }
    std::vector<uint16_t> other(65536);
    for (int i = 0; i < 65536; ++i) other[i] = bits[(i * 31) % 65536];
    const std::byte* rows[] = {row, reinterpret_cast<const std::byte*>(other.data())};
    for (int64_t target : Targets()) {
      hwy::SetSupportedTargetsForTest(target);
      auto* dst = reinterpret_cast<std::byte*>(sum.data());
      ReduceRow(dtype, dtype, ReduceOp::kSum, 0.3, rows, dst, 65536);
      EXPECT_TRUE(box_testing::SameElements(
          dtype, absl::MakeSpan(dst, 2 * 65536),
          absl::MakeSpan(reinterpret_cast<std::byte*>(expected.data()), 2 * 65536)))
          << std::string(ToString(dtype)) << " on " << hwy::TargetName(target);
    }
  }
}

// Three rows of n elements, one after the other in `bytes`.
void ExpectSameBits(DType dtype, ReduceOp op, const std::vector<std::byte>& bytes, int64_t n,
                    absl::Span<const int64_t> targets) {
  const int64_t size = n * SizeOf(dtype);
  const std::byte* rows[] = {&bytes[0], &bytes[size], &bytes[2 * size]};
  std::vector<std::byte> expected(size), dst(size);
  for (int64_t i = 0; i < size; i += SizeOf(dtype)) {
    const std::byte* terms[] = {rows[0] + i, rows[1] + i, rows[2] + i};
    box_testing::NaiveReduce(dtype, dtype, op, 1, terms, &expected[i]);
  }
  for (int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    ReduceRow(dtype, dtype, op, 1, rows, dst.data(), n);
    EXPECT_TRUE(box_testing::SameElements(dtype, dst, expected))
        << std::string(ToString(op)) << " of " << n << " " << std::string(ToString(dtype)) << " on "
        << hwy::TargetName(target);
  }
}

TEST_F(ReduceRowTest, SameBitsOnAllTargetsAndInAllLengths) {
  TestRandom random;
  const auto device = MakeCpuDevice();
  for (DType dtype : box_testing::kAllDTypes) {
    for (ReduceOp op : OpsOf(dtype)) {
      for (int64_t n : {1, 7, 16, 33, 67}) {
        Backed source = box_testing::RandomTensor(random, *device, dtype, {3 * n});
        ExpectSameBits(dtype, op, source.bytes, n, Targets());
      }
    }
  }
}

// The well-known wrong answer: sums rounded to 16 bits at each step stay at 256.
TEST_F(ReduceRowTest, SumsOfHalvesAreKeptInF32) {
  const BFloat16 big(256), one(1);
  std::vector<const std::byte*> rows(9, reinterpret_cast<const std::byte*>(&one));
  rows[0] = reinterpret_cast<const std::byte*>(&big);
  BFloat16 sum;
  ReduceRow(DType::kBF16, DType::kBF16, ReduceOp::kSum, 1, rows, reinterpret_cast<std::byte*>(&sum),
            1);
  EXPECT_EQ(static_cast<float>(sum), 264);
}

// Terms of one type, added in f32, are rounded once, to the other: not to their own on the way.
template <typename In, typename Out>
void ExpectConverts(DType in, DType out, absl::Span<const int64_t> targets) {
  constexpr int64_t kN = 75;
  std::vector<In> a(kN), b(kN);
  for (int64_t i = 0; i < kN; ++i) {
    a[i] = In(1.0f + static_cast<float>(i) / 64);
    b[i] = In(1.0f / 1024 * static_cast<float>(i % 7));
  }
  const std::byte* rows[] = {reinterpret_cast<std::byte*>(a.data()),
                             reinterpret_cast<std::byte*>(b.data())};
  for (int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    for (bool stream : {false, true}) {
      for (size_t count : {1, 2}) {
        std::vector<Out> got(kN + 1);
        auto* dst = reinterpret_cast<std::byte*>(got.data() + 1);
        ReduceRow(in, out, ReduceOp::kSum, 0.5, absl::MakeSpan(rows, count), dst, kN, stream);
        for (int64_t i = 0; i < kN; ++i) {
          const float sum = static_cast<float>(a[i]) + (count > 1 ? static_cast<float>(b[i]) : 0);
          ASSERT_EQ(static_cast<float>(got[i + 1]), static_cast<float>(Out(0.5f * sum)))
              << i << " on " << hwy::TargetName(target);
        }
      }
    }
  }
}

TEST_F(ReduceRowTest, ConvertsOnTheWay) {
  ExpectConverts<float, BFloat16>(DType::kF32, DType::kBF16, Targets());
  ExpectConverts<float, Float16>(DType::kF32, DType::kF16, Targets());
  ExpectConverts<BFloat16, float>(DType::kBF16, DType::kF32, Targets());
  ExpectConverts<BFloat16, Float16>(DType::kBF16, DType::kF16, Targets());
  ExpectConverts<Float16, float>(DType::kF16, DType::kF32, Targets());
}

TEST(ReduceBoxTest, ConvertsOverGaps) {
  const auto device = MakeCpuDevice();
  std::vector<float> values(12);
  for (int i = 0; i < 12; ++i) values[i] = static_cast<float>(i);
  const Tensor src = FromHost<float>(*device, values, {3, 4}).value();
  const Tensor dst = FromHost<BFloat16>(*device, std::vector<BFloat16>(8), {4, 2}).value();
  // Column 1 and 2 of the source, transposed, as columns 0 and 1 of the first three rows.
  const Tensor turned = src.Transpose(0, 1);
  ReceiveBox box{.peers = {0}};
  box.dims.push_back({.src = 1, .dst = 0, .length = 2});
  box.dims.push_back({.src = 0, .dst = 0, .length = 2});
  const Tensor* sources[] = {&turned};
  ReduceBox(BoxLoop(box, dst, sources), DType::kF32, DType::kBF16, ReduceOp::kSum, 1, false);
  const std::vector<BFloat16> got = ToHost<BFloat16>(dst).value();
  std::vector<float> floats(got.begin(), got.end());
  EXPECT_EQ(floats, (std::vector<float>{1, 5, 2, 6, 0, 0, 0, 0}));
}

TEST_F(ReduceRowTest, NanWinsOnEitherSide) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
  const auto* a = reinterpret_cast<const std::byte*>(&nan);
  const auto* b = reinterpret_cast<const std::byte*>(&one);
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    for (const auto& rows : {std::vector{a, b}, std::vector{b, a}}) {
      float result = 0;
      ReduceRow(DType::kF32, DType::kF32, op, 1, rows, reinterpret_cast<std::byte*>(&result), 1);
      EXPECT_NE(result, result);
    }
  }
}

}  // namespace
}  // namespace dtensor
