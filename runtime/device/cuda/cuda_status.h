// What a call of CUDA returns, as a status.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

// kResourceExhausted for memory, else kInternal: "<call>: <CUDA's words>".
inline absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error != cudaErrorMemoryAllocation) return absl::InternalError(message);
  cudaGetLastError();  // or the next call would report it again
  return absl::ResourceExhaustedError(message);
}

// Whether an event or a stream has come to its end, or to an error, by what asking it returned.
// Before CUDA 13 asking leaves cudaErrorNotReady behind, which who checks a launch next would find;
// what else is there is somebody's.
inline bool IsReady(cudaError_t asked) {
  if (asked != cudaErrorNotReady) return true;
  if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
  return false;
}

// Returns from the function unless function(...) succeeds.
#define DT_CUDA(function, ...) \
  DT_RETURN_IF_ERROR(::dtensor::ToStatus(function(__VA_ARGS__), #function))

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_STATUS_H_
