#include "dtensor/runtime/kernels/cpu/norm_simd.h"

#include <cmath>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/norm_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::InputRows;
using simd::RowShape;

template <typename T>
Compute<T> SquaresOfRow(const T* x, int64_t n) {
  const Tag<T> d;
  return SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto v = Load(d, x + i, lanes);
    return hn::Mul(v, v);
  });
}

void RowSquares(RowShape shape, InputRows x, void* squares) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      static_cast<Compute<T>*>(squares)[r] =
          SquaresOfRow(static_cast<const T*>(x.data) + r * x.stride, shape.n);
    }
  });
}

template <typename T>
void RmsNormRow(const T* x, const T* weight, Compute<T> rstd, T* y, int64_t n, bool stream) {
  const Tag<T> d;
  const auto scale = hn::Set(d, rstd);
  ForEachVectorTo(d, y, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(Load(d, x + i, lanes), scale);
    Store(hn::Mul(xhat, Load(d, weight + i, lanes)), d, y + i, lanes);
  });
}

void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, const void* squares,
             int64_t total, void* y, void* rstd) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    const auto* given = static_cast<const C*>(squares);
    const C count = static_cast<C>(total > 0 ? total : 1);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* row = static_cast<const T*>(x.data) + r * x.stride;
      const C sum = given == nullptr ? SquaresOfRow(row, shape.n) : given[r];
      const C scale = C{1} / std::sqrt(sum / count + static_cast<C>(eps));
      RmsNormRow(row, static_cast<const T*>(weight), scale, static_cast<T*>(y) + r * shape.n,
                 shape.n, shape.stream);
      static_cast<C*>(rstd)[r] = scale;
    }
  });
}

template <typename T>
Compute<T> GradDotOfRow(const T* x, const T* weight, const T* dy, int64_t n) {
  const Tag<T> d;
  return SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto scaled = hn::Mul(Load(d, dy + i, lanes), Load(d, weight + i, lanes));
    return hn::Mul(scaled, Load(d, x + i, lanes));
  });
}

void RmsNormGradDots(RowShape shape, InputRows x, const void* weight, InputRows dy, void* dots) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      static_cast<Compute<T>*>(dots)[r] =
          GradDotOfRow(static_cast<const T*>(x.data) + r * x.stride, static_cast<const T*>(weight),
                       static_cast<const T*>(dy.data) + r * dy.stride, shape.n);
    }
  });
}

// `mean_dot`: the mean of dy * weight * xhat.
template <typename T>
void RmsNormGradRow(const T* x, const T* weight, Compute<T> rstd, const T* dy, Compute<T> mean_dot,
                    T* dx, Compute<T>* dweight, int64_t n, bool stream) {
  const Tag<T> d;
  const auto scale = hn::Set(d, rstd), mean = hn::Set(d, mean_dot);
  ForEachVectorTo(d, dx, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto grad = Load(d, dy + i, lanes);
    const auto xhat = hn::Mul(Load(d, x + i, lanes), scale);
    const auto scaled = hn::Mul(grad, Load(d, weight + i, lanes));
    Store(hn::MulAdd(grad, xhat, Load(d, dweight + i, lanes)), d, dweight + i, Cached(lanes));
    Store(hn::Mul(scale, hn::NegMulAdd(xhat, mean, scaled)), d, dx + i, lanes);
  });
}

void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 const void* dots, int64_t total, void* dx, void* dweight) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    const auto* given = static_cast<const C*>(dots);
    const auto* w = static_cast<const T*>(weight);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* row = static_cast<const T*>(x.data) + r * x.stride;
      const T* grad = static_cast<const T*>(dy.data) + r * dy.stride;
      const C scale = static_cast<const C*>(rstd)[r];
      const C dot = given == nullptr ? GradDotOfRow(row, w, grad, shape.n) : given[r];
      RmsNormGradRow(row, w, scale, grad, dot * scale / static_cast<C>(total),
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

HWY_EXPORT(RowSquares);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormGradDots);
HWY_EXPORT(RmsNormGrad);

namespace simd {

void RowSquares(RowShape shape, InputRows x, void* squares) {
  HWY_DYNAMIC_DISPATCH(RowSquares)(shape, x, squares);
}

void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, const void* squares,
             int64_t total, void* y, void* rstd) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(shape, x, weight, eps, squares, total, y, rstd);
}

void RmsNormGradDots(RowShape shape, InputRows x, const void* weight, InputRows dy, void* dots) {
  HWY_DYNAMIC_DISPATCH(RmsNormGradDots)(shape, x, weight, dy, dots);
}

void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 const void* dots, int64_t total, void* dx, void* dweight) {
  HWY_DYNAMIC_DISPATCH(RmsNormGrad)(shape, x, weight, rstd, dy, dots, total, dx, dweight);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
