#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// cuda_device.cc under --config=cuda.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int) {
  return absl::UnavailableError(
      "this program was built without CUDA; build it with --config=cuda, or use the cpu device");
}

}  // namespace dtensor
