#include "dtensor/runtime/testing/doubles.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(DoublesTest, RelativeRms) {
  const auto error = [](const Doubles& got, const std::vector<long double>& want) {
    return RelativeRms(got, want, 1);
  };
  EXPECT_EQ(error({3, 4}, {3, 4}), 0);
  EXPECT_EQ(error({3, 5}, {3, 4}), 0.2);
  EXPECT_EQ(error({}, {}), 0);
  EXPECT_EQ(error({3}, {3, 4}), kInfinite);
  EXPECT_EQ(error({-kInfinite, 5}, {-kInfinite, 4}), 0.25);
  EXPECT_EQ(error({-kInfinite, 4}, {3, 4}), kInfinite);
  EXPECT_EQ(error({3, 4}, {-kInfinite, 4}), kInfinite);
  EXPECT_EQ(error({kInfinite, 4}, {-kInfinite, 4}), kInfinite);
  EXPECT_EQ(error({std::nan(""), 4}, {3, 4}), kInfinite);
  EXPECT_EQ(error({std::nan(""), 4}, {-kInfinite, 4}), kInfinite);
  // Next to terms of size 1, 1e-16 is what rounding leaves; of terms of no known size, it is wrong.
  EXPECT_NEAR(error({1e-16, -1e-16}, {3e-20L, 0}), 1e-16, 1e-18);
  EXPECT_GT(RelativeRms(Doubles{1e-16, -1e-16}, std::vector<long double>{3e-20L, 0}), 1e3);
  EXPECT_EQ(RelativeRms(Doubles{1e-16}, Doubles{0}), kInfinite);
  // What a double does not tell apart.
  EXPECT_NEAR(error({1}, {1 + 1e-18L}), 1e-18, 1e-19);
}

TEST(DoublesTest, RandomNumbersAreOfTheirType) {
  const auto device = MakeCpuDevice();
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const Doubles values = RandomNormal(600, dtype, 5);
    EXPECT_EQ(RandomNormal(600, dtype, 5), values);
    EXPECT_NE(RandomNormal(600, dtype, 6), values);
    EXPECT_NEAR(static_cast<double>(Rms(values)), 1, 0.1);
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromDoubles(*device, dtype, values, {20, 30}));
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_EQ(ToDoubles(tensor).value(), values);
    EXPECT_EQ(ToDoubles(tensor.Transpose(0, 1)).value()[1], values[30]);
  }
  EXPECT_THAT(FromDoubles(*device, DType::kI32, {1}, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace dtensor
