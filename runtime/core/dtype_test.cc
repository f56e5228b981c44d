#include "dtensor/runtime/core/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Row {
  DType dtype;
  std::string name;
  int64_t size;
  bool is_float;
  DType accumulator;
};

const Row kRows[] = {
    {DType::kF32, "f32", 4, true, DType::kF32},    {DType::kF64, "f64", 8, true, DType::kF64},
    {DType::kBF16, "bf16", 2, true, DType::kF32},  {DType::kF16, "f16", 2, true, DType::kF32},
    {DType::kI32, "i32", 4, false, DType::kI32},   {DType::kI64, "i64", 8, false, DType::kI64},
    {DType::kBool, "bool", 1, false, DType::kBool}};

template <typename T>
constexpr bool kHasDType = requires {
  DTypeOf<T>();
};

TEST(DType, OtherTypesHaveNone) {
  EXPECT_TRUE(kHasDType<float> && kHasDType<Float16> && kHasDType<int64_t> && kHasDType<bool>);
  EXPECT_FALSE(kHasDType<long long>) << "as wide as int64_t, and another type";
  EXPECT_FALSE(kHasDType<unsigned char> || kHasDType<char> || kHasDType<uint32_t>);
  EXPECT_FALSE(kHasDType<const float> || kHasDType<float*> || kHasDType<long double>);
}

TEST(DType, Facts) {
  for (const Row& row : kRows) {
    EXPECT_EQ(std::string(ToString(row.dtype)), row.name);
    EXPECT_THAT(ParseDType(row.name), IsOkAndHolds(row.dtype));
    EXPECT_EQ(SizeOf(row.dtype), row.size) << row.name;
    EXPECT_EQ(IsFloat(row.dtype), row.is_float) << row.name;
    EXPECT_EQ(AccumulatorOf(row.dtype), row.accumulator) << row.name;
    EXPECT_EQ(VisitDType(row.dtype, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); }),
              row.size);
  }
}

template <typename T>
bool Visits(DType dtype) {
  return VisitDType(dtype, [](auto zero) { return std::is_same_v<decltype(zero), T>; });
}

TEST(DType, VisitGivesTheTypeOfTheName) {
  EXPECT_TRUE(Visits<float>(DType::kF32));
  EXPECT_TRUE(Visits<double>(DType::kF64));
  EXPECT_TRUE(Visits<BFloat16>(DType::kBF16));
  EXPECT_TRUE(Visits<Float16>(DType::kF16));
  EXPECT_TRUE(Visits<int32_t>(DType::kI32));
  EXPECT_TRUE(Visits<int64_t>(DType::kI64));
  EXPECT_TRUE(Visits<bool>(DType::kBool));
}

TEST(DType, ParseListsTheNames) {
  for (const char* text : {"", "F32", "float", "f32 "}) {
    EXPECT_THAT(ParseDType(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("\"" + std::string(text) + "\""),
                               HasSubstr("f32, f64, bf16, f16, i32, i64, bool"))));
  }
}

// What a 16-bit float with this many bits of exponent and mantissa means, by the definition.
// Exact in double.
double Meaning(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * kInf;
  const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign * std::ldexp(implied + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
}

// The two types, and the numbers that define them.
struct BF16Traits {
  using T = BFloat16;
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
};
struct F16Traits {
  using T = Float16;
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
};

template <typename Traits>
class Float16BitsTest : public testing::Test {
 protected:
  using T = typename Traits::T;
  static constexpr uint16_t kInfinity = 0x7fff >> Traits::kMantissaBits << Traits::kMantissaBits;
  static constexpr uint16_t kQuiet = 1 << (Traits::kMantissaBits - 1);

  static float ToFloat(uint16_t bits) {
    T value;
    value.bits = bits;
    return static_cast<float>(value);
  }
  static double Value(uint16_t bits) {
    return Meaning(bits, Traits::kExponentBits, Traits::kMantissaBits);
  }
  static bool IsNan(uint16_t bits) { return (bits & 0x7fff) > kInfinity; }

  // Nearest even by the definition, for the magnitude `bits` or the one above: `value` lies
  // between.
  static uint16_t Nearest(double value, uint16_t bits) {
    // The value that infinity would have if it were a number: halfway to it, rounding overflows.
    const double above =
        bits + 1 == kInfinity ? 2 * std::ldexp(1.0, std::ilogb(Value(bits))) : Value(bits + 1);
    const double to_below = value - Value(bits), to_above = above - value;
    if (to_below != to_above) return to_below < to_above ? bits : bits + 1;
    return bits % 2 == 0 ? bits : bits + 1;
  }
};

using Types = testing::Types<BF16Traits, F16Traits>;
TYPED_TEST_SUITE(Float16BitsTest, Types);

TYPED_TEST(Float16BitsTest, EachValueMeansWhatTheFormatSays) {
  for (int i = 0; i <= 0xffff; ++i) {
    const double expected = this->Value(i);
    const float actual = this->ToFloat(i);
    ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << std::hex << i;
    if (std::isnan(expected)) continue;
    ASSERT_EQ(actual, expected) << std::hex << i;
    ASSERT_EQ(std::signbit(actual), i >> 15 != 0) << std::hex << i;
  }
}

TYPED_TEST(Float16BitsTest, EachValueRoundTrips) {
  for (int i = 0; i <= 0xffff; ++i) {
    const uint16_t expected = this->IsNan(i) ? i | this->kQuiet : i;
    ASSERT_EQ(typename TypeParam::T(this->ToFloat(i)).bits, expected) << std::hex << i;
  }
}

// For each two neighbours: the halfway point, the floats beside it, and the floats beside the two.
TYPED_TEST(Float16BitsTest, RoundsToNearestAndTiesToEven) {
  using T = typename TypeParam::T;
  for (int i = 0; i < this->kInfinity; ++i) {
    const double below = this->Value(i);
    const bool last = i + 1 == this->kInfinity;
    const double above = last ? 2 * std::ldexp(1.0, std::ilogb(below)) : this->Value(i + 1);
    const float tie = static_cast<float>(below + (above - below) / 2);
    ASSERT_EQ(tie, below + (above - below) / 2);
    for (float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInf),
                        std::nextafter(static_cast<float>(below), kInf),
                        std::nextafter(static_cast<float>(above), 0.0f)}) {
      const uint16_t expected = this->Nearest(value, i);
      ASSERT_EQ(T(value).bits, expected) << std::hexfloat << value;
      ASSERT_EQ(T(-value).bits, expected | 0x8000) << std::hexfloat << -value;
    }
  }
}

TYPED_TEST(Float16BitsTest, OverflowIsInfinite) {
  using T = typename TypeParam::T;
  const double largest = this->Value(this->kInfinity - 1), most = std::numeric_limits<float>::max();
  for (double factor : {1.01, 1.5, 2.0, 2.1, 3.0, 5.0, 1e30}) {
    EXPECT_EQ(T(static_cast<float>(std::min(largest * factor, most))).bits, this->kInfinity);
  }
  for (float value : {kInf, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(T(value).bits, this->kInfinity);
    EXPECT_EQ(T(-value).bits, this->kInfinity | 0x8000);
  }
}

TYPED_TEST(Float16BitsTest, TinyBecomesZeroWithItsSign) {
  using T = typename TypeParam::T;
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (float value : {0.0f, tiny, 1000 * tiny}) {
    EXPECT_EQ(T(value).bits, 0);
    EXPECT_EQ(T(-value).bits, 0x8000);
  }
}

TYPED_TEST(Float16BitsTest, NanStaysNan) {
  using T = typename TypeParam::T;
  // Quiet and signalling, with payload at the top, at the bottom (where it is cut off), and all.
  for (uint32_t payload :
       {0x400000u, 0x000001u, 0x200000u, 0x1fffu, 0xffffu, 0x3fffffu, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t bits = T(std::bit_cast<float>(sign | 0x7f800000 | payload)).bits;
      EXPECT_TRUE(this->IsNan(bits)) << std::hex << payload;
      EXPECT_EQ(bits & this->kQuiet, this->kQuiet) << std::hex << payload;
      EXPECT_EQ(bits >> 15, sign >> 31) << std::hex << payload;
      const int kept = payload >> (23 - TypeParam::kMantissaBits);
      EXPECT_EQ(bits & (this->kQuiet - 1), kept & (this->kQuiet - 1)) << std::hex << payload;
      EXPECT_TRUE(std::isnan(this->ToFloat(bits)));
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(Float16(1.0f).bits, 0x3c00);
  EXPECT_EQ(Float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(0x1p-24f).bits, 1);
  EXPECT_EQ(Float16(0x1p-25f).bits, 0);         // a tie with zero, which is even
  EXPECT_EQ(Float16(0x1.000002p-25f).bits, 1);  // just above it
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.00390625f).bits, 0x3f80);  // a tie: down to even
  EXPECT_EQ(BFloat16(1.01171875f).bits, 0x3f82);  // a tie: up to even
}

}  // namespace
}  // namespace dtensor
