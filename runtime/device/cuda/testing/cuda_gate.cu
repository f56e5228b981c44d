#include "dtensor/runtime/device/cuda/testing/cuda_gate.h"

#include <sched.h>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor {
namespace {

__device__ bool IsOpen(const unsigned* open) {
#ifdef __CUDACC__
  return *static_cast<const volatile unsigned*>(open) != 0;
#else
  sched_yield();  // the host's cores have other work
  return __atomic_load_n(open, __ATOMIC_ACQUIRE) != 0;
#endif
}

__global__ void WaitKernel(const unsigned* open) {
  while (!IsOpen(open)) {
  }
}

}  // namespace

CudaGate::CudaGate() {
  void* word = nullptr;
  DT_CHECK(cudaMallocHost(&word, sizeof(unsigned)) == cudaSuccess);
  open_ = static_cast<unsigned*>(word);
  __atomic_store_n(open_, 0, __ATOMIC_RELEASE);
}

CudaGate::~CudaGate() {
  Open();  // a test that failed may have left it closed
  cudaFreeHost(open_);
}

absl::Status CudaGate::HoldUp(Device& device) {
  DT_ASSIGN_OR_RETURN(const cudaStream_t stream, BeginCudaLaunch(device));
  return EndCudaLaunch(device, "CudaGate", LaunchKernel(stream, 1, 1, 0, WaitKernel, open_));
}

void CudaGate::Open() { __atomic_store_n(open_, 1, __ATOMIC_RELEASE); }

}  // namespace dtensor
