#include "dtensor/runtime/kernels/cudnn.h"

#include <cstdint>

#ifdef DTENSOR_HAS_CUDA
#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"
#endif

namespace dtensor::kernels {

#ifdef DTENSOR_HAS_CUDA
void AllowCudnn(Device& device, bool allowed) {
  if (device.kind() == Device::Kind::kCuda) cuda::AllowCudnn(device, allowed);
}
void SetCudnnScoreBytes(Device& device, int64_t bytes) {
  if (device.kind() == Device::Kind::kCuda) cuda::SetCudnnScoreBytes(device, bytes);
}
int64_t CudnnSteps(const Device& device) {
  return device.kind() == Device::Kind::kCuda ? cuda::CudnnSteps(device) : 0;
}
#else
void AllowCudnn(Device&, bool) {}
void SetCudnnScoreBytes(Device&, int64_t) {}
int64_t CudnnSteps(const Device&) { return 0; }
#endif

}  // namespace dtensor::kernels
