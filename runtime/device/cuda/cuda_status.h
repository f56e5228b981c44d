// Converts results of CUDA calls to statuses.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

// kResourceExhausted if memory ran out, else kInternal: "<call>: <CUDA's message>".
inline absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error != cudaErrorMemoryAllocation) return absl::InternalError(message);
  cudaGetLastError();  // or the next call would report it again
  return absl::ResourceExhaustedError(message);
}

// Whether an event or stream has ended, or failed, by the result of querying it. Before CUDA 13, a
// query leaves cudaErrorNotReady behind as the last error, which the next check of a launch would
// find; so that is cleared. Another last error belongs to somebody else, and stays.
inline bool IsReady(cudaError_t asked) {
  if (asked != cudaErrorNotReady) return true;
  if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
  return false;
}

// Returns from the enclosing function unless function(...) succeeds.
#define DT_CUDA(function, ...) \
  DT_RETURN_IF_ERROR(::dtensor::ToStatus(function(__VA_ARGS__), #function))

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_
