#include "dtensor/runtime/kernels/cpu/rope_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/rope_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

using simd::TokenHeads;

template <typename T>
void RotateHead(const T* x, const Compute<T>* cos, const Compute<T>* sin, bool inverse, T* y,
                int64_t half) {
  const Tag<T> d;
  const auto sign = hn::Set(d, inverse ? -1 : 1);
  ForEachVector(d, half, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto c = Load(d, cos + i, lanes);
    const auto s = hn::Mul(sign, Load(d, sin + i, lanes));
    const auto x0 = Load(d, x + i, lanes);
    const auto x1 = Load(d, x + half + i, lanes);
    Store(hn::NegMulAdd(x1, s, hn::Mul(x0, c)), d, y + i, lanes);
    Store(hn::MulAdd(x0, s, hn::Mul(x1, c)), d, y + half + i, lanes);
  });
}

void RotateHeads(TokenHeads shape, const void* x, const void* cos, const void* sin, bool inverse,
                 void* y) {
  VisitTarget(shape.dtype, [&](auto t) {
    using T = decltype(t);
    using Angles = const Compute<T>*;
    for (int64_t h = 0; h < shape.heads; ++h) {
      RotateHead(static_cast<const T*>(x) + h * shape.x_stride, static_cast<Angles>(cos),
                 static_cast<Angles>(sin), inverse, static_cast<T*>(y) + h * 2 * shape.half,
                 shape.half);
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(RotateHeads);

namespace simd {

void RotateHeads(TokenHeads shape, const void* x, const void* cos, const void* sin, bool inverse,
                 void* y) {
  HWY_DYNAMIC_DISPATCH(RotateHeads)(shape, x, cos, sin, inverse, y);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
