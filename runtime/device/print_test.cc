#include "dtensor/runtime/device/print.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

class PrintTest : public testing::Test {
 protected:
  template <typename T>
  Tensor Make(std::vector<T> values, const Dims& shape) {
    return FromHost<T>(*device_, values, shape).value();
  }
  Tensor Counting(const Dims& shape) {
    std::vector<int32_t> values(NumElements(shape));
    std::iota(values.begin(), values.end(), 0);
    return Make<int32_t>(values, shape);
  }
  std::unique_ptr<Device> device_ = MakeCpuDevice();
};

TEST_F(PrintTest, RowsAreAligned) {
  EXPECT_EQ(ToString(Make<float>({1, -2.5, 3, 4, 5, 100}, {2, 3})),
            "[2, 3] f32 on cpu\n"
            "[[   1 -2.5    3]\n"
            " [   4    5  100]]");
  EXPECT_EQ(ToString(Make<int64_t>({1, 2, 3, 4}, {2, 1, 2})),
            "[2, 1, 2] i64 on cpu\n"
            "[[[1 2]]\n"
            " [[3 4]]]");
}

TEST_F(PrintTest, StridesAreSaidWhereTheyMatter) {
  EXPECT_EQ(ToString(Counting({2, 3}).Transpose(0, 1)),
            "[3, 2] i32, strides [1, 3] on cpu\n"
            "[[0 3]\n"
            " [1 4]\n"
            " [2 5]]");
  EXPECT_EQ(ToString(Counting({4}).Narrow(0, 1, 2)), "[2] i32 on cpu\n[1 2]");
  EXPECT_EQ(ToString(Counting({1}).BroadcastTo({3})), "[3] i32, strides [0] on cpu\n[0 0 0]");
}

TEST_F(PrintTest, EveryTypeIsReadable) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ToString(Make<double>({1.0 / 3, inf, -inf, -std::nan(""), 1e-300}, {5})),
            "[5] f64 on cpu\n[0.333333      inf     -inf      nan   1e-300]");
  EXPECT_EQ(ToString(Make<BFloat16>({BFloat16(0.1f), BFloat16(1000)}, {2})),
            "[2] bf16 on cpu\n[0.1001   1000]");
  EXPECT_EQ(ToString(Make<Float16>({Float16(65504), Float16(-0.f)}, {2})),
            "[2] f16 on cpu\n[6.55e+04       -0]");
  bool bits[] = {true, false};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor bools, FromHost<bool>(*device_, bits, {2}));
  EXPECT_EQ(ToString(bools), "[2] bool on cpu\n[ true false]");
}

TEST_F(PrintTest, ScalarsAndNothing) {
  EXPECT_EQ(ToString(Make<float>({7}, {})), "[] f32 on cpu\n7");
  EXPECT_EQ(ToString(Make<float>({}, {0})), "[0] f32 on cpu\n[]");
  EXPECT_EQ(ToString(Make<float>({}, {2, 0})), "[2, 0] f32 on cpu\n[[]\n []]");
  EXPECT_EQ(ToString(Tensor()), "undefined");
}

TEST_F(PrintTest, TheMiddleOfLargeOnesIsLeftOut) {
  EXPECT_EQ(ToString(Counting({1001})), "[1001] i32 on cpu\n[   0    1    2 ...  998  999 1000]");
  EXPECT_EQ(ToString(Counting({3, 500}), {.max_elements = 10, .edge = 1}),
            "[3, 500] i32 on cpu\n"
            "[[   0 ...  499]\n"
            " ...\n"
            " [1000 ... 1499]]");
  // At the bound all of it is shown.
  EXPECT_EQ(ToString(Counting({4}), {.max_elements = 4, .edge = 1}), "[4] i32 on cpu\n[0 1 2 3]");
}

TEST_F(PrintTest, TextsStayShort) {
  // No dimension has a middle, and there are 2^30 elements; and 10^10 without a row.
  EXPECT_THAT(ToString(Counting({1}).BroadcastTo(Dims(30, 2))), HasSubstr("Narrow"));
  EXPECT_THAT(ToString(Make<float>({}, {100'000, 100'000, 0})), HasSubstr("...")) << "cropped";
  // Options out of range show less, and are no error.
  EXPECT_EQ(ToString(Counting({3}), {.max_elements = -1, .edge = 0}), "[3] i32 on cpu\n[0 ... 2]");
}

TEST_F(PrintTest, OptionsMayAskForMoreThanIsShown) {
  const std::string wanted = "[200000] i32 on cpu\n[     0      1      2 ... 199997 199998 199999]";
  EXPECT_EQ(ToString(Counting({200'000}), {.max_elements = 1'000'000}), wanted);
  const Tensor zeros = Counting({1}).BroadcastTo({300, 1000});
  for (const int64_t edge : {int64_t{400}, int64_t{1'000'000'000}}) {
    const std::string text = ToString(zeros, {.max_elements = 1'000'000, .edge = edge});
    EXPECT_THAT(text, HasSubstr("0 ... 0"));
    EXPECT_LT(text.size(), 300'000);
    EXPECT_GT(text.size(), 50'000) << "as much as there may be";
  }
}

TEST_F(PrintTest, WaitsForTheValues) {
  const auto deferred = MakeDeferredDevice({.seed = 1, .max_delay_us = 2000});
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*deferred, {1, 2}, {2}));
  std::ostringstream out;
  out << tensor;
  EXPECT_EQ(out.str(), "[2] f32 on deferred\n[1 2]");
}

TEST_F(PrintTest, SaysWhereThereAreNoValues) {
  const auto meta = MakeMetaDevice();
  DT_ASSERT_OK_AND_ASSIGN(const Tensor shape, Tensor::Empty(*meta, DType::kF32, {2, 3}));
  EXPECT_EQ(ToString(shape), "[2, 3] f32 on meta, which has no values");
  const Tensor tensor = Make<float>({1}, {1});
  device_->Fail(absl::InternalError("it burns"));
  EXPECT_EQ(ToString(tensor), "[1] f32 on cpu; no values, since the device failed: it burns");
}

}  // namespace
}  // namespace dtensor
