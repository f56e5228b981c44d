// dtensor ring: the schedule of ring attention, without a tensor.
#ifndef DTENSOR_TOOLS_CLI_RING_COMMAND_H_
#define DTENSOR_TOOLS_CLI_RING_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/ring_schedule.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Flags as they were typed.
struct RingFlags {
  std::string mesh, pattern = "ring", dtype = "f32", mask = "full";
  int64_t batch = 1, heads = 1, seq = 0, head_dim = 64;
  std::optional<int64_t> kv_heads;  // as many as heads where it is not given
};

// All errors are kInvalidArgument, begin with the flag where one value is at fault, and name the
// remedy.
absl::StatusOr<RingProblem> ParseRing(const RingFlags& flags);

// Errors: of ParseRing and PlanRing.
absl::StatusOr<Outcome> RunRing(const RingFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_COMMAND_H_
