// GPUs and errors of the fake CUDA runtime.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/ordering.h"

namespace dtensor::fake_cuda {
namespace {

constexpr int kNotChosen = -1;
thread_local int current_gpu = kNotChosen;
bool has_context[kMostGpus];         // atomic
bool is_peer[kMostGpus][kMostGpus];  // [reader][owner], atomic
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

int CurrentGpu() {
  if (current_gpu != kNotChosen) return current_gpu;
  __atomic_store_n(&has_context[0], true, __ATOMIC_RELEASE);
  return 0;
}

void RequireChosen(const char* call, int gpu) {
  if (gpu == 0 || current_gpu != kNotChosen) return;
  Refuse(call,
         "it is another GPU's, and this thread has chosen none: CUDA makes a context on GPU 0");
}

void LoadKernel(int gpu, const void* kernel) {
  static const bool is_eager = [] {
    const char* const said = std::getenv("CUDA_MODULE_LOADING");
    return said != nullptr && std::strcmp(said, "EAGER") == 0;
  }();
  if (is_eager) return;
  static auto& mutex = *new SpinLock;
  static auto& loaded = *new std::set<std::pair<int, const void*>>;
  {
    const std::lock_guard lock(mutex);
    if (loaded.count({gpu, kernel}) != 0) return;
  }
  WaitForGpu(gpu);  // as whoever launches it meanwhile
  const std::lock_guard lock(mutex);
  loaded.insert({gpu, kernel});
}

bool IsPeerEnabled(int reader, int owner) {
  return __atomic_load_n(&is_peer[reader][owner], __ATOMIC_ACQUIRE);
}

int Gpus() {
  static const int gpus = [] {
    const char* const said = std::getenv("DTENSOR_FAKE_GPUS");
    if (said == nullptr) return 2;
    const int count = std::atoi(said);
    if (count < 0 || count > kMostGpus) Refuse("DTENSOR_FAKE_GPUS", "there are 0 to 8 fake GPUs");
    return count;
  }();
  return gpus;
}

}  // namespace dtensor::fake_cuda

using dtensor::fake_cuda::Gpus;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::Return;

namespace {

// cuDevicePrimaryCtxGetState.
CUresult PrimaryContextState(CUdevice gpu, unsigned* flags, int* is_active) {
  if (gpu < 0 || gpu >= Gpus()) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = __atomic_load_n(&dtensor::fake_cuda::has_context[gpu], __ATOMIC_ACQUIRE);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// A program that is linked to fakes says so: it would otherwise look as if it had found a GPU.
cudaError_t cudaGetDeviceCount(int* count) {
  [[maybe_unused]] static const int said = std::fputs("fake CUDA: there is no GPU\n", stderr);
  *count = Gpus();
  return *count == 0 ? Return(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* gpu) {
  const int chosen = dtensor::fake_cuda::current_gpu;
  *gpu = chosen == dtensor::fake_cuda::kNotChosen ? 0 : chosen;  // and makes no context
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  dtensor::fake_cuda::current_gpu = gpu;
  __atomic_store_n(&dtensor::fake_cuda::has_context[gpu], true, __ATOMIC_RELEASE);
  return cudaSuccess;
}

// Not of pools' memory, which cudaMemPoolSetAccess is for.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (flags != 0) return Return(cudaErrorInvalidValue);
  const int reader = dtensor::fake_cuda::CurrentGpu();
  if (peer < 0 || peer >= Gpus() || peer == reader) return Return(cudaErrorInvalidDevice);
  bool* const enabled = &dtensor::fake_cuda::is_peer[reader][peer];
  return __atomic_exchange_n(enabled, true, __ATOMIC_ACQ_REL)
             ? Return(cudaErrorPeerAccessAlreadyEnabled)
             : cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found) {
  if (flags != cudaEnableDefault || std::strcmp(symbol, "cuDevicePrimaryCtxGetState") != 0) {
    Refuse("cudaGetDriverEntryPointByVersion", "only cuDevicePrimaryCtxGetState is faked");
  }
  *function = reinterpret_cast<void*>(&PrimaryContextState);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Of a Hopper.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  if (attribute == cudaDevAttrComputeCapabilityMajor) {
    *value = 9;
  } else if (attribute == cudaDevAttrComputeCapabilityMinor) {
    *value = 0;
  } else {
    dtensor::fake_cuda::Refuse("cudaDeviceGetAttribute", "only the compute capability is faked");
  }
  return cudaSuccess;
}

// Of one bus for each GPU, so that names differ as those of real ones do.
cudaError_t cudaDeviceGetPCIBusId(char* name, int size, int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  if (size < 13) return Return(cudaErrorInvalidValue);
  std::snprintf(name, size, "0000:%02x:00.0", gpu + 1);
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() { return dtensor::fake_cuda::last_error; }

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
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "unrecognized error code";
  }
}

}  // extern "C"
