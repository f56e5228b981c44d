// dtensor explain and dtensor model: what a training step of a model costs under a plan, on a mesh
// of any size; and where each of its modules has its parameters and activations.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/explain/explain_request.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Not ok if the fullest rank's peak exceeds `flags.memory`.
// Errors: of ParseExplain and ExplainStep; kInternal for a file that cannot be written.
absl::StatusOr<Outcome> RunExplain(const ExplainFlags& flags, bool json);

// Missing sizes have their defaults (ParseModel). Errors: the same.
absl::StatusOr<Outcome> RunModel(const ExplainFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_
