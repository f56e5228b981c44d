// For tests: whether this process has made something on a GPU.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_HAS_CONTEXT_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_HAS_CONTEXT_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace dtensor {

// Whether this process has CUDA's context on that GPU. Asking makes none.
inline bool HasContext(int gpu) {
  void* state_of = nullptr;
  cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &state_of, 12000,
                                   cudaEnableDefault);
  unsigned flags = 0;
  int is_active = 0;
  reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(state_of)(gpu, &flags, &is_active);
  return is_active != 0;
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_HAS_CONTEXT_H_
