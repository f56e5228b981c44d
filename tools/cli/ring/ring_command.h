// dtensor ring: the schedule of ring attention, without tensors; with --run, also runs it.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_COMMAND_H_
#define DTENSOR_TOOLS_CLI_RING_RING_COMMAND_H_

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/request.h"
#include "dtensor/tools/cli/ring/ring_request.h"

namespace dtensor::cli {

// Errors: of ParseRing and RingSchedule::Create; kInvalidArgument for a file without --run; with
// --run those of RunRingOnThreads.
absl::StatusOr<Outcome> RunRing(const RingFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_COMMAND_H_
