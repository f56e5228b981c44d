#include "dtensor/runtime/kernels/cpu/optimizer.h"

#include <algorithm>
#include <cmath>

#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/optimizer_simd.h"

namespace dtensor::kernels::cpu {
namespace {

double GradScale(const AdamWArgs& a) {
  if (a.grad_scale == nullptr) return 1;
  if (a.dtype == DType::kF64) return *static_cast<const double*>(a.grad_scale);
  return *static_cast<const float*>(a.grad_scale);
}

template <typename T>
void Clip(const ClipScaleArgs& a) {
  const double root = std::sqrt(static_cast<double>(*static_cast<const T*>(a.sum_of_squares)));
  *static_cast<T*>(a.norm) = static_cast<T>(root);
  *static_cast<T*>(a.scale) =
      static_cast<T>(a.max_norm > 0 ? std::min(1.0, a.max_norm / (root + 1e-6)) : 1.0);
}

}  // namespace

absl::Status AdamW(Device& device, const char* kernel, const AdamWArgs& args) {
  return Launch(device, kernel, args, [](const AdamWArgs& a) {
    AdamWFactors factors = a.factors;
    factors.grad_scale = GradScale(a);
    simd::AdamW(factors, a.dtype, a.param, a.grad_dtype, a.grad, a.m, a.v, a.n);
  });
}

absl::Status ClipScale(Device& device, const char* kernel, const ClipScaleArgs& args) {
  return Launch(device, kernel, args, [](const ClipScaleArgs& a) {
    if (a.dtype == DType::kF64) return Clip<double>(a);
    Clip<float>(a);
  });
}

}  // namespace dtensor::kernels::cpu
