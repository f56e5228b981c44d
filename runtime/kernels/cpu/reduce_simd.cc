#include "dtensor/runtime/kernels/cpu/reduce_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/reduce_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Calls reduce(identity, f) with the function of vectors that computes `op`.
template <class D, class Reduce>
void WithReduceOp(D d, ReduceOp op, Reduce reduce) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce(hn::Zero(d), [](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Add(a, b); });
    case ReduceOp::kProduct:
      return reduce(hn::Set(d, 1), [](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Mul(a, b); });
    case ReduceOp::kMax:
      return reduce(hn::Neg(hn::Inf(d)), [](auto a, auto b) DT_VECTOR_LAMBDA {
        return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
      });
    case ReduceOp::kMin:
      return reduce(hn::Inf(d), [](auto a, auto b) DT_VECTOR_LAMBDA {
        return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
      });
  }
}

// Combines all lanes of v with f: halves with halves, which takes few steps.
template <class D, class F>
hn::TFromD<D> FoldLanes(D d, hn::Vec<D> v, F f) {
  const hn::CappedTag<hn::TFromD<D>, 1> one;
  HWY_ALIGN hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  hn::Store(v, d, lanes);
  for (size_t half = hn::Lanes(d) / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      const auto a = hn::Load(one, lanes + i);
      const auto b = hn::Load(one, lanes + half + i);
      hn::Store(f(a, b), one, lanes + i);
    }
  }
  return lanes[0];
}

void ReduceRow(ReduceOp op, DType dtype, const void* x, int64_t n, void* result) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const Tag<T> d;
    const T* row = static_cast<const T*>(x);
    WithReduceOp(d, op, [&](auto identity, auto f) {
      const auto load = [&](int64_t i, auto lanes)
                            DT_VECTOR_LAMBDA { return LoadOr(d, row + i, lanes, identity); };
      *static_cast<Compute<T>*>(result) = FoldLanes(d, FoldVectors(d, n, identity, f, load), f);
    });
  });
}

void ReduceInto(ReduceOp op, DType dtype, const void* x, void* acc, int64_t n) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const Tag<T> d;
    const T* row = static_cast<const T*>(x);
    Compute<T>* sums = static_cast<Compute<T>*>(acc);
    WithReduceOp(d, op, [&](auto, auto f) {
      ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
        Store(f(Load(d, sums + i, lanes), Load(d, row + i, lanes)), d, sums + i, lanes);
      });
    });
  });
}

double SumOfSquares(DType dtype, const void* x, int64_t n) {
  double sum = 0;
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    const hn::ScalableTag<double> d;
    const T* row = static_cast<const T*>(x);
    sum = SumVectors(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      const auto v = Load(d, row + i, lanes);
      return hn::Mul(v, v);
    });
  });
  return sum;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(ReduceRow);
HWY_EXPORT(ReduceInto);
HWY_EXPORT(SumOfSquares);

namespace simd {

void ReduceRow(ReduceOp op, DType dtype, const void* x, int64_t n, void* result) {
  HWY_DYNAMIC_DISPATCH(ReduceRow)(op, dtype, x, n, result);
}

void ReduceInto(ReduceOp op, DType dtype, const void* x, void* acc, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ReduceInto)(op, dtype, x, acc, n);
}

double SumOfSquares(DType dtype, const void* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(dtype, x, n);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
