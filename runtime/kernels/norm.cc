#include "dtensor/runtime/kernels/norm.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/norm_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/norm.h"

namespace dtensor::kernels {
namespace {

constexpr ByDevice<SoftmaxArgs> kSoftmax = {.name = "Softmax", .host = cpu::Softmax};
constexpr ByDevice<SoftmaxGradArgs> kSoftmaxGrad = {.name = "SoftmaxGrad",
                                                    .host = cpu::SoftmaxGrad};
constexpr ByDevice<RmsNormArgs> kRmsNorm = {.name = "RmsNorm", .host = cpu::RmsNorm};
constexpr ByDevice<RmsNormGradArgs> kRmsNormGrad = {.name = "RmsNormGrad",
                                                    .host = cpu::RmsNormGrad};

void CheckRows(const Tensor& x, const Tensor& out) {
  DT_CHECK(x.ndim() >= 1 && IsFloat(x.dtype()));
  DT_CHECK(out.shape() == x.shape() && out.dtype() == x.dtype() && out.is_contiguous());
}

void CheckStatistics(const Tensor& x, const Tensor& rstd) {
  DT_CHECK(rstd.dtype() == AccumulatorOf(x.dtype()));
  DT_CHECK(rstd.shape() == Dims(x.shape().begin(), x.shape().end() - 1));
}

void CheckWeight(const Tensor& x, const Tensor& weight) {
  DT_CHECK(weight.ndim() == 1 && weight.size(0) == x.shape().back());
  DT_CHECK(weight.dtype() == x.dtype());
}

}  // namespace

absl::Status Softmax(Device& device, const Tensor& x, const Tensor& y) {
  CheckRows(x, y);
  return kSoftmax.Run(device, {x.dtype()}, {x.dtype(), RowOperands<1>({&x}), y.raw()});
}

absl::Status SoftmaxGrad(Device& device, const Tensor& y, const Tensor& dy, const Tensor& dx) {
  CheckRows(y, dx);
  DT_CHECK(dy.shape() == y.shape() && dy.dtype() == y.dtype());
  return kSoftmaxGrad.Run(device, {y.dtype()}, {y.dtype(), RowOperands<2>({&y, &dy}), dx.raw()});
}

absl::Status RmsNorm(Device& device, const Tensor& x, const Tensor& weight, double eps,
                     const Tensor& y, const Tensor& rstd) {
  CheckRows(x, y);
  CheckWeight(x, weight);
  CheckStatistics(x, rstd);
  DT_CHECK(rstd.is_contiguous());
  return kRmsNorm.Run(device, {x.dtype()},
                      {.dtype = x.dtype(),
                       .eps = eps,
                       .rows = RowOperands<1>({&x}),
                       .weight = StridedInput(weight),
                       .y = y.raw(),
                       .rstd = rstd.raw(),
                       .out_bytes = y.bytes(),
                       .in_place = x.SharesStorageWith(y)});
}

absl::Status RmsNormGrad(Device& device, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dx, const Tensor& dweight) {
  CheckRows(x, dx);
  CheckWeight(x, weight);
  CheckWeight(x, dweight);
  CheckStatistics(x, rstd);
  DT_CHECK(dy.shape() == x.shape() && dy.dtype() == x.dtype() && dweight.is_contiguous());
  return kRmsNormGrad.Run(device, {x.dtype()},
                          {.dtype = x.dtype(),
                           .rows = RowOperands<2>({&x, &dy}),
                           .weight = StridedInput(weight),
                           .rstd = StridedInput(rstd),
                           .dx = dx.raw(),
                           .dweight = dweight.raw(),
                           .out_bytes = dx.bytes(),
                           .in_place = x.SharesStorageWith(dx) || dy.SharesStorageWith(dx)});
}

}  // namespace dtensor::kernels
