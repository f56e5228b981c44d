// Temporary memory for one kernel.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SCRATCH_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SCRATCH_INL_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::kernels::cuda {

// Memory of the device, freed in stream order: after what is launched while it is held.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(Device& device, int64_t bytes) {
    DT_ASSIGN_OR_RETURN(void* const data, device.Allocate(bytes));
    return Scratch(device, data, bytes);
  }
  Scratch(Scratch&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~Scratch() {
    if (data_ != nullptr) device_.Free(data_, bytes_);
  }
  void* get() const { return data_; }

 private:
  Scratch(Device& device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  Device& device_;
  void* data_;
  int64_t bytes_;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SCRATCH_INL_H_
