#include "dtensor/runtime/kernels/scan.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/arguments/scan_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/scan.h"
#include "dtensor/runtime/kernels/cuda/scan.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const CumSumArgs& args) {
  return {.bytes = 2 * Bytes(static_cast<double>(args.outer * args.n * args.inner), args.dtype)};
}

constexpr ByDevice<CumSumArgs> kCumSum = {
    .name = "CumSum", .host = cpu::CumSum, .cuda = DT_ON_CUDA(cuda::CumSum), .work = WorkOf};

void CheckRows(const Tensor& x) {
  DT_CHECK(x.ndim() == 3);
  if (x.numel() > 0) DT_CHECK(x.Narrow(0, 0, 1).is_contiguous());
}

}  // namespace

absl::Status CumSum(Device& device, const Tensor& x, bool reverse, const Tensor& start,
                    const Tensor& y) {
  CheckRows(x);
  CheckRows(y);
  DT_CHECK(x.shape() == y.shape() && x.dtype() == y.dtype() && x.dtype() != DType::kBool);
  if (start.defined()) {
    DT_CHECK(start.is_contiguous() && start.dtype() == AccumulatorOf(x.dtype()));
    DT_CHECK(start.numel() == x.size(0) * x.size(2));
  }
  return kCumSum.Run(device, {x.dtype()},
                     {.dtype = x.dtype(),
                      .reverse = reverse,
                      .outer = x.size(0),
                      .n = x.size(1),
                      .inner = x.size(2),
                      .x_outer_stride = x.strides()[0],
                      .y_outer_stride = y.strides()[0],
                      .x = x.raw(),
                      .start = start.defined() ? start.raw() : nullptr,
                      .y = y.raw()});
}

}  // namespace dtensor::kernels
