// Elementary functions of vectors, float or double, right for every input: NaN stays NaN, and
// overflow, underflow and infinities come out as in <cmath>. Relative error at most 4e-7 in f32.
//
// Compiled once for each instruction set: include after hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_SIMD_MATH_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_SIMD_MATH_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_SIMD_MATH_INL_H_
#endif

#include "dtensor/runtime/kernels/highway_targets.h"
#include "hwy/highway.h"
// After hwy/highway.h.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Highway's Exp is right between its bounds only: past the upper one 2^n wraps, and NaN gives 0.
template <class D, class V>
HWY_INLINE V ExpOf(D d, V x) {
  using T = hn::TFromD<D>;
  const V upper = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? 100 : 720));  // e^x is infinite there
  const V y = hn::Exp(d, hn::IfThenElse(hn::Lt(x, upper), x, upper));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V>
HWY_INLINE V LogOf(D d, V x) {
  const V zero = hn::Zero(d);
  const V inf = hn::Inf(d);
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  y = hn::IfThenElse(hn::Eq(x, inf), inf, y);
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::NaN(d));  // also where x is NaN
}

// e^-|x| never overflows, and each half keeps its relative error: s(x) = 1 / (1 + e), s(-x) = e /
// (1 + e).
template <class D, class V>
HWY_INLINE V SigmoidOf(D d, V x) {
  const V one = hn::Set(d, 1);
  const V e = ExpOf(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

template <class D, class V>
HWY_INLINE V TanhOf(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_SIMD_MATH_INL_H_
