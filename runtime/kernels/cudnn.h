// How the kernels of a GPU use cuDNN: which steps of attention it computes is a function of shape,
// type and mask (docs/cuda.md has the table). On other devices, or if the program is built without
// cuDNN, no step is computed by it, and these functions do nothing.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDNN_H_
#define DTENSOR_RUNTIME_KERNELS_CUDNN_H_

#include <cstdint>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Whether cuDNN may be used on this device from now on; it may by default. Without it, a step has
// the same bits whatever version of cuDNN is installed, and is slower. Set it to the same on all
// ranks.
void AllowCudnn(Device& device, bool allowed);

// The most memory that one run of backward may use for scores, which it keeps all, in 16 bits, so
// as to add up in one order. 512 MiB by default. If more is needed, the heads are divided over
// several runs; if the queries of a single key head need more, the portable kernel is used.
void SetCudnnScoreBytes(Device& device, int64_t bytes);

// How many steps, forward or backward, cuDNN has computed on this device.
int64_t CudnnSteps(const Device& device);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CUDNN_H_
