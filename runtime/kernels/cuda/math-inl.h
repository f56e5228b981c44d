// Functions of one element, computed as on the CPU (simd_math-inl.h): T is float or double.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_MATH_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_MATH_INL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

// 1 / x for x in [1, 2], within an ulp, or NaN. A division of floats has a branch for other
// numbers, and a branch keeps neighbours from being computed together.
__device__ inline float Reciprocal(float x) {
#ifdef __CUDACC__
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
  return fmaf(guess, fmaf(-x, guess, 1), guess);
#else
  return 1 / x;
#endif
}
__device__ inline double Reciprocal(double x) { return 1 / x; }

// 2^x by the hardware's instruction: with a relative error of 2^-22, and 0 below 2^-126.
__device__ inline float QuickExp2(float x) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// e^-|x| never overflows, and each half keeps its relative error: s(x) = 1 / (1 + e), s(-x) = e /
// (1 + e).
template <typename T>
__device__ T Sigmoid(T x) {
  const T e = exp(-fabs(x)), share = Reciprocal(1 + e);
  return x < 0 ? e * share : share;
}

// The normal distribution at x.
template <typename T>
struct Normal {
  T cdf, density;
};

// e^(-t^2 / 2), corrected for the rounding error of t^2, which the exponential would magnify.
__device__ inline float Bell(float t) {
  const float square = t * t;
  const float bell = expf(-0.5f * square);
  return fmaf(-0.5f * fmaf(t, t, -square), bell, bell);
}

// The mass of the normal distribution below -t, for t >= 0, is e^(-t^2 / 2) v P(v), where
// v = 1 / (1 + t / 4) and P is a minimax polynomial for t up to 14.5 (relative error 1.3e-8), where
// it becomes 0 in f32.
__device__ inline Normal<float> NormalAt(float x) {
  float t = fabsf(x);
  t = t > 15 ? 15 : t;  // NaN passes through
  const float bell = Bell(t), v = 1 / fmaf(t, 0.25f, 1);
  float p = fmaf(v, 0.0157418440967f, -0.0583709799619f);
  p = fmaf(v, p, 0.0415892863346f);
  p = fmaf(v, p, 0.0413678096454f);
  p = fmaf(v, p, 0.00240035857232f);
  p = fmaf(v, p, 0.0919320948807f);
  p = fmaf(v, p, 0.0702728821885f);
  p = fmaf(v, p, 0.095863385357f);
  p = fmaf(v, p, 0.0994535660841f);
  p = fmaf(v, p, 0.0997497553633f);
  const float tail = bell * (v * p);
  return {x < 0 ? tail : 1 - tail, bell * 0.398942280401f};
}
__device__ inline Normal<double> NormalAt(double x) {
  return {0.5 * erfc(-x * 0.707106781186547524401), 0.398942280401432677940 * exp(-0.5 * x * x)};
}

// With y = sqrt(2 / pi) (x + 0.044715 x^3), (1 + tanh(y)) / 2 is the sigmoid of 2 y: this is 2 y,
// and its derivative.
template <typename T>
__device__ T GeluTanhArgument(T x) {
  return x * fma(x * x, T(0.0713548162726002528), T(1.59576912160573071176));
}
template <typename T>
__device__ T GeluTanhArgumentSlope(T x) {
  return fma(x * x, T(0.2140644488178007584), T(1.59576912160573071176));
}

// (x s(x))' = s (1 + x (1 - s)), s the sigmoid at x.
template <typename T>
__device__ T SiluSlope(T x, T s) {
  return s * fma(x, 1 - s, T{1});
}

// (x s(y))' = s + x s (1 - s) y'; with e = e^-|y|, s (1 - s) is e / (1 + e)^2.
template <typename T>
__device__ T GeluTanhSlope(T x) {
  const T y = GeluTanhArgument(x), e = exp(-fabs(y));
  const T share = Reciprocal(1 + e), rest = e * share;
  return fma(x * (share * rest), GeluTanhArgumentSlope(x), y < 0 ? rest : share);
}

// (x Phi(x))' = Phi(x) + x phi(x).
template <typename T>
__device__ T GeluSlope(T x) {
  const Normal<T> normal = NormalAt(x);
  return fma(x, normal.density, normal.cdf);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_MATH_INL_H_
