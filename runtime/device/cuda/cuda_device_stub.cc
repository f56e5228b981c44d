#include <memory>
#include <optional>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/cuda_transfers.h"
#include "dtensor/runtime/device/cuda/limit_cuda_capability.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// cuda_device.cc under --config=cuda.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int, std::optional<CUstream_st*>,
                                                       const CudaAllocator&) {
  return absl::UnavailableError(
      "this program was built without CUDA; build it with --config=cuda, or use the cpu device");
}

CUstream_st* CudaStreamOf(const Device&) {
  DT_REQUIRE(false,
             "CudaStreamOf: this program was built without CUDA, so the device is not a GPU");
}

void SetCudaPatience(Device&, double) {
  DT_REQUIRE(false,
             "SetCudaPatience: this program was built without CUDA, so the device is not a GPU");
}

int CudaCapabilityOf(const Device&) {
  DT_REQUIRE(false,
             "CudaCapabilityOf: this program was built without CUDA, so the device is not a GPU");
}

void LimitCudaCapability(Device&, int) {
  DT_REQUIRE(
      false,
      "LimitCudaCapability: this program was built without CUDA, so the device is not a GPU");
}

CudaTransfers::CudaTransfers(Device&, const DeviceEvent&) {}
CudaTransfers::~CudaTransfers() = default;

}  // namespace dtensor
