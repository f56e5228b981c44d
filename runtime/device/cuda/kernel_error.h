// KernelError: how a GPU kernel reports an error in its input. It is in page-locked host memory,
// which the device checks when it has waited for its stream.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_KERNEL_ERROR_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_KERNEL_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/index_error.h"

namespace dtensor {

// One for each device. Only the thread that sets `found` to 1 (atomicCAS) writes the rest: of
// several errors, an arbitrary one is reported. Strings are literals of the host, which the kernel
// only passes on.
struct KernelError {
  unsigned found;
  const char* kernel;
  IndexError index;
};

// OK if nothing was found. Requires: the kernels are done.
inline absl::Status ToStatus(const KernelError& error) {
  if (error.found == 0) return absl::OkStatus();
  const absl::Status status = ToStatus(error.index);
  return absl::Status(status.code(), absl::StrCat(error.kernel, ": ", status.message()));
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_KERNEL_ERROR_H_
