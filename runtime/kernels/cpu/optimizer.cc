#include "dtensor/runtime/kernels/cpu/optimizer.h"

#include <algorithm>
#include <cmath>

#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/optimizer_simd.h"

namespace dtensor::kernels::cpu {
namespace {

double GradScale(const StepArgs& a) {
  if (a.grad_scale == nullptr) return 1;
  if (a.dtype == DType::kF64) return *static_cast<const double*>(a.grad_scale);
  return *static_cast<const float*>(a.grad_scale);
}

template <typename T>
void Clip(const ClipScaleArgs& a) {
  const double norm =
      a.factor * std::sqrt(static_cast<double>(*static_cast<const T*>(a.sum_of_squares)));
  // With the arguments in this order, std::min keeps NaN.
  const double scale = a.max_norm > 0 ? std::min(a.max_norm / (norm + 1e-6), 1.0) : 1.0;
  *static_cast<T*>(a.norm) = static_cast<T>(norm);
  *static_cast<T*>(a.scale) = static_cast<T>(a.factor * scale);
}

}  // namespace

absl::Status AdamW(Device& device, const char* kernel, const AdamWArgs& args) {
  return Launch(device, kernel, args, [](const AdamWArgs& a) {
    AdamWFactors factors = a.factors;
    factors.grad_scale = GradScale(a.step);
    simd::AdamW(factors, a);
  });
}

absl::Status Sgd(Device& device, const char* kernel, const SgdArgs& args) {
  return Launch(device, kernel, args, [](const SgdArgs& a) {
    SgdFactors factors = a.factors;
    factors.grad_scale = GradScale(a.step);
    simd::Sgd(factors, a);
  });
}

absl::Status ClipScale(Device& device, const char* kernel, const ClipScaleArgs& args) {
  return Launch(device, kernel, args, [](const ClipScaleArgs& a) {
    if (a.dtype == DType::kF64) return Clip<double>(a);
    Clip<float>(a);
  });
}

}  // namespace dtensor::kernels::cpu
