// For tests: a program whose memory by cudaMallocAsync comes from a pool of its own.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_PROGRAM_POOL_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_PROGRAM_POOL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dtensor {

// The current pool of `gpu`, as long as it lives. Check ok().
class ProgramPool {
 public:
  explicit ProgramPool(int gpu) {
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = gpu;
    ok_ = cudaMemPoolCreate(&pool_, &props) == cudaSuccess &&
          cudaDeviceSetMemPool(gpu, pool_) == cudaSuccess;
  }
  ~ProgramPool() {
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }
  ProgramPool(const ProgramPool&) = delete;
  ProgramPool& operator=(const ProgramPool&) = delete;

  bool ok() const { return ok_; }
  // Bytes that are allocated from it, or from the default pool of `gpu`; UINT64_MAX: an error.
  uint64_t used() const { return UsedOf(pool_); }
  static uint64_t UsedOfDefault(int gpu) {
    cudaMemPool_t pool = nullptr;
    return cudaDeviceGetDefaultMemPool(&pool, gpu) == cudaSuccess ? UsedOf(pool) : UINT64_MAX;
  }

 private:
  static uint64_t UsedOf(cudaMemPool_t pool) {
    uint64_t bytes = 0;
    const cudaError_t error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes);
    return error == cudaSuccess ? bytes : UINT64_MAX;
  }

  cudaMemPool_t pool_ = nullptr;
  bool ok_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_PROGRAM_POOL_H_
