// How kernels read, compute with and round element values.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NUMERIC_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NUMERIC_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels {

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
template <typename T>
inline constexpr bool kIsFloat = kIsHalf<T> || std::is_floating_point_v<T>;

// The type in which values of T are computed and summed: f32 for f32 and narrower floats, otherwise
// T.
template <typename T>
using Compute = std::conditional_t<kIsHalf<T>, float, T>;

// Calls fn(T{}) with the C++ type of a float `dtype`. Requires: IsFloat(dtype).
template <typename Fn>
decltype(auto) VisitFloat(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF64:
      return fn(double{});
    case DType::kBF16:
      return fn(BFloat16{});
    case DType::kF16:
      return fn(Float16{});
    default:
      return fn(float{});
  }
}

// Calls fn(T{}) with the C++ type of `dtype`, which is not a float.
template <typename Fn>
decltype(auto) VisitInteger(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kI32:
      return fn(int32_t{});
    case DType::kI64:
      return fn(int64_t{});
    default:
      return fn(bool{});
  }
}

// `x` rounded towards zero to a float, with the last bit set if that lost anything. Rounding the
// result to 8 or 11 bits gives the same as rounding `x` itself: no double rounding.
inline float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  if (!(std::isfinite(x)) || static_cast<double>(nearest) == x) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1);
}

// Float to integer, toward zero. Saturates, and NaN gives 0, so it is defined for all inputs.
template <typename To, typename From>
constexpr To Truncate(From x) {
  constexpr double kLimit = -static_cast<double>(std::numeric_limits<To>::min());  // 2^31 or 2^63
  const double value = static_cast<double>(x);
  if (value != value) return 0;  // NaN
  if (value >= kLimit) return std::numeric_limits<To>::max();
  if (value <= -kLimit) return std::numeric_limits<To>::min();
  return static_cast<To>(value);
}

// `x` as a To, rounded once (an i64 above 2^53 to 16 bits: twice). To bool: x != 0.
template <typename To, typename From>
To Cast(From x) {
  if constexpr (kIsHalf<From>) {
    return Cast<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (kIsHalf<To>) {
    if constexpr (std::is_same_v<From, float>) return To(x);
    return To(RoundToOdd(static_cast<double>(x)));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return Truncate<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// out[i] = sums[i], rounded.
template <typename T>
void RoundAll(const Compute<T>* sums, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    std::copy_n(sums, n, out);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = Cast<T>(sums[i]);
  }
}

// Integer arithmetic that wraps instead of overflowing. For bool: or, xor, and.
template <typename T>
constexpr T WrapAdd(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return a || b;
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <typename T>
constexpr T WrapSub(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return a != b;
  return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
template <typename T>
constexpr T WrapMul(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return a && b;
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NUMERIC_H_
