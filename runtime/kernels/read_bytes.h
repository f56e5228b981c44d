// ReadBytes: a tensor's elements on the host, piece by piece.
#ifndef DTENSOR_RUNTIME_KERNELS_READ_BYTES_H_
#define DTENSOR_RUNTIME_KERNELS_READ_BYTES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Calls `read` with the elements' bytes, row-major, in pieces of a multiple of 8 bytes but for the
// last: one piece where they are in host memory, else pieces of 4 MiB that are copied. Waits for
// the device. Errors: the first of `read`; kResourceExhausted; the device's failure.
absl::Status ReadBytes(const Tensor& x,
                       absl::FunctionRef<absl::Status(const char* bytes, int64_t size)> read);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_READ_BYTES_H_
