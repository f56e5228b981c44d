// cuDNN's part in the kernels of a GPU: which steps of attention it computes is a function of
// shape, type and mask (docs/cuda.md has the table). Nothing here on other devices, or where the
// program is built without cuDNN: there is no such step.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDNN_H_
#define DTENSOR_RUNTIME_KERNELS_CUDNN_H_

#include <cstdint>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Whether cuDNN may compute any on this device from now on. It may, unless this says otherwise:
// then a step has the same bits on all versions of cuDNN, and is slower. All ranks alike.
void AllowCudnn(Device& device, bool allowed);

// The most that one run of backward may keep: it has all of its scores in memory, in 16 bits, so
// that it adds up in one order. 512 MiB unless set. What would take more is computed in several
// runs, of some heads each; where one key head's queries alone take more, by the portable kernel.
void SetCudnnScoreBytes(Device& device, int64_t bytes);

// How many steps, forward or backward, it has computed on this device.
int64_t CudnnSteps(const Device& device);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CUDNN_H_
