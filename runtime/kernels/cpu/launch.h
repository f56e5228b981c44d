// How kernels on host memory are put into the device's queue.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_LAUNCH_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_LAUNCH_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::kernels::cpu {

// Launches run(args), which returns void or a status; `kernel`, a string literal, names it in
// errors. Errors: as Device::Launch.
template <typename Args, typename Fn>
absl::Status Launch(Device& device, const char* kernel, const Args& args, Fn run) {
  // The launch runs before Launch returns: no copy needed.
  if (device.kind() == Device::Kind::kCpu) {
    return device.Launch(kernel, [&args, run] { return run(args); });
  }
  return device.Launch(kernel, [args, run] { return run(args); });
}

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_LAUNCH_H_
