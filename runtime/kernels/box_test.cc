#include "dtensor/runtime/kernels/box.h"

#include <limits>
#include <utility>
#include <vector>

#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using ::testing::Each;

class BoxTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(BoxTest);

// Elements [src, src + n) of the sources to [dst, dst + n).
ReceiveBox BoxOf(std::initializer_list<int> peers, int64_t src, int64_t dst, int64_t n) {
  ReceiveBox box;
  box.peers.assign(peers.begin(), peers.end());
  box.dims.push_back({.src = src, .dst = dst, .length = n});
  return box;
}

TEST_P(BoxTest, MovesCopyConvertReduceAndScaleInOneLaunch) {
  const Tensor a = Make(DType::kF32, {4}, {1, 2, 3, 4}), b = Make(DType::kF32, {4}, {5, 6, 7, 8});
  const Tensor wide = Make(DType::kF32, {8}, Doubles(8, -1));
  const Tensor narrow = Make(DType::kBF16, {2}, {-1, -1});
  const Tensor* const both[] = {&a, &b};
  const Tensor* const first[] = {&a};
  const std::vector<BoxMove> moves = {
      BoxMove(BoxOf({0}, 1, 0, 2), wide, first),
      BoxMove(BoxOf({0, 1}, 0, 2, 2), wide, both, ReduceOp::kMax),
      BoxMove(BoxOf({0, 1}, 2, 4, 2), wide, both, ReduceOp::kSum, 0.5),
      BoxMove(BoxOf({0}, 0, 6, 0), wide, first),  // nothing
      BoxMove(BoxOf({0}, 2, 0, 2), narrow, first)};
  for (size_t begin = 0; begin < moves.size(); ++begin) {
    DT_ASSERT_OK(Fill(device(), wide, -1));
    DT_ASSERT_OK(Fill(device(), narrow, -1));
    DT_ASSERT_OK(MoveBoxes(device(), "Test", moves, begin));
    EXPECT_EQ(Read(wide), Doubles({2, 3, 5, 6, 5, 6, -1, -1}));
    EXPECT_EQ(Read(narrow), Doubles({3, 4}));
  }
}

TEST_P(BoxTest, WhatLiesThereAlreadyIsDone) {
  const Tensor a = Make(DType::kF32, {4}, {1, 2, 3, 4});
  const Tensor* const sources[] = {&a};
  EXPECT_TRUE(BoxMove(BoxOf({0}, 1, 1, 3), a, sources).is_done());
  EXPECT_FALSE(BoxMove(BoxOf({0}, 1, 1, 3), a, sources, ReduceOp::kSum, 2).is_done());
  EXPECT_FALSE(BoxMove(BoxOf({0}, 1, 0, 3), a, sources).is_done());
}

TEST_P(BoxTest, IdentitiesChangeNoResult) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const Tensor out = Make(dtype, {2, 3}, Doubles(6, 5));
    const double infinity = std::numeric_limits<double>::infinity();
    const std::pair<ReduceOp, double> expected[] = {{ReduceOp::kSum, 0},
                                                    {ReduceOp::kAvg, 0},
                                                    {ReduceOp::kProduct, 1},
                                                    {ReduceOp::kMax, -infinity},
                                                    {ReduceOp::kMin, infinity}};
    for (const auto& [op, value] : expected) {
      DT_ASSERT_OK(FillIdentity(device(), op, out));
      EXPECT_THAT(Read(out), Each(value)) << ToString(dtype) << " " << ToString(op);
    }
  }
  const Tensor whole = Make(DType::kI32, {3}, {5, 5, 5});
  DT_ASSERT_OK(FillIdentity(device(), ReduceOp::kMin, whole));
  EXPECT_THAT(Read(whole), Each(std::numeric_limits<int32_t>::max()));
  const Tensor flags = Make(DType::kBool, {3}, {1, 0, 1});
  DT_ASSERT_OK(FillIdentity(device(), ReduceOp::kMin, flags));
  EXPECT_THAT(Read(flags), Each(1));
}

TEST(BoxMeta, CountsWhatItWouldMove) {
  const auto device = MakeMetaDevice();
  const Tensor a = Tensor::Empty(*device, DType::kF32, {4}).value();
  const Tensor b = Tensor::Empty(*device, DType::kF32, {4}).value();
  const Tensor* const sources[] = {&a};
  const BoxMove move(BoxOf({0}, 0, 0, 4), b, sources);
  DT_EXPECT_OK(MoveBoxes(*device, "Test", {&move, 1}));
  DT_EXPECT_OK(FillIdentity(*device, ReduceOp::kMax, b));
  EXPECT_EQ(ClockOf(*device)->work().bytes, 2 * 16 + 16);
}

}  // namespace
}  // namespace dtensor::kernels
