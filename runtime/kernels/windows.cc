#include "dtensor/runtime/kernels/windows.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/windows.h"
#include "dtensor/runtime/kernels/cuda/windows.h"

namespace dtensor::kernels {
namespace {

// All of both sides, each element once.
KernelWork WorkOf(const WindowsShape& s) {
  const auto rows = static_cast<double>(s.outer * s.inner * s.row);
  return {.bytes = Bytes(rows * static_cast<double>(s.n), s.dtype) +
                   Bytes(rows * static_cast<double>(s.windows * s.size), s.dtype)};
}
KernelWork WorkOf(const WindowsArgs& args) { return WorkOf(args.shape); }
KernelWork WorkOf(const WindowsGradArgs& args) { return WorkOf(args.shape); }

constexpr ByDevice<WindowsArgs> kWindows = {
    .name = "Windows", .host = cpu::Windows, .cuda = DT_ON_CUDA(cuda::Windows), .work = WorkOf};
constexpr ByDevice<WindowsGradArgs> kWindowsGrad = {.name = "WindowsGrad",
                                                    .host = cpu::WindowsGrad,
                                                    .cuda = DT_ON_CUDA(cuda::WindowsGrad),
                                                    .work = WorkOf};

void CheckRowMajorInside(const Tensor& tensor) {
  if (tensor.numel() > 0) DT_CHECK(tensor.Narrow(0, 0, 1).is_contiguous());
}

WindowsShape ShapeOf(const Tensor& x, const WindowSteps& steps, const Tensor& y) {
  DT_CHECK(x.ndim() == 4 && y.ndim() == 5 && x.dtype() == y.dtype());
  DT_CHECK(x.size(0) == y.size(0) && x.size(2) == y.size(2) && x.size(3) == y.size(4));
  DT_CHECK(steps.step > 0 && steps.dilation > 0);
  CheckRowMajorInside(x);
  CheckRowMajorInside(y);
  return {.dtype = x.dtype(),
          .steps = steps,
          .outer = x.size(0),
          .n = x.size(1),
          .windows = y.size(1),
          .inner = x.size(2),
          .size = y.size(3),
          .row = x.size(3),
          .outer_stride = x.strides()[0],
          .windows_outer_stride = y.strides()[0]};
}

}  // namespace

absl::Status Windows(Device& device, const Tensor& x, const WindowSteps& steps, double value,
                     const Tensor& y) {
  return kWindows.Run(device, {x.dtype()},
                      {.shape = ShapeOf(x, steps, y), .value = value, .x = x.raw(), .y = y.raw()});
}

absl::Status WindowsGrad(Device& device, const Tensor& dy, const WindowSteps& steps,
                         const Tensor& dx) {
  DT_CHECK(IsFloat(dx.dtype()) && dx.is_contiguous());
  return kWindowsGrad.Run(device, {dx.dtype()},
                          {.shape = ShapeOf(dx, steps, dy), .dy = dy.raw(), .dx = dx.raw()});
}

}  // namespace dtensor::kernels
