#include "dtensor/runtime/kernels/arguments/numeric.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

TEST(Numeric, NarrowingFromF64RoundsOnce) {
  // Half a step above 1 in bf16 is 2^-8; rounded to f32 first, this becomes a tie and then 1.
  EXPECT_EQ(static_cast<float>(Cast<BFloat16>(1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7f);
  EXPECT_EQ(static_cast<float>(BFloat16(static_cast<float>(1 + 0x1p-8 + 0x1p-40))), 1.0f);
  EXPECT_EQ(static_cast<float>(Cast<Float16>(1 + 0x1p-11 + 0x1p-40)), 1 + 0x1p-10f);
}

TEST(Numeric, NarrowingPicksTheNearest) {
  std::mt19937_64 generator(1);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 100000; ++i) {
    const double x = normal(generator) * std::exp2(normal(generator) * 10);
    const BFloat16 y = Cast<BFloat16>(x);
    const double error = std::abs(static_cast<double>(static_cast<float>(y)) - x);
    for (const int step : {-1, 1}) {
      BFloat16 other = y;
      other.bits = static_cast<uint16_t>(other.bits + step);
      ASSERT_LE(error, std::abs(static_cast<double>(static_cast<float>(other)) - x)) << x;
    }
  }
}

TEST(Numeric, RoundToOddKeepsExactValuesAndInfinities) {
  for (const double x : {0.0, 1.0, -1.5, 0x1p-149, 3.0}) EXPECT_EQ(RoundToOdd(x), x);
  EXPECT_EQ(RoundToOdd(std::numeric_limits<double>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(RoundToOdd(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(static_cast<float>(Cast<BFloat16>(1e300)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(Cast<BFloat16>(-1e300)), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(Cast<BFloat16>(1e-300)), 0.0f);
}

TEST(Numeric, FloatsToIntegersTruncateAndSaturate) {
  EXPECT_EQ(Cast<int32_t>(-1.9), -1);
  EXPECT_EQ(Cast<int32_t>(1.9f), 1);
  EXPECT_EQ(Cast<int32_t>(2147483647.0), 2147483647);
  EXPECT_EQ(Cast<int32_t>(2147483648.0), 2147483647);
  EXPECT_EQ(Cast<int32_t>(-2147483648.0), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Cast<int64_t>(1e30), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Cast<int64_t>(-1e30), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Cast<int64_t>(std::nan("")), 0);
  EXPECT_EQ(Cast<bool>(0.25), true);
  EXPECT_EQ(Cast<bool>(BFloat16(0.0f)), false);
}

TEST(Numeric, WrappingArithmetic) {
  const int32_t most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(WrapAdd(most, 1), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(WrapSub(std::numeric_limits<int32_t>::min(), 1), most);
  EXPECT_EQ(WrapMul(most, 2), -2);
  EXPECT_EQ(WrapMul(int64_t{-3}, int64_t{7}), -21);
  EXPECT_EQ(WrapAdd(true, true), true);
}

}  // namespace
}  // namespace dtensor::kernels
