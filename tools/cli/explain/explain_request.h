// Reads the flags of dtensor explain and dtensor model into a training step.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/lora.h"
#include "dtensor/parallel_plans/explain/training_step.h"

namespace dtensor::cli {

// As they were typed. `model` and `links` name files; `plan` and `compare` a file or a plan.
// `memory`: bytes of memory of a rank; 0: not given.
struct ExplainFlags {
  std::string model_flag = "--model";  // the flag of `model`, for messages
  std::string model, plan, mesh, dtype = "f32", optimizer = "adamw", pattern = "zigzag", links, svg,
                                 compare;
  std::optional<int64_t> batch, sequence, memory;
  int64_t micro_batches = 1;
  std::string schedule = "1f1b";
  std::vector<std::string> recompute;
  LoraOptions lora = {.rank = 0};  // 0: all weights are trained
  bool allow_uneven = false;
  bool picture = false;  // of model
};

struct ExplainRequest {
  TrainingStep step;
  std::string plan;                   // the name of the step's plan: of --plan, or of the mesh
  std::string plan_flag;              // which of these flags named it, for messages
  std::optional<TrainingStep> other;  // with the plan of --compare
};

// Each file is read once, since it may be a pipe. Errors: kInvalidArgument (kNotFound for a file),
// beginning with the flag and naming the remedy.
absl::StatusOr<ExplainRequest> ParseExplain(const ExplainFlags& flags);
// The same, but --batch and --seq may be missing: the defaults are one sequence for each rank of
// dp and ep and each micro-batch, and 4096 tokens, or as many as the model has positions for.
absl::StatusOr<ExplainRequest> ParseModel(const ExplainFlags& flags);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_
