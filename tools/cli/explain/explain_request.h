// What the flags of dtensor explain say, read into a step.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/parallel_plans/explain/training_step.h"

namespace dtensor::cli {

// As they were typed. `model` and `links` name files, `plan` and `compare` a file or a plan.
struct ExplainFlags {
  std::string model, plan, mesh, dtype = "f32", optimizer = "adamw", pattern = "zigzag", links, svg,
                                 compare;
  int64_t batch = 0, sequence = 0;
  std::vector<std::string> recompute;
  bool allow_uneven = false;
};

struct ExplainRequest {
  TrainingStep step;
  std::string plan;  // what the step's plan is called: that of --plan, or of the mesh
  std::optional<TrainingStep> other;  // with the plan of --compare
};

// Errors: kInvalidArgument (kNotFound for a file), beginning with the flag and naming the remedy.
absl::StatusOr<ExplainRequest> ParseExplain(const ExplainFlags& flags);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_REQUEST_H_
