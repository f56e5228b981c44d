// Elementary functions of vectors, float or double, correct for every input: NaN stays NaN, and
// overflow, underflow and infinities are as in <cmath>. Relative error at most 4e-7 in f32, unless
// stated otherwise.
//
// Compiled once for each instruction set: include after hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_SIMD_MATH_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_SIMD_MATH_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_SIMD_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"
#include "hwy/highway.h"
// After hwy/highway.h.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x * 2^n for whole n in [-150, 129], with one rounding if the result is a normal number.
template <class D, class V>
HWY_INLINE V ScaleByPowerOfTwo(D d, V x, V n) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) {
    return V{_mm512_scalef_ps(x.raw, n.raw)};
  }
#endif
  // In two steps: 2^n itself need not be a normal number.
  const hn::Rebind<int32_t, D> d32;
  const auto whole = hn::ConvertTo(d32, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(d32, 127);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  return hn::Mul(hn::Mul(x, first), second);
}

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; e^r by the polynomial of Cephes' expf.
template <class D, class V>
HWY_INLINE V ExpF32(D d, V x) {
  // Outside these bounds e^x is 0 or infinite. Written so that NaN passes through.
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, -104)), hn::Set(d, -104), x);
  x = hn::IfThenElse(hn::Gt(x, hn::Set(d, 89)), hn::Set(d, 89), x);
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // the upper bits of ln 2: this is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::MulAdd(r, hn::Set(d, 1.9875691500e-4f), hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(r, p, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(r, p, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(r, p, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(r, p, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1));
  return ScaleByPowerOfTwo(d, p, n);
}

template <class D, class V>
HWY_INLINE V ExpOf(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return ExpF32(d, x);
  } else {
    // Highway's Exp is correct only between its bounds: above the upper one 2^n wraps, and NaN
    // gives 0.
    const V upper = hn::Set(d, 720);  // e^x is infinite there
    const V y = hn::Exp(d, hn::IfThenElse(hn::Lt(x, upper), x, upper));
    return hn::IfThenElse(hn::IsNaN(x), x, y);
  }
}

template <class D, class V>
HWY_INLINE V LogOf(D d, V x) {
  const V zero = hn::Zero(d);
  const V inf = hn::Inf(d);
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  y = hn::IfThenElse(hn::Eq(x, inf), inf, y);
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::NaN(d));  // also if x is NaN
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

// NaN stays NaN.
template <class V>
HWY_INLINE V AtMost(V x, V limit) {
  return hn::IfThenElse(hn::Gt(x, limit), limit, x);
}
template <class V>
HWY_INLINE V AtLeast(V x, V limit) {
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
}

template <class D, class V>
HWY_INLINE V TanhOf(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

// fn(x) for each lane separately: for functions without a vector version.
template <class D, class V, class Fn>
HWY_INLINE V MapLanes(D d, V x, Fn fn) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (auto& lane : lanes) lane = fn(lane);
  return hn::Load(d, lanes);
}

// The normal distribution at x. Relative error at most 8e-7 in f32.
template <class V>
struct Normal {
  V cdf, density;
};

// e^(-t^2 / 2), corrected for the rounding error of t^2, which the exponential would magnify. The
// error is computed from t = upper + lower, whose products are exact.
template <class D, class V>
HWY_INLINE V BellF32(D d, V t) {
  const V half = hn::Set(d, 0.5f), square = hn::Mul(t, t);
  const V upper = hn::And(t, hn::BitCast(d, hn::Set(hn::Rebind<uint32_t, D>(), 0xFFFFF000)));
  const V lower = hn::Sub(t, upper);
  const V products = hn::Mul(hn::Add(upper, upper), lower);
  V lost = hn::Add(hn::Sub(hn::Mul(upper, upper), square), products);
  lost = hn::Add(lost, hn::Mul(lower, lower));
  const V bell = ExpF32(d, hn::Mul(hn::Neg(half), square));
  return hn::NegMulAdd(hn::Mul(half, lost), bell, bell);
}

// The mass of the normal distribution below -t, for t >= 0, is e^(-t^2 / 2) v P(v), where
// v = 1 / (1 + t / 4) and P is a minimax polynomial for t up to 14.5 (relative error 1.3e-8), where
// it becomes 0 in f32.
template <class D, class V>
HWY_INLINE Normal<V> NormalAtF32(D d, V x) {
  const V one = hn::Set(d, 1), most = hn::Set(d, 15);
  V t = hn::Abs(x);
  t = hn::IfThenElse(hn::Gt(t, most), most, t);  // NaN passes through
  const V bell = BellF32(d, t);
  const V v = hn::Div(one, hn::MulAdd(t, hn::Set(d, 0.25f), one));
  V p = hn::MulAdd(v, hn::Set(d, 0.0157418440967f), hn::Set(d, -0.0583709799619f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0415892863346f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0413678096454f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.00240035857232f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0919320948807f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0702728821885f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.095863385357f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0994535660841f));
  p = hn::MulAdd(v, p, hn::Set(d, 0.0997497553633f));
  const V tail = hn::Mul(bell, hn::Mul(v, p));
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)),
          hn::Mul(bell, hn::Set(d, 0.398942280401f))};
}

template <class D, class V>
HWY_INLINE Normal<V> NormalAt(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return NormalAtF32(d, x);
  } else {
    constexpr double kSqrtHalf = 0.707106781186547524401, kTop = 0.398942280401432677940;
    const V bell = ExpOf(d, hn::Mul(hn::Set(d, -0.5), hn::Mul(x, x)));
    return {MapLanes(d, x, [](double at) { return 0.5 * std::erfc(-at * kSqrtHalf); }),
            hn::Mul(hn::Set(d, kTop), bell)};
  }
}

// With y = sqrt(2 / pi) (x + 0.044715 x^3), (1 + tanh(y)) / 2 is the sigmoid of 2 y: this is 2 y,
// and its derivative.
template <class D, class V>
HWY_INLINE V GeluTanhArgument(D d, V x) {
  const V scale = hn::Set(d, 1.59576912160573071176), cubic = hn::Set(d, 0.0713548162726002528);
  return hn::Mul(x, hn::MulAdd(hn::Mul(x, x), cubic, scale));
}
template <class D, class V>
HWY_INLINE V GeluTanhArgumentSlope(D d, V x) {
  const V scale = hn::Set(d, 1.59576912160573071176), cubic = hn::Set(d, 0.2140644488178007584);
  return hn::MulAdd(hn::Mul(x, x), cubic, scale);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_SIMD_MATH_INL_H_
