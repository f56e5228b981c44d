#include "dtensor/runtime/kernels/optimizer.h"

#include <cmath>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/optimizer_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/optimizer.h"

namespace dtensor::kernels {
namespace {

constexpr ByDevice<AdamWArgs> kAdamW = {.name = "AdamW", .host = cpu::AdamW};
constexpr ByDevice<ClipScaleArgs> kClipScale = {.name = "ClipScale", .host = cpu::ClipScale};

AdamWFactors Factors(const AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  return {.beta1 = step.beta1,
          .beta2 = step.beta2,
          .decay = step.lr * step.weight_decay,
          .rate = step.lr / correction1,
          .v_scale = 1 / std::sqrt(correction2),
          .eps = step.eps};
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
  const AdamWArgs args = {.factors = Factors(step),
                          .dtype = param.dtype(),
                          .grad_dtype = grad.dtype(),
                          .param = param.raw(),
                          .grad = grad.raw(),
                          .m = m.raw(),
                          .v = v.raw(),
                          .grad_scale = grad_scale.defined() ? grad_scale.raw() : nullptr,
                          .n = param.numel()};
  return kAdamW.Run(device, {args.dtype, args.grad_dtype}, args);
}

absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale) {
  const DType dtype = sum_of_squares.dtype();
  DT_CHECK(dtype == DType::kF32 || dtype == DType::kF64);
  DT_CHECK(norm.dtype() == dtype && scale.dtype() == dtype);
  DT_CHECK(sum_of_squares.numel() == 1 && norm.numel() == 1 && scale.numel() == 1);
  return kClipScale.Run(device, {dtype},
                        {dtype, max_norm, sum_of_squares.raw(), norm.raw(), scale.raw()});
}

}  // namespace dtensor::kernels
