#include "dtensor/runtime/kernels/cpu/elementwise_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/elementwise_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Calls map(op) with the function of vectors that computes `op`.
template <class Map>
void WithBinaryOp(BinaryOp op, Map map) {
  switch (op) {
    case BinaryOp::kAdd:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA { return hn::Add(a, b); });
    case BinaryOp::kSub:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA { return hn::Sub(a, b); });
    case BinaryOp::kMul:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA { return hn::Mul(a, b); });
    case BinaryOp::kDiv:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA { return hn::Div(a, b); });
    // A NaN on either side is the result.
    case BinaryOp::kMax:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA {
        return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
      });
    case BinaryOp::kMin:
      return map([](auto, auto a, auto b) DT_VECTOR_LAMBDA {
        return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
      });
  }
}

template <class Map>
void WithUnaryOp(UnaryOp op, Map map) {
  switch (op) {
    case UnaryOp::kCopy:
    case UnaryOp::kNot:
      return;
    case UnaryOp::kNeg:
      return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Neg(x); });
    case UnaryOp::kExp:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return ExpOf(d, x); });
    case UnaryOp::kLog:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return LogOf(d, x); });
    case UnaryOp::kSqrt:
      return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Sqrt(x); });
    case UnaryOp::kRsqrt:
      return map([](auto d, auto x)
                     DT_VECTOR_LAMBDA { return hn::Div(hn::Set(d, 1), hn::Sqrt(x)); });
    case UnaryOp::kRecip:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return hn::Div(hn::Set(d, 1), x); });
    case UnaryOp::kSquare:
      return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Mul(x, x); });
    case UnaryOp::kAbs:
      return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Abs(x); });
    case UnaryOp::kSilu:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return hn::Mul(x, SigmoidOf(d, x)); });
    case UnaryOp::kRelu:
      return map([](auto d, auto x)
                     DT_VECTOR_LAMBDA { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x); });
    case UnaryOp::kSigmoid:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return SigmoidOf(d, x); });
    case UnaryOp::kTanh:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return TanhOf(d, x); });
    case UnaryOp::kGelu:
      return map([](auto d, auto x) DT_VECTOR_LAMBDA { return hn::Mul(x, NormalAt(d, x).cdf); });
    case UnaryOp::kGeluTanh:
      return map([](auto d, auto x)
                     DT_VECTOR_LAMBDA { return hn::Mul(x, SigmoidOf(d, GeluTanhArgument(d, x))); });
  }
}

void Binary(BinaryOp op, DType dtype, const void* a, const void* b, void* out, int64_t n,
            bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithBinaryOp(op, [&](auto f) {
      Map(static_cast<T*>(out), n, stream, f, static_cast<const T*>(a), static_cast<const T*>(b));
    });
  });
}

void Unary(UnaryOp op, DType dtype, const void* a, void* out, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithUnaryOp(op,
                [&](auto f) { Map(static_cast<T*>(out), n, stream, f, static_cast<const T*>(a)); });
  });
}

void Affine(DType dtype, const void* a, double scale, double shift, void* out, int64_t n,
            bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const Tag<T> d;
    const auto scales = hn::Set(d, static_cast<Compute<T>>(scale));
    const auto shifts = hn::Set(d, static_cast<Compute<T>>(shift));
    const auto f = [=](auto, auto x)
                       DT_VECTOR_LAMBDA { return hn::Add(hn::Mul(x, scales), shifts); };
    Map(static_cast<T*>(out), n, stream, f, static_cast<const T*>(a));
  });
}

template <typename From, typename To>
void ConvertOf(const void* a, void* out, int64_t n, bool stream) {
  Map(
      static_cast<To*>(out), n, stream, [](auto, auto x) DT_VECTOR_LAMBDA { return x; },
      static_cast<const From*>(a));
}

void Convert(DType from, const void* a, DType to, void* out, int64_t n, bool stream) {
  if (from == DType::kF32) {
    if (to == DType::kBF16) return ConvertOf<float, BFloat16>(a, out, n, stream);
    return ConvertOf<float, Float16>(a, out, n, stream);
  }
  if (from == DType::kBF16) {
    if (to == DType::kF32) return ConvertOf<BFloat16, float>(a, out, n, stream);
    return ConvertOf<BFloat16, Float16>(a, out, n, stream);
  }
  if (to == DType::kF32) return ConvertOf<Float16, float>(a, out, n, stream);
  ConvertOf<Float16, BFloat16>(a, out, n, stream);
}

void SiluMul(DType dtype, const void* gate, const void* up, void* y, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const auto f = [](auto d, auto g, auto u)
                       DT_VECTOR_LAMBDA { return hn::Mul(hn::Mul(g, SigmoidOf(d, g)), u); };
    Map(static_cast<T*>(y), n, stream, f, static_cast<const T*>(gate), static_cast<const T*>(up));
  });
}

void ClampedSwiGlu(DType dtype, double slope, double limit, const void* gate, const void* up,
                   void* y, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const Tag<T> tag;
    const auto slopes = hn::Set(tag, static_cast<Compute<T>>(slope));
    const auto most = hn::Set(tag, static_cast<Compute<T>>(limit));
    const auto f = [=](auto d, auto gate, auto up) DT_VECTOR_LAMBDA {
      const auto g = AtMost(gate, most), u = AtMost(AtLeast(up, hn::Neg(most)), most);
      return hn::Mul(hn::Mul(g, SigmoidOf(d, hn::Mul(slopes, g))), hn::Add(u, hn::Set(d, 1)));
    };
    Map(static_cast<T*>(y), n, stream, f, static_cast<const T*>(gate), static_cast<const T*>(up));
  });
}

template <typename T>
void AddNOf(const void* const* in, int terms, T* out, int64_t n, bool stream) {
  const Tag<T> d;
  const auto load = [&](int k, int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return Load(d, static_cast<const T*>(in[k]) + i, lanes);
  };
  ForEachVectorTo(d, out, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    auto sum = load(0, i, lanes);
    for (int k = 1; k < terms; ++k) sum = hn::Add(sum, load(k, i, lanes));
    Store(sum, d, out + i, lanes);
  });
}

void AddN(DType dtype, const void* const* in, int terms, void* out, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) { AddNOf(in, terms, static_cast<decltype(t)*>(out), n, stream); });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Binary);
HWY_EXPORT(Unary);
HWY_EXPORT(Affine);
HWY_EXPORT(Convert);
HWY_EXPORT(SiluMul);
HWY_EXPORT(ClampedSwiGlu);
HWY_EXPORT(AddN);

namespace simd {

void Binary(BinaryOp op, DType dtype, const void* a, const void* b, void* out, int64_t n,
            bool stream) {
  HWY_DYNAMIC_DISPATCH(Binary)(op, dtype, a, b, out, n, stream);
}

void Unary(UnaryOp op, DType dtype, const void* a, void* out, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(Unary)(op, dtype, a, out, n, stream);
}

void Affine(DType dtype, const void* a, double scale, double shift, void* out, int64_t n,
            bool stream) {
  HWY_DYNAMIC_DISPATCH(Affine)(dtype, a, scale, shift, out, n, stream);
}

void Convert(DType from, const void* a, DType to, void* out, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(Convert)(from, a, to, out, n, stream);
}

void SiluMul(DType dtype, const void* gate, const void* up, void* y, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(dtype, gate, up, y, n, stream);
}

void ClampedSwiGlu(DType dtype, double slope, double limit, const void* gate, const void* up,
                   void* y, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(ClampedSwiGlu)(dtype, slope, limit, gate, up, y, n, stream);
}

void AddN(DType dtype, const void* const* in, int terms, void* out, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(AddN)(dtype, in, terms, out, n, stream);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
