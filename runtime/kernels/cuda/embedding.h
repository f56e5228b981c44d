// indexed.h's embedding on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_EMBEDDING_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_EMBEDDING_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cuda {

absl::Status Embedding(Device& device, const char* kernel, const EmbeddingArgs& args);
absl::Status EmbeddingGrad(Device& device, const char* kernel, const EmbeddingGradArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_EMBEDDING_H_
