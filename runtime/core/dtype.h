// Element types, their sizes, and the 16-bit floats.
#ifndef DTENSOR_RUNTIME_CORE_DTYPE_H_
#define DTENSOR_RUNTIME_CORE_DTYPE_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64, kBool };

int64_t SizeOf(DType dtype);              // bytes per element
absl::string_view ToString(DType dtype);  // "f32", "f64", "bf16", "f16", "i32", "i64", "bool"
// Errors: kInvalidArgument, listing the valid names.
absl::StatusOr<DType> ParseDType(absl::string_view text);
bool IsFloat(DType dtype);
// The type sums are accumulated in: f32 for f32 and narrower floats, otherwise the type itself.
DType AccumulatorOf(DType dtype);
// Whether an exchange can read elements of one type and write the other in one pass: true for equal
// types, and for two floats that are computed in f32.
bool ConvertsOnTheWay(DType from, DType to);

// The 16-bit floats round to nearest, ties to even. Values that are too large become infinite;
// values that are too small become subnormal or zero, with the sign kept. A NaN stays a NaN: quiet,
// with its sign and as much of its payload as fits. Every 16-bit value survives a conversion to
// float and back (a NaN becomes quiet).

// bfloat16: the upper half of a float.
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
};

// IEEE half: 5 bits of exponent, 10 of mantissa. The largest finite value is 65504.
struct Float16 {
  uint16_t bits;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

inline BFloat16::BFloat16(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const bool is_nan = (f & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = (f + 0x7fff + ((f >> 16) & 1)) >> 16;
  bits = static_cast<uint16_t>(is_nan ? (f >> 16) | 0x40 : rounded);
}

inline BFloat16::operator float() const {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline Float16::Float16(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000;
  const uint32_t magnitude = f & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {  // NaN
    half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 65536 and above; what rounds up to it is handled below
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14, the smallest normal half
    // A float near 0.5 has the spacing of subnormal halves, 2^-24: the addition rounds for us.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    // Biases the exponent by 15 instead of 127; a carry from the mantissa may reach it.
    half = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  bits = static_cast<uint16_t>(sign | half);
}

inline Float16::operator float() const {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t f = magnitude + (112u << 23);
  if (magnitude >= (0x7c00u << 13)) {  // infinite or NaN
    f += 112u << 23;
  } else if (magnitude < (1u << 23)) {  // subnormal or zero: 2^-14 * (1 + m) - 2^-14
    f = std::bit_cast<uint32_t>(std::bit_cast<float>(f + (1u << 23)) - 0x1p-14f);
  }
  return std::bit_cast<float>(f | sign);
}

// The C++ types of elements: float, double, the two above, int32_t, int64_t and bool. Other types
// of the same width (long long, char) are not accepted.
template <typename T>
concept ElementType = std::is_same_v<T, float> || std::is_same_v<T, double> ||
    std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16> || std::is_same_v<T, int32_t> ||
    std::is_same_v<T, int64_t> || std::is_same_v<T, bool>;

// The dtype whose C++ type is T.
template <ElementType T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return DType::kF16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  return DType::kBool;
}

// Calls fn(T{}) with the ElementType of `dtype`.
template <typename Fn>
decltype(auto) VisitDType(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kF64:
      return fn(double{});
    case DType::kBF16:
      return fn(BFloat16{});
    case DType::kF16:
      return fn(Float16{});
    case DType::kI32:
      return fn(int32_t{});
    case DType::kI64:
      return fn(int64_t{});
    default:
      return fn(bool{});
  }
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_DTYPE_H_
