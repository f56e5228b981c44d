#include "dtensor/runtime/kernels/cpu/layer_norm_simd.h"

#include <cmath>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/layer_norm_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::InputRows;
using simd::LayerNormGradRows;
using simd::Moments;
using simd::RowShape;

// The first pass only gives the centre for the second, which restores what the sum of a long row
// lost by rounding (the corrected two-pass algorithm of Chan, Golub & LeVeque).
template <typename T>
Moments MomentsOfRow(const T* x, int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const double divisor = static_cast<double>(n > 0 ? n : 1);
  const auto load = [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA { return Load(d, x + i, lanes); };
  const C near = SumVectors(d, n, load) / static_cast<C>(divisor);
  const auto centre = hn::Set(d, near);
  constexpr int64_t kPiece = 1024;  // elements: long chains of additions lose bits
  double rest = 0, about_centre = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    auto sum = hn::Zero(d), squares = hn::Zero(d);
    const int64_t size = n - begin < kPiece ? n - begin : kPiece;
    ForEachVector(d, size, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      const auto v = hn::Sub(LoadOr(d, x + begin + i, lanes, centre), centre);
      sum = hn::Add(sum, v);
      squares = hn::MulAdd(v, v, squares);
    });
    rest += hn::GetLane(hn::SumOfLanes(d, sum));
    about_centre += hn::GetLane(hn::SumOfLanes(d, squares));
  }
  const double squares = about_centre - rest * rest / divisor;
  return {static_cast<double>(n), static_cast<double>(near) + rest / divisor,
          squares < 0 ? 0 : squares};  // NaN stays
}

void RowMoments(RowShape shape, InputRows x, Moments* moments) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      moments[r] = MomentsOfRow(static_cast<const T*>(x.data) + r * x.stride, shape.n);
    }
  });
}

template <typename T>
void LayerNormRow(const T* x, const T* weight, const T* bias, Compute<T> mean, Compute<T> rstd,
                  T* y, int64_t n, bool stream) {
  const Tag<T> d;
  const auto centre = hn::Set(d, mean), scale = hn::Set(d, rstd);
  ForEachVectorTo(d, y, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(hn::Sub(Load(d, x + i, lanes), centre), scale);
    const auto out = hn::MulAdd(xhat, Load(d, weight + i, lanes), Load(d, bias + i, lanes));
    Store(out, d, y + i, lanes);
  });
}

void LayerNorm(RowShape shape, InputRows x, const void* weight, const void* bias, double eps,
               const Moments* moments, void* y, void* mean, void* rstd) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* row = static_cast<const T*>(x.data) + r * x.stride;
      const Moments m = moments == nullptr ? MomentsOfRow(row, shape.n) : moments[r];
      const double variance = m.squares / (m.count > 0 ? m.count : 1);
      const C centre = static_cast<C>(m.mean);
      const C scale = static_cast<C>(1 / std::sqrt(variance + eps));
      LayerNormRow(row, static_cast<const T*>(weight), static_cast<const T*>(bias), centre, scale,
                   static_cast<T*>(y) + r * shape.n, shape.n, shape.stream);
      static_cast<C*>(mean)[r] = centre;
      static_cast<C*>(rstd)[r] = scale;
    }
  });
}

// The inputs for one row of a gradient.
template <typename T>
struct GradRow {
  const T *x, *weight, *dy;
  Compute<T> mean, rstd;
};

template <typename T>
GradRow<T> RowOf(const LayerNormGradRows& rows, InputRows x, InputRows dy, int64_t r) {
  return {static_cast<const T*>(x.data) + r * x.stride, static_cast<const T*>(rows.weight),
          static_cast<const T*>(dy.data) + r * dy.stride,
          static_cast<const Compute<T>*>(rows.mean)[r],
          static_cast<const Compute<T>*>(rows.rstd)[r]};
}

template <typename T>
void GradSumsOfRow(const GradRow<T>& row, int64_t n, Compute<T>* sums) {
  const Tag<T> d;
  const auto mean = hn::Set(d, row.mean), rstd = hn::Set(d, row.rstd);
  const auto scaled = [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return hn::Mul(Load(d, row.dy + i, lanes), Load(d, row.weight + i, lanes));
  };
  sums[0] = SumVectors(d, n, scaled);
  sums[1] = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(hn::Sub(Load(d, row.x + i, lanes), mean), rstd);
    return hn::Mul(scaled(i, lanes), xhat);
  });
}

void LayerNormGradSums(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                       void* sums) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      GradSumsOfRow(RowOf<T>(rows, x, dy, r), shape.n, static_cast<Compute<T>*>(sums) + 2 * r);
    }
  });
}

// mean_g, mean_dot: the means of dy * weight and of dy * weight * xhat.
template <typename T>
void LayerNormGradRow(const GradRow<T>& row, Compute<T> mean_g, Compute<T> mean_dot, T* dx,
                      Compute<T>* dweight, Compute<T>* dbias, int64_t n, bool stream) {
  const Tag<T> d;
  const auto mean = hn::Set(d, row.mean), rstd = hn::Set(d, row.rstd);
  const auto g_mean = hn::Set(d, mean_g), dot_mean = hn::Set(d, mean_dot);
  ForEachVectorTo(d, dx, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto grad = Load(d, row.dy + i, lanes);
    const auto xhat = hn::Mul(hn::Sub(Load(d, row.x + i, lanes), mean), rstd);
    const auto centred = hn::Sub(hn::Mul(grad, Load(d, row.weight + i, lanes)), g_mean);
    Store(hn::MulAdd(grad, xhat, Load(d, dweight + i, lanes)), d, dweight + i, Cached(lanes));
    Store(hn::Add(grad, Load(d, dbias + i, lanes)), d, dbias + i, Cached(lanes));
    Store(hn::Mul(rstd, hn::NegMulAdd(xhat, dot_mean, centred)), d, dx + i, lanes);
  });
}

void LayerNormGrad(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                   const void* sums, int64_t total, void* dx, void* dparameters) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    const auto* given = static_cast<const C*>(sums);
    const C count = static_cast<C>(total);
    C* const dweight = static_cast<C*>(dparameters);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const GradRow<T> row = RowOf<T>(rows, x, dy, r);
      C own[2];
      if (given == nullptr) GradSumsOfRow(row, shape.n, own);
      const C* s = given == nullptr ? own : given + 2 * r;
      LayerNormGradRow(row, s[0] / count, s[1] / count, static_cast<T*>(dx) + r * shape.n, dweight,
                       dweight + shape.n, shape.n, shape.stream);
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(RowMoments);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(LayerNormGradSums);
HWY_EXPORT(LayerNormGrad);

namespace simd {

void RowMoments(RowShape shape, InputRows x, Moments* moments) {
  HWY_DYNAMIC_DISPATCH(RowMoments)(shape, x, moments);
}

void LayerNorm(RowShape shape, InputRows x, const void* weight, const void* bias, double eps,
               const Moments* moments, void* y, void* mean, void* rstd) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(shape, x, weight, bias, eps, moments, y, mean, rstd);
}

void LayerNormGradSums(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                       void* sums) {
  HWY_DYNAMIC_DISPATCH(LayerNormGradSums)(shape, x, rows, dy, sums);
}

void LayerNormGrad(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                   const void* sums, int64_t total, void* dx, void* dparameters) {
  HWY_DYNAMIC_DISPATCH(LayerNormGrad)(shape, x, rows, dy, sums, total, dx, dparameters);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
