#include "dtensor/runtime/device/cuda/current_gpu.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "dtensor/runtime/device/cuda/cuda_status.h"

namespace dtensor {
namespace {

// Whether this process has a context there. Only the driver API tells this without creating one;
// programs are not linked to it.
bool IsUsed(int gpu) {
  using StateOf = CUresult(CUdevice, unsigned*, int*);
  static StateOf* const state_of = [] {
    void* found = nullptr;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                               12000, cudaEnableDefault);
    if (error != cudaSuccess) cudaGetLastError();  // or the next call would report it again
    return error == cudaSuccess ? reinterpret_cast<StateOf*>(found) : nullptr;
  }();
  unsigned flags = 0;
  int is_active = 0;
  return state_of == nullptr || state_of(gpu, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

}  // namespace

CurrentGpu::CurrentGpu(int gpu) {
  int before = -1;
  const bool known = cudaGetDevice(&before) == cudaSuccess;
  // Also if it is current already: CUDA reports GPU 0 as current if none was chosen.
  status_ = ToStatus(cudaSetDevice(gpu), "cudaSetDevice");
  if (known && IsUsed(before)) before_ = before;
}

CurrentGpu::~CurrentGpu() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace dtensor
