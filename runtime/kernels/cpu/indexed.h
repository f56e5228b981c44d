// indexed.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_INDEXED_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_INDEXED_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cpu {

absl::Status Embedding(Device& device, const char* kernel, const EmbeddingArgs& args);
absl::Status EmbeddingGrad(Device& device, const char* kernel, const EmbeddingGradArgs& args);
absl::Status Rope(Device& device, const char* kernel, const RopeArgs& args);
absl::Status CrossEntropyStats(Device& device, const char* kernel,
                               const CrossEntropyStatsArgs& args);
absl::Status CrossEntropyMerge(Device& device, const char* kernel,
                               const CrossEntropyMergeArgs& args);
absl::Status CrossEntropyGrad(Device& device, const char* kernel, const CrossEntropyGradArgs& args);
absl::Status TargetMeanStats(Device& device, const char* kernel, const TargetMeanStatsArgs& args);
absl::Status TargetMeanMerge(Device& device, const char* kernel, const TargetMeanMergeArgs& args);
absl::Status TargetMeanGrad(Device& device, const char* kernel, const TargetMeanGradArgs& args);
absl::Status RandomNormal(Device& device, const char* kernel, const RandomNormalArgs& args);
absl::Status RandomUniform(Device& device, const char* kernel, const RandomUniformArgs& args);
absl::Status Dropout(Device& device, const char* kernel, const DropoutArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_INDEXED_H_
