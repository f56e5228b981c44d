// A GPU and a stream of its own.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// Errors: kUnavailable when the library was built without --config=cuda or there is no such GPU.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
