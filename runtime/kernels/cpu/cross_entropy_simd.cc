#include "dtensor/runtime/kernels/cpu/cross_entropy_simd.h"

#include <cmath>
#include <cstring>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/cross_entropy_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::CrossEntropyWeights;
using simd::InputRows;
using simd::RowShape;

// What is subtracted from a row: exp(-inf) is 0, whatever the largest is, except for -inf - -inf.
template <typename C>
C BaseOf(C largest) {
  return std::isinf(largest) && largest < 0 ? C{0} : largest;
}

template <typename T>
void MaxAndSumExpRow(const T* x, int64_t n, Compute<T>* stats) {
  using C = Compute<T>;
  const Tag<T> d;
  const C largest = MaxElement(d, x, n);
  const auto lowest = hn::Neg(hn::Inf(d));
  const auto max = hn::Set(d, BaseOf(largest));
  stats[0] = largest;
  stats[1] = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return ExpOf(d, hn::Sub(LoadOr(d, x + i, lanes, lowest), max));
  });
}

void MaxAndSumExp(RowShape shape, InputRows logits, int64_t width, void* stats) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < shape.rows; ++r) {
      MaxAndSumExpRow(static_cast<const T*>(logits.data) + r * logits.stride, shape.n,
                      static_cast<Compute<T>*>(stats) + width * r);
    }
  });
}

void SumBelowMax(RowShape shape, InputRows logits, int64_t width, void* stats) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    const Tag<T> d;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* x = static_cast<const T*>(logits.data) + r * logits.stride;
      Compute<T>* row = static_cast<Compute<T>*>(stats) + width * r;
      const auto max = hn::Set(d, BaseOf(row[0]));
      row[3] = SumVectors(d, shape.n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
        return hn::Sub(LoadOr(d, x + i, lanes, max), max);
      });
      row[4] = static_cast<Compute<T>>(shape.n);
    }
  });
}

template <typename T>
void GradRow(const T* x, int64_t n, int64_t target, CrossEntropyWeights weights, Compute<T> max,
             Compute<T> log_sum, Compute<T> dloss, T* dx) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto base = hn::Set(d, max), log = hn::Set(d, log_sum), grad = hn::Set(d, dloss);
  const auto each = hn::Set(d, static_cast<C>(weights.each));
  // By how much each probability exceeds the share of every class in the smoothed target.
  const auto excess = [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    return hn::Sub(ExpOf(d, hn::Sub(hn::Sub(Load(d, x + i, lanes), base), log)), each);
  };
  // Computed before the loop, which may overwrite the logits.
  const First one{1};
  const auto at_target =
      target < 0 ? hn::Zero(d)
                 : hn::Sub(excess(target, one), hn::Set(d, static_cast<C>(weights.target)));
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    Store(hn::Mul(excess(i, lanes), grad), d, dx + i, lanes);
  });
  if (target >= 0) Store(hn::Mul(at_target, grad), d, dx + target, one);
}

void CrossEntropyGrad(RowShape shape, InputRows logits, const int64_t* target,
                      CrossEntropyWeights weights, const void* max, const void* log_sum,
                      const void* dloss, int64_t width, void* dlogits) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      T* dx = static_cast<T*>(dlogits) + r * width;
      const int64_t written = target[r] == simd::kIgnored ? 0 : shape.n;
      if (written < width) {
        std::memset(static_cast<void*>(dx + written), 0, (width - written) * sizeof(T));
      }
      if (written == 0) continue;
      GradRow(static_cast<const T*>(logits.data) + r * logits.stride, shape.n, target[r], weights,
              static_cast<const C*>(max)[r], static_cast<const C*>(log_sum)[r],
              static_cast<const C*>(dloss)[r], dx);
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(MaxAndSumExp);
HWY_EXPORT(SumBelowMax);
HWY_EXPORT(CrossEntropyGrad);

namespace simd {

void MaxAndSumExp(RowShape shape, InputRows logits, int64_t width, void* stats) {
  HWY_DYNAMIC_DISPATCH(MaxAndSumExp)(shape, logits, width, stats);
}

void SumBelowMax(RowShape shape, InputRows logits, int64_t width, void* stats) {
  HWY_DYNAMIC_DISPATCH(SumBelowMax)(shape, logits, width, stats);
}

void CrossEntropyGrad(RowShape shape, InputRows logits, const int64_t* target,
                      CrossEntropyWeights weights, const void* max, const void* log_sum,
                      const void* dloss, int64_t width, void* dlogits) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyGrad)
  (shape, logits, target, weights, max, log_sum, dloss, width, dlogits);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
