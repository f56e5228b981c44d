// Checks that the fragments in docs/ and in headers compile, each surrounded by the declarations
// that it assumes. What they do is tested elsewhere.
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/hugging_face/adapter.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/conv.h"
#include "dtensor/nn/lora.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/lr_schedule.h"
#include "dtensor/nn/resnet.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::fragments {

absl::Status Checkpoints(Context& context, Module& model, AdamW& adamw, const LrSchedule& schedule,
                         const ParallelPlan& plan, bool resume, int64_t steps, int64_t batch) {
#include "tests/fragments/checkpoints.inc"
  return absl::OkStatus();
}

absl::Status Convolutions(Context& context, const DeviceMesh& mesh, const TensorOr& x,
                          const TensorOr& sequence, const TensorOr& weight, const TensorOr& images,
                          const std::string& text, const std::string& folder) {
#include "tests/fragments/convolutions.inc"
  for (const TensorOr& tensor : {smaller, causal, logits}) DT_RETURN_IF_ERROR(tensor.status());
  return absl::OkStatus();
}

absl::Status Generation(Context& context, const std::string& config_json, const DeviceMesh& mesh) {
#include "tests/fragments/generation.inc"
  return absl::OkStatus();
}

absl::Status Load(Context& context, const std::string& config, const DeviceMesh& mesh,
                  const ParallelPlan& plan) {
#include "tests/fragments/load.inc"
  return absl::OkStatus();
}

absl::Status Lora(Context& context, const std::unique_ptr<Module>& model, const ParallelPlan& plan,
                  const DeviceMesh& mesh, const std::string& folder, const std::string& config) {
#include "tests/fragments/lora.inc"
  return absl::OkStatus();
}

}  // namespace dtensor::fragments
