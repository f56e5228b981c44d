// GPUs and errors of the fake CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "dtensor/tools/cuda/fake/fake.h"

namespace dtensor::fake_cuda {
namespace {

thread_local int current_gpu = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

void Refuse(const char* call, const char* what) {
  std::fprintf(stderr, "fake CUDA: %s: %s\n", call, what);
  std::_Exit(67);
}

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int CurrentGpu() { return current_gpu; }

}  // namespace dtensor::fake_cuda

using dtensor::fake_cuda::kGpus;
using dtensor::fake_cuda::Return;

extern "C" {

// A program that is linked to fakes says so: it would otherwise look as if it had found a GPU.
cudaError_t cudaGetDeviceCount(int* count) {
  [[maybe_unused]] static const int said = std::fputs("fake CUDA: there is no GPU\n", stderr);
  *count = kGpus;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* gpu) {
  *gpu = dtensor::fake_cuda::current_gpu;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= kGpus) return Return(cudaErrorInvalidDevice);
  dtensor::fake_cuda::current_gpu = gpu;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = dtensor::fake_cuda::last_error;
  dtensor::fake_cuda::last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "unrecognized error code";
  }
}

}  // extern "C"
