// The GPUs of this process, and how they reach each other's memory.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// At least 1. Errors: kUnavailable if there is none, or if the library was built without
// --config=cuda.
absl::StatusOr<int> CountGpus();

// Names a GPU among all of this host's, however this process numbers it: "0000:3b:00.0". Errors:
// kUnavailable if there is no such GPU, or as CountGpus.
absl::StatusOr<std::string> GpuName(int gpu);

// From now on each of these GPUs can read what devices of the others allocate, and what the program
// allocates by cudaMalloc. It cannot read memory of the program's own pools, unless the program
// grants access (cudaMemPoolSetAccess). Errors: kUnavailable if there is no such GPU, or if one
// cannot read the memory of another.
absl::Status AllowPeerReads(absl::Span<const int> gpus);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_
