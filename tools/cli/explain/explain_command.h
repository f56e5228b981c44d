// dtensor explain: what a training step of a model costs under a plan, on a mesh of any size.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/explain/explain_request.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Errors: of ParseExplain and ExplainStep; kInternal for a file that cannot be written.
absl::StatusOr<Outcome> RunExplain(const ExplainFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_COMMAND_H_
