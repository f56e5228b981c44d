#include "dtensor/runtime/kernels/cpu/box_copy.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using box_testing::Backed;

// Both memories as a whole, so that a byte beside the box that changed is found.
void ExpectCopied(const ReceiveBox& box, const Backed& source, Backed& dst, bool stream) {
  std::vector<std::byte> expected = dst.bytes;
  box_testing::ForEachElement(box, dst.tensor, source.tensor, [&](int64_t from, int64_t to) {
    std::memcpy(&expected[to], &source.bytes[from], SizeOf(dst.tensor.dtype()));
  });
  const Tensor* sources[] = {&source.tensor};
  CopyBox(BoxLoop(box, dst.tensor, sources), stream);
  EXPECT_EQ(dst.bytes, expected);
}

TEST(CopyBoxTest, RandomBoxes) {
  TestRandom random;
  const auto device = MakeCpuDevice();
  for (int round = 0; round < 2000 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const DType dtype = random.Of<DType>(box_testing::kAllDTypes);
    const ReceiveBox box = box_testing::RandomReceiveBox(random, random.In(0, 4), {0});
    const Backed source =
        box_testing::RandomTensor(random, *device, dtype, box_testing::SourceShape(box));
    Backed dst = box_testing::RandomTensor(random, *device, dtype, box_testing::DstShape(box));
    ExpectCopied(box, source, dst, /*stream=*/round % 2 == 0);
  }
}

TEST(CopyBoxTest, LongRunsAtAnyAlignment) {
  std::vector<std::byte> source(5000), expected(5000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
  for (int64_t begin : {0, 1, 8, 63, 64, 65}) {
    for (int64_t n : {0, 1, 63, 64, 65, 256, 1000, 4096}) {
      expected.assign(5000, std::byte{0});
      std::memcpy(expected.data() + begin, source.data() + 3, n);
      for (bool gap : {false, true}) {
        std::vector<std::byte> dst(5000);
        StreamCopy(dst.data() + begin, source.data() + 3, n, gap ? source.data() : nullptr);
        kernels::FinishStores(true);
        EXPECT_EQ(dst, expected) << "n " << n << " at " << begin;
      }
    }
  }
}

// A matrix and its transpose: larger than a tile in both directions, and no multiple of one.
TEST(CopyBoxTest, Transposes) {
  const auto device = MakeCpuDevice();
  for (DType dtype : box_testing::kAllDTypes) {
    TestRandom random(1);
    const int64_t rows = 70, columns = 131;
    Backed source = box_testing::RandomTensor(random, *device, dtype, {rows * columns});
    source.tensor = source.tensor.View({rows, columns}, {1, rows}, 0);
    Backed dst = box_testing::RandomTensor(random, *device, dtype, {rows * columns});
    dst.tensor = dst.tensor.View({rows, columns}, {columns, 1}, 0);
    const ReceiveBox all{{0}, {{.length = rows}, {.length = columns}}};
    ExpectCopied(all, source, dst, /*stream=*/true);
  }
}

// Memory that ends with the last element of a tensor of these strides.
Backed Exactly(Device& device, DType dtype, const Dims& shape, const Dims& strides, int seed) {
  int64_t elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) elements += (shape[d] - 1) * strides[d];
  Backed backed;
  backed.bytes.resize(elements * SizeOf(dtype));
  for (size_t i = 0; i < backed.bytes.size(); ++i) {
    backed.bytes[i] = static_cast<std::byte>(i * 37 + i / 251 + seed);
  }
  backed.tensor = Tensor::Adopt(device, backed.bytes.data(), dtype, shape, strides, nullptr);
  return backed;
}

ReceiveBox All(const Dims& shape) {
  ReceiveBox box{.peers = {0}};
  for (const int64_t n : shape) box.dims.push_back({.length = n});
  return box;
}

// Of each number of bytes that some loop is made for, and of others.
TEST(CopyBoxTest, ShortRows) {
  const auto device = MakeCpuDevice();
  for (const DType dtype : {DType::kBool, DType::kBF16, DType::kF32, DType::kF64}) {
    for (int64_t n = 1; n * SizeOf(dtype) <= 65; ++n) {
      for (const int64_t rows : {1, 2, 9}) {
        for (const int64_t gap : {0, 1, 5}) {
          SCOPED_TRACE(testing::Message() << n << " of " << SizeOf(dtype) << " bytes, " << rows);
          const Dims shape = {3, rows, n};
          const int64_t from = n + gap, to = n + 3;
          const Backed source = Exactly(*device, dtype, shape, {from * rows + gap, from, 1}, 0);
          Backed dst = Exactly(*device, dtype, shape, {to * (rows + 1), to, 1}, 1);
          ExpectCopied(All(shape), source, dst, /*stream=*/true);
        }
      }
    }
  }
}

// Transposes whose lines fall into one set of a cache, and their neighbours, with ends of tiles.
TEST(CopyBoxTest, LinesThatCollide) {
  const auto device = MakeCpuDevice();
  for (const DType dtype : {DType::kBool, DType::kBF16, DType::kF32, DType::kF64}) {
    const int64_t size = SizeOf(dtype), line = 64 / size;
    for (const int64_t stride : {1024 / size, 2048 / size, 4096 / size, 8192 / size + 1}) {
      for (const int64_t rows : {line - 1, line, 2 * line + 3}) {
        for (const int64_t gap : {0, 1}) {
          SCOPED_TRACE(testing::Message() << rows << " " << size << " " << stride << " " << gap);
          const Dims shape = {2, rows, line + 5};
          const Backed source = Exactly(*device, dtype, shape, {rows, 1, stride}, 0);
          const int64_t row = (1 + gap) * (line + 5) + gap;
          Backed dst = Exactly(*device, dtype, shape, {row * rows, row, 1 + gap}, 1);
          ExpectCopied(All(shape), source, dst, /*stream=*/true);
        }
      }
    }
  }
}

TEST(BoxLoopTest, JoinsWhatIsContiguousInAllOperands) {
  const auto device = MakeCpuDevice();
  const Tensor dst = *Tensor::Empty(*device, DType::kF32, {6, 4, 5});
  const Tensor source = *Tensor::Empty(*device, DType::kF32, {2, 4, 5});
  const Tensor* sources[] = {&source, &source};
  const BoxLoop whole({{0, 1}, {{.dst = 3, .length = 2}, {.length = 4}, {.length = 5}}}, dst,
                      sources);
  EXPECT_EQ(whole.depth(), 1);
  EXPECT_EQ(whole.size(0), 40);
  EXPECT_EQ(whole.base(0), dst.data<std::byte>() + 3 * 80);

  const BoxLoop columns({{0, 1}, {{.length = 2}, {.length = 4}, {.src = 1, .length = 3}}}, dst,
                        sources);
  ASSERT_EQ(columns.depth(), 2);
  EXPECT_EQ(columns.size(0), 8);
  EXPECT_EQ(columns.size(1), 3);
  EXPECT_EQ(columns.stride(0, 2), 20);
}

TEST(BoxLoopTest, TheLastLoopWalksDst) {
  const auto device = MakeCpuDevice();
  const Tensor dst = Tensor::Empty(*device, DType::kF32, {5, 4})->Transpose(0, 1);
  const Tensor source = *Tensor::Empty(*device, DType::kF32, {4, 5});
  const Tensor* sources[] = {&source};
  const BoxLoop loop({{0}, {{.length = 4}, {.length = 5}}}, dst, sources);
  ASSERT_EQ(loop.depth(), 2);
  EXPECT_TRUE(loop.contiguous(0));
  EXPECT_EQ(loop.size(1), 4);
}

TEST(BoxLoopTest, KnowsWhatIsInPlace) {
  const auto device = MakeCpuDevice();
  const Tensor tensor = *Tensor::Empty(*device, DType::kF32, {6, 4});
  const Tensor narrow = tensor.Narrow(0, 2, 3);
  const Tensor* sources[] = {&narrow};
  EXPECT_TRUE(BoxLoop({{0}, {{.dst = 2, .length = 3}, {.length = 4}}}, tensor, sources).in_place());
  EXPECT_FALSE(
      BoxLoop({{0}, {{.dst = 1, .length = 3}, {.length = 4}}}, tensor, sources).in_place());
}

}  // namespace
}  // namespace dtensor
