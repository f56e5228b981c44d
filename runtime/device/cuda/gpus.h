// The GPUs of this process, and how they reach each other's memory.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// At least 1. Errors: kUnavailable where there is none, or when the library was built without
// --config=cuda.
absl::StatusOr<int> CountGpus();

// Names a GPU among all of this host's, whatever this process calls it: "0000:3b:00.0". Errors:
// kUnavailable where there is no such GPU, or as CountGpus.
absl::StatusOr<std::string> GpuName(int gpu);

// From now on each of these GPUs reads what devices of the others allocate, and what the program
// does by cudaMalloc; not what is from pools of its own, to which it gives access itself
// (cudaMemPoolSetAccess). Errors: kUnavailable where there is no such GPU, or one cannot read the
// memory of another.
absl::Status AllowPeerReads(absl::Span<const int> gpus);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_GPUS_H_
