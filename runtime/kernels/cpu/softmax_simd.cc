#include "dtensor/runtime/kernels/cpu/softmax_simd.h"

#include <cmath>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/softmax_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::InputRows;
using simd::RowShape;

// The value to subtract from a row whose largest element is `largest`.
template <typename C>
C Shift(C largest) {
  return std::isinf(largest) && largest < 0 ? C{0} : largest;
}

// The largest element is subtracted, so that exp cannot overflow. f32 and f64 keep exp(x - max) in
// y; for narrower types it is computed twice, so that it is rounded once.
template <typename T>
void SoftmaxRow(const T* x, T* y, int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto max = hn::Set(d, Shift(MaxElement(d, x, n)));
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

template <typename T>
void SoftmaxRowFromStats(const T* x, Compute<T> largest, Compute<T> sum, T* y, int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto max = hn::Set(d, Shift(largest));
  const auto scale = hn::Set(d, sum == 0 ? C{0} : C{1} / sum);
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    Store(hn::Mul(ExpOf(d, hn::Sub(Load(d, x + i, lanes), max)), scale), d, y + i, lanes);
  });
}

// Computes (x - max) - log sum: both terms are small even if x is not.
template <typename T>
void LogSoftmaxRowFromStats(const T* x, Compute<T> largest, Compute<T> sum, T* y, int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto max = hn::Set(d, Shift(largest)), log = hn::Set(d, sum == 0 ? C{0} : std::log(sum));
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    Store(hn::Sub(hn::Sub(Load(d, x + i, lanes), max), log), d, y + i, lanes);
  });
}

template <typename T>
void LogSoftmaxRow(const T* x, T* y, int64_t n) {
  const Tag<T> d;
  const Compute<T> largest = MaxElement(d, x, n);
  const auto max = hn::Set(d, Shift(largest));
  const Compute<T> sum = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return ExpOf(d, hn::Sub(LoadOr(d, x + i, lanes, hn::Neg(hn::Inf(d))), max));
  });
  LogSoftmaxRowFromStats(x, largest, sum, y, n);
}

void Softmax(SoftmaxForm form, RowShape shape, InputRows x, void* y) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    const auto row = form == SoftmaxForm::kLog ? &LogSoftmaxRow<T> : &SoftmaxRow<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      row(static_cast<const T*>(x.data) + r * x.stride, static_cast<T*>(y) + r * shape.n, shape.n);
    }
  });
}

void SoftmaxFromStats(SoftmaxForm form, RowShape shape, InputRows x, const void* stats, void* y) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    const auto* s = static_cast<const Compute<T>*>(stats);
    const auto row =
        form == SoftmaxForm::kLog ? &LogSoftmaxRowFromStats<T> : &SoftmaxRowFromStats<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      row(static_cast<const T*>(x.data) + r * x.stride, s[2 * r], s[2 * r + 1],
          static_cast<T*>(y) + r * shape.n, shape.n);
    }
  });
}

template <typename T>
Compute<T> GradSumOfRow(SoftmaxForm form, const T* y, const T* dy, int64_t n) {
  const Tag<T> d;
  if (form == SoftmaxForm::kLog) {
    return SumVectors(
        d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA { return Load(d, dy + i, lanes); });
  }
  return SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return hn::Mul(Load(d, y + i, lanes), Load(d, dy + i, lanes));
  });
}

void SoftmaxGradSums(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, void* sums) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      static_cast<Compute<T>*>(sums)[r] =
          GradSumOfRow(form, static_cast<const T*>(y.data) + r * y.stride,
                       static_cast<const T*>(dy.data) + r * dy.stride, shape.n);
    }
  });
}

template <typename T>
void SoftmaxGradRow(const T* y, const T* dy, Compute<T> row_sum, T* dx, int64_t n) {
  const Tag<T> d;
  const auto sum = hn::Set(d, row_sum);
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto centred = hn::Sub(Load(d, dy + i, lanes), sum);
    Store(hn::Mul(Load(d, y + i, lanes), centred), d, dx + i, lanes);
  });
}

template <typename T>
void LogSoftmaxGradRow(const T* y, const T* dy, Compute<T> row_sum, T* dx, int64_t n) {
  const Tag<T> d;
  const auto sum = hn::Set(d, row_sum);
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto p = ExpOf(d, Load(d, y + i, lanes));
    Store(hn::NegMulAdd(p, sum, Load(d, dy + i, lanes)), d, dx + i, lanes);
  });
}

void SoftmaxGrad(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, const void* sums,
                 void* dx) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    const auto* given = static_cast<const Compute<T>*>(sums);
    const auto row = form == SoftmaxForm::kLog ? &LogSoftmaxGradRow<T> : &SoftmaxGradRow<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* y_row = static_cast<const T*>(y.data) + r * y.stride;
      const T* dy_row = static_cast<const T*>(dy.data) + r * dy.stride;
      row(y_row, dy_row, given == nullptr ? GradSumOfRow(form, y_row, dy_row, shape.n) : given[r],
          static_cast<T*>(dx) + r * shape.n, shape.n);
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
HWY_EXPORT(SoftmaxFromStats);
HWY_EXPORT(SoftmaxGradSums);
HWY_EXPORT(SoftmaxGrad);

namespace simd {

void Softmax(SoftmaxForm form, RowShape shape, InputRows x, void* y) {
  HWY_DYNAMIC_DISPATCH(Softmax)(form, shape, x, y);
}

void SoftmaxFromStats(SoftmaxForm form, RowShape shape, InputRows x, const void* stats, void* y) {
  HWY_DYNAMIC_DISPATCH(SoftmaxFromStats)(form, shape, x, stats, y);
}

void SoftmaxGradSums(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, void* sums) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradSums)(form, shape, y, dy, sums);
}

void SoftmaxGrad(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, const void* sums,
                 void* dx) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGrad)(form, shape, y, dy, sums, dx);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
