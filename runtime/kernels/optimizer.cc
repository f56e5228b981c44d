#include "dtensor/runtime/kernels/optimizer.h"

#include <cmath>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/arguments/optimizer_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/optimizer.h"
#include "dtensor/runtime/kernels/cuda/optimizer.h"

namespace dtensor::kernels {
namespace {

// Parameters and states are both read and written.
double BytesOf(const StepArgs& step, double states) {
  const auto n = static_cast<double>(step.n);
  const DType accumulator = AccumulatorOf(step.dtype);
  const double wide = states + (step.has_master ? 1 : 0);
  return Bytes(2 * n, step.dtype) + Bytes(n, step.grad_dtype) + Bytes(2 * n * wide, accumulator);
}

KernelWork WorkOf(const AdamWArgs& args) { return {.bytes = BytesOf(args.step, 2)}; }

KernelWork WorkOf(const SgdArgs& args) {
  return {.bytes = BytesOf(args.step, args.factors.momentum == 0 ? 0 : 1)};
}

KernelWork WorkOf(const ClipScaleArgs& args) { return {.bytes = Bytes(3, args.dtype)}; }

constexpr ByDevice<AdamWArgs> kAdamW = {
    .name = "AdamW", .host = cpu::AdamW, .cuda = DT_ON_CUDA(cuda::AdamW), .work = WorkOf};
constexpr ByDevice<SgdArgs> kSgd = {
    .name = "Sgd", .host = cpu::Sgd, .cuda = DT_ON_CUDA(cuda::Sgd), .work = WorkOf};
constexpr ByDevice<ClipScaleArgs> kClipScale = {.name = "ClipScale",
                                                .host = cpu::ClipScale,
                                                .cuda = DT_ON_CUDA(cuda::ClipScale),
                                                .work = WorkOf};

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

SgdFactors Factors(const SgdStep& step) {
  return {.rate = step.lr,
          .decay = step.weight_decay,
          .momentum = step.momentum,
          .keep = step.first ? 0 : step.momentum,
          .gain = step.first ? 1 : 1 - step.dampening,
          .nesterov = step.nesterov};
}

// Whether `tensor`, which should have type `dtype`, fits the parameter of its step.
bool IsLike(const Tensor& tensor, const Tensor& param, DType dtype) {
  return tensor.dtype() == dtype && tensor.is_contiguous() && tensor.numel() == param.numel();
}

StepArgs MakeStepArgs(const Tensor& param, const Tensor& grad, const Tensor& grad_scale,
                      const Tensor& master) {
  const DType dtype = param.dtype(), accumulator = AccumulatorOf(dtype);
  DT_CHECK(IsFloat(dtype) && IsLike(param, param, dtype));
  DT_CHECK(IsLike(grad, param, dtype) || IsLike(grad, param, accumulator));
  DT_CHECK(!grad_scale.defined() || (grad_scale.numel() == 1 && grad_scale.dtype() == accumulator));
  DT_CHECK(!master.defined() || (dtype != accumulator && IsLike(master, param, accumulator)));
  return {.dtype = dtype,
          .grad_dtype = grad.dtype(),
          .param = param.raw(),
          .grad = grad.raw(),
          .grad_scale = grad_scale.defined() ? grad_scale.raw() : nullptr,
          .master = master.defined() ? master.raw() : nullptr,
          .has_master = master.defined(),
          .n = param.numel()};
}

}  // namespace

absl::Status AdamW(Device& device, const AdamWStep& step, const Tensor& param, const Tensor& grad,
                   const Tensor& m, const Tensor& v, const Tensor& grad_scale,
                   const Tensor& master) {
  const DType accumulator = AccumulatorOf(param.dtype());
  DT_CHECK(step.step >= 1 && IsLike(m, param, accumulator) && IsLike(v, param, accumulator));
  const AdamWArgs args = {.factors = Factors(step),
                          .step = MakeStepArgs(param, grad, grad_scale, master),
                          .m = m.raw(),
                          .v = v.raw()};
  return kAdamW.Run(device, {args.step.dtype, args.step.grad_dtype}, args);
}

absl::Status Sgd(Device& device, const SgdStep& step, const Tensor& param, const Tensor& grad,
                 const Tensor& buffer, const Tensor& grad_scale, const Tensor& master) {
  DT_CHECK(buffer.defined() == (step.momentum != 0));
  DT_CHECK(!buffer.defined() || IsLike(buffer, param, AccumulatorOf(param.dtype())));
  const SgdArgs args = {.factors = Factors(step),
                        .step = MakeStepArgs(param, grad, grad_scale, master),
                        .buffer = buffer.defined() ? buffer.raw() : nullptr};
  return kSgd.Run(device, {args.step.dtype, args.step.grad_dtype}, args);
}

absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale, double factor) {
  const DType dtype = sum_of_squares.dtype();
  DT_CHECK(dtype == DType::kF32 || dtype == DType::kF64);
  DT_CHECK(norm.dtype() == dtype && scale.dtype() == dtype);
  DT_CHECK(sum_of_squares.numel() == 1 && norm.numel() == 1 && scale.numel() == 1);
  const ClipScaleArgs args = {dtype,      max_norm,   factor, sum_of_squares.raw(),
                              norm.raw(), scale.raw()};
  return kClipScale.Run(device, {dtype}, args);
}

}  // namespace dtensor::kernels
