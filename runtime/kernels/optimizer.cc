#include "dtensor/runtime/kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/optimizer_simd.h"

namespace dtensor::kernels {
namespace {

simd::AdamWFactors Factors(const AdamWStep& step, double grad_scale) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  return {.beta1 = step.beta1,
          .beta2 = step.beta2,
          .grad_scale = grad_scale,
          .decay = step.lr * step.weight_decay,
          .rate = step.lr / correction1,
          .v_scale = 1 / std::sqrt(correction2),
          .eps = step.eps};
}

template <typename T>
void Clip(const void* sum_of_squares, double max_norm, void* norm, void* scale) {
  const double root = std::sqrt(static_cast<double>(*static_cast<const T*>(sum_of_squares)));
  *static_cast<T*>(norm) = static_cast<T>(root);
  *static_cast<T*>(scale) =
      static_cast<T>(max_norm > 0 ? std::min(1.0, max_norm / (root + 1e-6)) : 1.0);
}

}  // namespace

absl::Status AdamW(Device& device, const AdamWStep& step, const Tensor& param, const Tensor& grad,
                   const Tensor& m, const Tensor& v, const Tensor& grad_scale) {
  const DType accumulator = AccumulatorOf(param.dtype());
  DT_CHECK(IsFloat(param.dtype()) && step.step >= 1);
  DT_CHECK(grad.dtype() == param.dtype() || grad.dtype() == accumulator);
  DT_CHECK(m.dtype() == accumulator && v.dtype() == accumulator);
  for (const Tensor* t : {&param, &grad, &m, &v}) {
    DT_CHECK(t->is_contiguous() && t->numel() == param.numel());
  }
  DT_CHECK(!grad_scale.defined() || (grad_scale.numel() == 1 && grad_scale.dtype() == accumulator));
  return device.Launch(
      "AdamW", [=, dtype = param.dtype(), grad_dtype = grad.dtype(), n = param.numel(),
                scale = grad_scale.defined() ? grad_scale.raw() : nullptr, param = param.raw(),
                grad = grad.raw(), m = m.raw(), v = v.raw()] {
        double factor = 1;
        if (scale != nullptr && accumulator == DType::kF64) {
          factor = *static_cast<const double*>(scale);
        } else if (scale != nullptr) {
          factor = *static_cast<const float*>(scale);
        }
        simd::AdamW(Factors(step, factor), dtype, param, grad_dtype, grad, m, v, n);
      });
}

absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale) {
  const DType dtype = sum_of_squares.dtype();
  DT_CHECK(dtype == DType::kF32 || dtype == DType::kF64);
  DT_CHECK(norm.dtype() == dtype && scale.dtype() == dtype);
  DT_CHECK(sum_of_squares.numel() == 1 && norm.numel() == 1 && scale.numel() == 1);
  return device.Launch("ClipScale",
                       [=, in = sum_of_squares.raw(), norm = norm.raw(), scale = scale.raw()] {
                         if (dtype == DType::kF64) return Clip<double>(in, max_norm, norm, scale);
                         Clip<float>(in, max_norm, norm, scale);
                       });
}

}  // namespace dtensor::kernels
