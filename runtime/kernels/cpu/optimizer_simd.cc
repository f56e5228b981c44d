#include "dtensor/runtime/kernels/cpu/optimizer_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/optimizer_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

template <typename T, typename G>
void AdamWOf(const AdamWFactors& f, T* param, const G* grad, Compute<T>* m, Compute<T>* v,
             int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto beta1 = hn::Set(d, static_cast<C>(f.beta1));
  const auto beta2 = hn::Set(d, static_cast<C>(f.beta2));
  const auto gain1 = hn::Set(d, static_cast<C>(1 - f.beta1));
  const auto gain2 = hn::Set(d, static_cast<C>(1 - f.beta2));
  const auto grad_scale = hn::Set(d, static_cast<C>(f.grad_scale));
  const auto decay = hn::Set(d, static_cast<C>(f.decay));
  const auto rate = hn::Set(d, static_cast<C>(f.rate));
  const auto v_scale = hn::Set(d, static_cast<C>(f.v_scale));
  const auto eps = hn::Set(d, static_cast<C>(f.eps));
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto g = hn::Mul(grad_scale, Load(d, grad + i, lanes));
    const auto m1 = hn::MulAdd(beta1, Load(d, m + i, lanes), hn::Mul(gain1, g));
    const auto v1 = hn::MulAdd(beta2, Load(d, v + i, lanes), hn::Mul(gain2, hn::Mul(g, g)));
    const auto divisor = hn::MulAdd(hn::Sqrt(v1), v_scale, eps);
    const auto step = hn::Div(hn::Mul(rate, m1), divisor);
    Store(m1, d, m + i, lanes);
    Store(v1, d, v + i, lanes);
    // Not (1 - decay) * param: in f32 that factor has lost most of a small decay.
    const auto p = Load(d, param + i, lanes);
    Store(hn::Sub(p, hn::MulAdd(decay, p, step)), d, param + i, lanes);
  });
}

void AdamW(const AdamWFactors& factors, DType dtype, void* param, DType grad_dtype,
           const void* grad, void* m, void* v, int64_t n) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    T* p = static_cast<T*>(param);
    if (grad_dtype == dtype) {
      AdamWOf(factors, p, static_cast<const T*>(grad), static_cast<C*>(m), static_cast<C*>(v), n);
    } else {
      AdamWOf(factors, p, static_cast<const C*>(grad), static_cast<C*>(m), static_cast<C*>(v), n);
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(AdamW);

namespace simd {

void AdamW(const AdamWFactors& factors, DType dtype, void* param, DType grad_dtype,
           const void* grad, void* m, void* v, int64_t n) {
  DT_DISPATCH(AdamW, dtype)(factors, dtype, param, grad_dtype, grad, m, v, n);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
