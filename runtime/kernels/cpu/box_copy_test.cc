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
