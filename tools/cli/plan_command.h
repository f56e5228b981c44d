// dtensor plan: what a redistribution will do and cost, on a mesh of any size, without tensors.
#ifndef DTENSOR_TOOLS_CLI_PLAN_COMMAND_H_
#define DTENSOR_TOOLS_CLI_PLAN_COMMAND_H_

#include "absl/status/statusor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/tools/cli/request.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {

// Errors: as RedistributionPlan::Create.
absl::StatusOr<RedistributionPlan> MakePlan(const Move& move);

// What every command that has a plan prints about the request, in order.
nlohmann::ordered_json RequestJson(const RedistributionPlan& plan,
                                   RedistributionObjective objective);
std::string RequestText(const RedistributionPlan& plan, RedistributionObjective objective);

// `colour`: of the picture. Errors: of ParseMove, MakePlan and, for pictures, of visualize.h and
// WriteSvg; kInvalidArgument for a picture and JSON at once.
absl::StatusOr<Outcome> RunPlan(const MoveFlags& flags, bool json, bool colour = false);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_PLAN_COMMAND_H_
