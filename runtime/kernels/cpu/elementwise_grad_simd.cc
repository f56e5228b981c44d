#include "dtensor/runtime/kernels/cpu/elementwise_grad_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/elementwise_grad_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// silu'(x) = s (1 + x (1 - s)), s = sigmoid(x).
template <class D, class V>
HWY_INLINE V SiluSlope(D d, V x, V s) {
  const V one = hn::Set(d, 1);
  return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
}

template <class D, class V>
HWY_INLINE V SignOf(D d, V x) {
  const V zero = hn::Zero(d), one = hn::Set(d, 1);
  return hn::Sub(hn::IfThenElseZero(hn::Gt(x, zero), one),
                 hn::IfThenElseZero(hn::Lt(x, zero), one));
}

// (x Phi(x))' = Phi(x) + x phi(x).
template <class D, class V>
HWY_INLINE V GeluSlope(D d, V x) {
  const Normal<V> normal = NormalAt(d, x);
  return hn::MulAdd(x, normal.density, normal.cdf);
}

// (x s(y))' = s + x s (1 - s) y', s the sigmoid; with e = e^-|y|, s (1 - s) is e / (1 + e)^2.
template <class D, class V>
HWY_INLINE V GeluTanhSlope(D d, V x) {
  const V one = hn::Set(d, 1), y = GeluTanhArgument(d, x);
  const V e = ExpOf(d, hn::Neg(hn::Abs(y)));
  const V share = hn::Div(one, hn::Add(one, e)), rest = hn::Mul(e, share);
  const V s = hn::IfThenElse(hn::Lt(y, hn::Zero(d)), rest, share);
  return hn::MulAdd(hn::Mul(x, hn::Mul(share, rest)), GeluTanhArgumentSlope(d, x), s);
}

// Calls map(f) with f(d, s, dy) = dy * op'(x), where s is x or op(x).
template <class Map>
void WithUnaryGrad(UnaryOp op, Map map) {
  switch (op) {
    case UnaryOp::kCopy:
    case UnaryOp::kNot:
    case UnaryOp::kNeg:
      return;
    case UnaryOp::kExp:
      return map([](auto, auto s, auto dy) DT_VECTOR_LAMBDA { return hn::Mul(dy, s); });
    case UnaryOp::kLog:
      return map([](auto, auto s, auto dy) DT_VECTOR_LAMBDA { return hn::Div(dy, s); });
    case UnaryOp::kSqrt:
      return map([](auto, auto s, auto dy) DT_VECTOR_LAMBDA { return hn::Div(dy, hn::Add(s, s)); });
    case UnaryOp::kRsqrt:
      return map([](auto d, auto s, auto dy) DT_VECTOR_LAMBDA {
        return hn::Mul(hn::Mul(dy, hn::Set(d, -0.5f)), hn::Mul(s, hn::Mul(s, s)));
      });
    case UnaryOp::kRecip:
      return map([](auto, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(hn::Neg(dy), hn::Mul(s, s)); });
    case UnaryOp::kSquare:
      return map([](auto, auto s, auto dy) DT_VECTOR_LAMBDA { return hn::Mul(dy, hn::Add(s, s)); });
    // The sign of NaN counts as 0.
    case UnaryOp::kAbs:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(dy, SignOf(d, s)); });
    case UnaryOp::kSilu:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(dy, SiluSlope(d, s, SigmoidOf(d, s))); });
    case UnaryOp::kRelu:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::IfThenZeroElse(hn::Le(s, hn::Zero(d)), dy); });
    case UnaryOp::kSigmoid:
      return map([](auto d, auto s, auto dy) DT_VECTOR_LAMBDA {
        return hn::Mul(dy, hn::Mul(s, hn::Sub(hn::Set(d, 1), s)));
      });
    case UnaryOp::kTanh:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(dy, hn::NegMulAdd(s, s, hn::Set(d, 1))); });
    case UnaryOp::kGelu:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(dy, GeluSlope(d, s)); });
    case UnaryOp::kGeluTanh:
      return map([](auto d, auto s, auto dy)
                     DT_VECTOR_LAMBDA { return hn::Mul(dy, GeluTanhSlope(d, s)); });
  }
}

void UnaryGrad(UnaryOp op, DType dtype, const void* saved, const void* dy, void* dx, int64_t n,
               bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithUnaryGrad(op, [&](auto f) {
      Map(static_cast<T*>(dx), n, stream, f, static_cast<const T*>(saved),
          static_cast<const T*>(dy));
    });
  });
}

// The gradient of max(mine, other) by `mine`: dy if `mine` is larger, half of dy if both are equal,
// otherwise 0. With NaN, dy.
template <class D, class V>
HWY_INLINE V ShareOfLarger(D d, V mine, V other, V dy) {
  const V half = hn::Mul(dy, hn::Set(d, 0.5f));
  const V shared = hn::IfThenElse(hn::Eq(mine, other), half, dy);
  return hn::IfThenZeroElse(hn::Lt(mine, other), shared);
}

// Calls map(f) with f(d, a, b, dy) = dy * the derivative of op(a, b) by the operand.
template <class Map>
void WithBinaryGrad(BinaryOp op, int operand, Map map) {
  if (op == BinaryOp::kDiv) {
    if (operand == 0) {
      return map([](auto, auto, auto b, auto dy) DT_VECTOR_LAMBDA { return hn::Div(dy, b); });
    }
    return map([](auto, auto a, auto b, auto dy)
                   DT_VECTOR_LAMBDA { return hn::Mul(hn::Neg(dy), hn::Div(hn::Div(a, b), b)); });
  }
  // The minimum is a if b is larger.
  if ((op == BinaryOp::kMax) == (operand == 0)) {
    return map([](auto d, auto a, auto b, auto dy)
                   DT_VECTOR_LAMBDA { return ShareOfLarger(d, a, b, dy); });
  }
  return map([](auto d, auto a, auto b, auto dy)
                 DT_VECTOR_LAMBDA { return ShareOfLarger(d, b, a, dy); });
}

void BinaryGrad(BinaryOp op, int operand, DType dtype, const void* a, const void* b, const void* dy,
                void* dx, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithBinaryGrad(op, operand, [&](auto f) {
      Map(static_cast<T*>(dx), n, stream, f, static_cast<const T*>(a), static_cast<const T*>(b),
          static_cast<const T*>(dy));
    });
  });
}

template <typename T>
void SiluMulGradOf(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n,
                   bool stream) {
  const Tag<T> d;
  ForEachVectorTo(d, dgate, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto g = Load(d, gate + i, lanes);
    const auto u = Load(d, up + i, lanes);
    const auto grad = Load(d, dy + i, lanes);
    const auto s = SigmoidOf(d, g);
    Store(hn::Mul(hn::Mul(grad, u), SiluSlope(d, g, s)), d, dgate + i, lanes);
    Store(hn::Mul(grad, hn::Mul(g, s)), d, dup + i, lanes);
  });
}

void SiluMulGrad(DType dtype, const void* gate, const void* up, const void* dy, void* dgate,
                 void* dup, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    SiluMulGradOf(static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<const T*>(dy),
                  static_cast<T*>(dgate), static_cast<T*>(dup), n, stream);
  });
}

template <typename T>
void ClampedSwiGluGradOf(double slope, double limit, const T* gate, const T* up, const T* dy,
                         T* dgate, T* dup, int64_t n, bool stream) {
  const Tag<T> d;
  const auto slopes = hn::Set(d, static_cast<Compute<T>>(slope));
  const auto most = hn::Set(d, static_cast<Compute<T>>(limit)), one = hn::Set(d, 1);
  ForEachVectorTo(d, dgate, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto gate_i = Load(d, gate + i, lanes), up_i = Load(d, up + i, lanes);
    const auto grad = Load(d, dy + i, lanes);
    const auto g = AtMost(gate_i, most), u = AtMost(AtLeast(up_i, hn::Neg(most)), most);
    const auto x = hn::Mul(slopes, g), s = SigmoidOf(d, x);
    // (g s(slope g))' = silu'(slope g).
    const auto by_gate = hn::Mul(hn::Mul(grad, hn::Add(u, one)), SiluSlope(d, x, s));
    const auto by_up = hn::Mul(grad, hn::Mul(g, s));
    Store(hn::IfThenElseZero(hn::Le(gate_i, most), by_gate), d, dgate + i, lanes);
    Store(hn::IfThenElseZero(hn::Le(hn::Abs(up_i), most), by_up), d, dup + i, lanes);
  });
}

void ClampedSwiGluGrad(DType dtype, double slope, double limit, const void* gate, const void* up,
                       const void* dy, void* dgate, void* dup, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    ClampedSwiGluGradOf(slope, limit, static_cast<const T*>(gate), static_cast<const T*>(up),
                        static_cast<const T*>(dy), static_cast<T*>(dgate), static_cast<T*>(dup), n,
                        stream);
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(UnaryGrad);
HWY_EXPORT(BinaryGrad);
HWY_EXPORT(SiluMulGrad);
HWY_EXPORT(ClampedSwiGluGrad);

namespace simd {

void UnaryGrad(UnaryOp op, DType dtype, const void* saved, const void* dy, void* dx, int64_t n,
               bool stream) {
  HWY_DYNAMIC_DISPATCH(UnaryGrad)(op, dtype, saved, dy, dx, n, stream);
}

void BinaryGrad(BinaryOp op, int operand, DType dtype, const void* a, const void* b, const void* dy,
                void* dx, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(BinaryGrad)(op, operand, dtype, a, b, dy, dx, n, stream);
}

void SiluMulGrad(DType dtype, const void* gate, const void* up, const void* dy, void* dgate,
                 void* dup, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(SiluMulGrad)(dtype, gate, up, dy, dgate, dup, n, stream);
}

void ClampedSwiGluGrad(DType dtype, double slope, double limit, const void* gate, const void* up,
                       const void* dy, void* dgate, void* dup, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(ClampedSwiGluGrad)
  (dtype, slope, limit, gate, up, dy, dgate, dup, n, stream);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
