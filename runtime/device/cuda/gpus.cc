#include "dtensor/runtime/device/cuda/gpus.h"

#include <cuda_runtime_api.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"
#include "dtensor/runtime/device/cuda/current_gpu.h"

namespace dtensor {
namespace {

absl::Status CheckIsThere(int gpu, int count) {
  if (gpu >= 0 && gpu < count) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("there is no GPU ", gpu, ": CUDA sees ", count, ", from 0 on"));
}

absl::Status CheckCanRead(int gpu, int other) {
  int can = 0;
  DT_CUDA(cudaDeviceCanAccessPeer, &can, gpu, other);
  if (can != 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "GPU ", gpu, " cannot read the memory of GPU ", other,
      ": ranks of one process need GPUs that are connected; give them those that are"));
}

// Gives access to memory that programs allocate by cudaMalloc and pass to tensors.
absl::Status LetReadOutsideOfPools(int reader, int gpu) {
  const CurrentGpu current(reader);
  DT_RETURN_IF_ERROR(current.status());
  const cudaError_t error = cudaDeviceEnablePeerAccess(gpu, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) {
    return ToStatus(error, "cudaDeviceEnablePeerAccess");
  }
  cudaGetLastError();  // or the next call would report it again
  return absl::OkStatus();
}

// Devices allocate from the default pool of their GPU, to which the above gives no access.
absl::Status LetRead(const std::set<int>& readers, int gpu) {
  std::vector<cudaMemAccessDesc> access;
  for (const int reader : readers) {
    if (reader == gpu) continue;
    DT_RETURN_IF_ERROR(CheckCanRead(reader, gpu));
    DT_RETURN_IF_ERROR(LetReadOutsideOfPools(reader, gpu));
    cudaMemAccessDesc one = {};
    one.location.type = cudaMemLocationTypeDevice;
    one.location.id = reader;
    one.flags = cudaMemAccessFlagsProtReadWrite;
    access.push_back(one);
  }
  if (access.empty()) return absl::OkStatus();
  cudaMemPool_t pool;
  DT_CUDA(cudaDeviceGetDefaultMemPool, &pool, gpu);
  DT_CUDA(cudaMemPoolSetAccess, pool, access.data(), access.size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  return absl::UnavailableError(absl::StrCat(
      "there is no GPU: ", error == cudaSuccess ? "CUDA sees none" : cudaGetErrorString(error)));
}

absl::StatusOr<std::string> GpuName(int gpu) {
  DT_ASSIGN_OR_RETURN(const int count, CountGpus());
  DT_RETURN_IF_ERROR(CheckIsThere(gpu, count));
  char name[64] = {};
  DT_CUDA(cudaDeviceGetPCIBusId, name, sizeof(name), gpu);
  return std::string(name);
}

absl::Status AllowPeerReads(absl::Span<const int> gpus) {
  DT_ASSIGN_OR_RETURN(const int count, CountGpus());
  for (const int gpu : gpus) DT_RETURN_IF_ERROR(CheckIsThere(gpu, count));
  const std::set<int> all(gpus.begin(), gpus.end());
  for (const int gpu : all) DT_RETURN_IF_ERROR(LetRead(all, gpu));
  return absl::OkStatus();
}

}  // namespace dtensor
