#include "dtensor/runtime/kernels/cpu/optimizer_simd.h"

#include <cstddef>
#include <type_traits>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/optimizer_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Calls fn(param, grad, master) with C++ types. `master` is null if there is none; for parameters
// that are f32 or f64 themselves its type is nullptr_t.
template <class Fn>
HWY_INLINE void VisitStep(const StepArgs& a, Fn fn) {
  VisitTarget(a.dtype, [&](auto t) {
    using T = decltype(t);
    using C = Compute<T>;
    T* const param = static_cast<T*>(a.param);
    if constexpr (std::is_same_v<T, C>) {
      fn(param, static_cast<const T*>(a.grad), nullptr);
    } else {
      const auto with_grad = [&](auto grad) {
        if (a.master == nullptr) return fn(param, grad, nullptr);
        fn(param, grad, static_cast<C*>(a.master));
      };
      if (a.grad_dtype == a.dtype) return with_grad(static_cast<const T*>(a.grad));
      with_grad(static_cast<const C*>(a.grad));
    }
  });
}

// The exact value of a parameter: its master's, or its own.
template <class D, typename T, class Lanes>
HWY_INLINE hn::Vec<D> LoadExact(D d, const T* param, std::nullptr_t, int64_t i, Lanes lanes) {
  return Load(d, param + i, lanes);
}
template <class D, typename T, class Lanes>
HWY_INLINE hn::Vec<D> LoadExact(D d, const T*, const Compute<T>* master, int64_t i, Lanes lanes) {
  return Load(d, master + i, lanes);
}
template <class D, typename T, class Lanes>
HWY_INLINE void StoreExact(hn::Vec<D> v, D d, T* param, std::nullptr_t, int64_t i, Lanes lanes) {
  Store(v, d, param + i, lanes);
}
template <class D, typename T, class Lanes>
HWY_INLINE void StoreExact(hn::Vec<D> v, D d, T* param, Compute<T>* master, int64_t i,
                           Lanes lanes) {
  Store(v, d, master + i, lanes);
  Store(v, d, param + i, lanes);
}

template <typename T, typename G, class Master>
void AdamWOf(const AdamWFactors& f, T* param, const G* grad, Master master, Compute<T>* m,
             Compute<T>* v, int64_t n) {
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
    const auto p = LoadExact(d, param, master, i, lanes);
    StoreExact(hn::Sub(p, hn::MulAdd(decay, p, step)), d, param, master, i, lanes);
  });
}

void AdamW(const AdamWFactors& factors, const AdamWArgs& a) {
  VisitStep(a.step, [&](auto* param, auto* grad, auto master) {
    using C = Compute<std::remove_pointer_t<decltype(param)>>;
    AdamWOf(factors, param, grad, master, static_cast<C*>(a.m), static_cast<C*>(a.v), a.step.n);
  });
}

template <typename T, typename G, class Master>
void SgdOf(const SgdFactors& f, T* param, const G* grad, Master master, Compute<T>* buffer,
           int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  const auto grad_scale = hn::Set(d, static_cast<C>(f.grad_scale));
  const auto decay = hn::Set(d, static_cast<C>(f.decay));
  const auto rate = hn::Set(d, static_cast<C>(f.rate));
  const auto momentum = hn::Set(d, static_cast<C>(f.momentum));
  const auto keep = hn::Set(d, static_cast<C>(f.keep));
  const auto gain = hn::Set(d, static_cast<C>(f.gain));
  ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto p = LoadExact(d, param, master, i, lanes);
    auto g = hn::MulAdd(decay, p, hn::Mul(grad_scale, Load(d, grad + i, lanes)));
    if (buffer != nullptr) {
      auto b = hn::Mul(gain, g);
      if (f.keep != 0) b = hn::MulAdd(keep, Load(d, buffer + i, lanes), b);
      Store(b, d, buffer + i, lanes);
      g = f.nesterov ? hn::MulAdd(momentum, b, g) : b;
    }
    StoreExact(hn::NegMulAdd(rate, g, p), d, param, master, i, lanes);
  });
}

void Sgd(const SgdFactors& factors, const SgdArgs& a) {
  VisitStep(a.step, [&](auto* param, auto* grad, auto master) {
    using C = Compute<std::remove_pointer_t<decltype(param)>>;
    SgdOf(factors, param, grad, master, static_cast<C*>(a.buffer), a.step.n);
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(AdamW);
HWY_EXPORT(Sgd);

namespace simd {

void AdamW(const AdamWFactors& factors, const AdamWArgs& args) {
  HWY_DYNAMIC_DISPATCH(AdamW)(factors, args);
}

void Sgd(const SgdFactors& factors, const SgdArgs& args) {
  HWY_DYNAMIC_DISPATCH(Sgd)(factors, args);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
