// Element values on the GPU: the device code for runtime/kernels/arguments/numeric.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_NUMERIC_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_NUMERIC_INL_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

// `x` in the type that it is computed in.
template <typename T>
__device__ Compute<T> Widen(T x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(x.bits));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return __half2float(__ushort_as_half(x.bits));
  } else {
    return x;
  }
}

// Back, rounded to nearest, ties to even.
template <typename T>
__device__ T Round(Compute<T> x) {
  T rounded;
  if constexpr (std::is_same_v<T, BFloat16>) {
    rounded.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  } else if constexpr (std::is_same_v<T, Float16>) {
    rounded.bits = __half_as_ushort(__float2half_rn(x));
  } else {
    rounded = x;
  }
  return rounded;
}

// `x` rounded towards zero to a float, with the last bit set if that lost anything: rounding this
// to 8 or 11 bits gives the same as rounding `x` itself.
__device__ inline float ToOdd(double x) {
  const float nearest = static_cast<float>(x);
  if (!(fabs(x) <= 1.7976931348623157e308) || static_cast<double>(nearest) == x) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (fabs(static_cast<double>(nearest)) > fabs(x)) --bits;
  return std::bit_cast<float>(bits | 1);
}

// `x` as a To, rounded once. To bool: x != 0.
template <typename To, typename From>
__device__ To Convert(From x) {
  const auto value = Widen(x);
  using Value = std::remove_const_t<decltype(value)>;
  if constexpr (std::is_same_v<To, bool>) {
    return value != Value{0};
  } else if constexpr (kIsHalf<To>) {
    if constexpr (std::is_same_v<Value, float>) return Round<To>(value);
    return Round<To>(ToOdd(static_cast<double>(value)));
  } else if constexpr (std::is_floating_point_v<Value> && std::is_integral_v<To>) {
    return Truncate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// The larger or the smaller; if either is NaN, the result is NaN.
template <typename T>
__device__ T Larger(T a, T b) {
  return a > b || a != a ? a : b;
}
template <typename T>
__device__ T Smaller(T a, T b) {
  return a < b || a != a ? a : b;
}

// Integers wrap; for bools these are or, xor, and.
template <typename T>
__device__ T Add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return WrapAdd(a, b);
  } else {
    return a + b;
  }
}
template <typename T>
__device__ T Subtract(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return WrapSub(a, b);
  } else {
    return a - b;
  }
}
template <typename T>
__device__ T Multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return WrapMul(a, b);
  } else {
    return a * b;
  }
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_NUMERIC_INL_H_
