// GPUs and errors of the fake CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dtensor/tools/cuda/fake/fake.h"

namespace dtensor::fake_cuda {
namespace {

thread_local int current_gpu = 0;
bool forgives_leaks = false;
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

void ForgiveLeaks() { __atomic_store_n(&forgives_leaks, true, __ATOMIC_RELEASE); }
bool ForgivesLeaks() {
  const char* const said = std::getenv("DTENSOR_FAKE_LEAKS");
  return __atomic_load_n(&forgives_leaks, __ATOMIC_ACQUIRE) ||
         (said != nullptr && std::strcmp(said, "forgiven") == 0);
}

int CurrentGpu() { return current_gpu; }

int Gpus() {
  static const int gpus = [] {
    const char* const said = std::getenv("DTENSOR_FAKE_GPUS");
    if (said == nullptr) return 2;
    const int count = std::atoi(said);
    if (count < 1 || count > kMostGpus) Refuse("DTENSOR_FAKE_GPUS", "there are 1 to 8 fake GPUs");
    return count;
  }();
  return gpus;
}

}  // namespace dtensor::fake_cuda

using dtensor::fake_cuda::Gpus;
using dtensor::fake_cuda::Return;

extern "C" {

// A program that is linked to fakes says so: it would otherwise look as if it had found a GPU.
cudaError_t cudaGetDeviceCount(int* count) {
  [[maybe_unused]] static const int said = std::fputs("fake CUDA: there is no GPU\n", stderr);
  *count = Gpus();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* gpu) {
  *gpu = dtensor::fake_cuda::current_gpu;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  dtensor::fake_cuda::current_gpu = gpu;
  return cudaSuccess;
}

// Of one bus for each GPU, so that names differ as those of real ones do.
cudaError_t cudaDeviceGetPCIBusId(char* name, int size, int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  if (size < 13) return Return(cudaErrorInvalidValue);
  std::snprintf(name, size, "0000:%02x:00.0", gpu + 1);
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
