#include "dtensor/runtime/kernels/cpu/pow_simd.h"

#include <cmath>

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/pow_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "dtensor/runtime/kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Calls map(f) with f(d, x) = x^exponent.
template <class Map>
void WithPower(double exponent, Map map) {
  if (exponent == 0) return map([](auto d, auto) DT_VECTOR_LAMBDA { return hn::Set(d, 1); });
  if (exponent == 1) return map([](auto, auto x) DT_VECTOR_LAMBDA { return x; });
  if (exponent == 2) return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Mul(x, x); });
  if (exponent == -1)
    return map([](auto d, auto x) DT_VECTOR_LAMBDA { return hn::Div(hn::Set(d, 1), x); });
  if (exponent == 0.5) return map([](auto, auto x) DT_VECTOR_LAMBDA { return hn::Sqrt(x); });
  if (exponent == -0.5) {
    return map([](auto d, auto x) DT_VECTOR_LAMBDA { return hn::Div(hn::Set(d, 1), hn::Sqrt(x)); });
  }
  map([exponent](auto d, auto x) DT_VECTOR_LAMBDA {
    using T = hn::TFromD<decltype(d)>;
    return MapLanes(d, x, [exponent](T lane) {
      return static_cast<T>(std::pow(static_cast<double>(lane), exponent));
    });
  });
}

void Pow(DType dtype, const void* a, double exponent, void* out, int64_t n, bool stream) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithPower(exponent,
              [&](auto f) { Map(static_cast<T*>(out), n, stream, f, static_cast<const T*>(a)); });
  });
}

void PowGrad(DType dtype, const void* x, double exponent, const void* dy, void* dx, int64_t n,
             bool stream) {
  const double lower = exponent - 1;
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    WithPower(lower, [&](auto power) {
      const auto f = [&](auto d, auto x, auto dy) DT_VECTOR_LAMBDA {
        return hn::Mul(dy, hn::Mul(hn::Set(d, static_cast<Compute<T>>(exponent)), power(d, x)));
      };
      Map(static_cast<T*>(dx), n, stream, f, static_cast<const T*>(x), static_cast<const T*>(dy));
    });
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Pow);
HWY_EXPORT(PowGrad);

namespace simd {

void Pow(DType dtype, const void* a, double exponent, void* out, int64_t n, bool stream) {
  HWY_DYNAMIC_DISPATCH(Pow)(dtype, a, exponent, out, n, stream);
}

void PowGrad(DType dtype, const void* x, double exponent, const void* dy, void* dx, int64_t n,
             bool stream) {
  HWY_DYNAMIC_DISPATCH(PowGrad)(dtype, x, exponent, dy, dx, n, stream);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
