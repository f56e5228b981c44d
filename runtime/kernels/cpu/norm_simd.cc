#include "dtensor/runtime/kernels/cpu/norm_simd.h"

#include <cmath>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/norm_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::InputRows;
using simd::RowShape;

// The largest element is subtracted, so that exp cannot overflow. f32 and f64 keep exp(x - max) in
// y; for narrower types it is computed twice, so that it is rounded once.
template <typename T>
void SoftmaxRow(const T* x, T* y, int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const C largest = MaxElement(d, x, n);
  const auto max = hn::Set(d, std::isinf(largest) && largest < 0 ? C{0} : largest);
  const auto exps = [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return ExpOf(d, hn::Sub(LoadOr(d, x + i, lanes, hn::Neg(hn::Inf(d))), max));
  };
  const C sum = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto e = exps(i, lanes);
    if constexpr (!kIsHalf<T>) Store(e, d, y + i, lanes);
    return e;
  });
  const auto scale = hn::Set(d, sum == 0 ? C{0} : C{1} / sum);
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    if constexpr (kIsHalf<T>) {
      Store(hn::Mul(exps(i, lanes), scale), d, y + i, lanes);
    } else {
      Store(hn::Mul(Load(d, y + i, lanes), scale), d, y + i, lanes);
    }
  });
}

void Softmax(RowShape shape, InputRows x, void* y) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      SoftmaxRow(static_cast<const T*>(x.data) + r * x.stride, static_cast<T*>(y) + r * shape.n,
                 shape.n);
    }
  });
}

template <typename T>
void SoftmaxGradRow(const T* y, const T* dy, T* dx, int64_t n) {
  const Tag<T> d;
  const auto sum = hn::Set(d, SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
                             return hn::Mul(Load(d, y + i, lanes), Load(d, dy + i, lanes));
                           }));
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto centred = hn::Sub(Load(d, dy + i, lanes), sum);
    Store(hn::Mul(Load(d, y + i, lanes), centred), d, dx + i, lanes);
  });
}

void SoftmaxGrad(RowShape shape, InputRows y, InputRows dy, void* dx) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      SoftmaxGradRow(static_cast<const T*>(y.data) + r * y.stride,
                     static_cast<const T*>(dy.data) + r * dy.stride,
                     static_cast<T*>(dx) + r * shape.n, shape.n);
    }
  });
}

template <typename T>
Compute<T> RmsNormRow(const T* x, const T* weight, Compute<T> eps, T* y, int64_t n, bool stream) {
  using C = Compute<T>;
  const Tag<T> d;
  const C squares = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto v = Load(d, x + i, lanes);
    return hn::Mul(v, v);
  });
  const C rstd = C{1} / std::sqrt(squares / static_cast<C>(n > 0 ? n : 1) + eps);
  const auto scale = hn::Set(d, rstd);
  ForEachVectorTo(d, y, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(Load(d, x + i, lanes), scale);
    Store(hn::Mul(xhat, Load(d, weight + i, lanes)), d, y + i, lanes);
  });
  return rstd;
}

void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, void* y, void* rstd) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      static_cast<C*>(rstd)[r] =
          RmsNormRow(static_cast<const T*>(x.data) + r * x.stride, static_cast<const T*>(weight),
                     static_cast<C>(eps), static_cast<T*>(y) + r * shape.n, shape.n, shape.stream);
    }
  });
}

template <typename T>
void RmsNormGradRow(const T* x, const T* weight, Compute<T> rstd, const T* dy, T* dx,
                    Compute<T>* dweight, int64_t n, bool stream) {
  using C = Compute<T>;
  const Tag<T> d;
  const C dot = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto scaled = hn::Mul(Load(d, dy + i, lanes), Load(d, weight + i, lanes));
    return hn::Mul(scaled, Load(d, x + i, lanes));
  });
  const auto scale = hn::Set(d, rstd);
  const auto mean = hn::Set(d, dot * rstd / static_cast<C>(n));  // of dy * weight * xhat
  ForEachVectorTo(d, dx, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto grad = Load(d, dy + i, lanes);
    const auto xhat = hn::Mul(Load(d, x + i, lanes), scale);
    const auto scaled = hn::Mul(grad, Load(d, weight + i, lanes));
    Store(hn::MulAdd(grad, xhat, Load(d, dweight + i, lanes)), d, dweight + i, Cached(lanes));
    Store(hn::Mul(scale, hn::NegMulAdd(xhat, mean, scaled)), d, dx + i, lanes);
  });
}

void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 void* dx, void* dweight) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      RmsNormGradRow(static_cast<const T*>(x.data) + r * x.stride, static_cast<const T*>(weight),
                     static_cast<const C*>(rstd)[r], static_cast<const T*>(dy.data) + r * dy.stride,
                     static_cast<T*>(dx) + r * shape.n, static_cast<C*>(dweight), shape.n,
                     shape.stream);
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Softmax);
HWY_EXPORT(SoftmaxGrad);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormGrad);

namespace simd {

void Softmax(RowShape shape, InputRows x, void* y) {
  DT_DISPATCH(Softmax, shape.dtype)(shape, x, y);
}

void SoftmaxGrad(RowShape shape, InputRows y, InputRows dy, void* dx) {
  DT_DISPATCH(SoftmaxGrad, shape.dtype)(shape, y, dy, dx);
}

void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, void* y, void* rstd) {
  DT_DISPATCH(RmsNorm, shape.dtype)(shape, x, weight, eps, y, rstd);
}

void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 void* dx, void* dweight) {
  DT_DISPATCH(RmsNormGrad, shape.dtype)(shape, x, weight, rstd, dy, dx, dweight);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
