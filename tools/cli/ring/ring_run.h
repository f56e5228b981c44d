// dtensor ring --run: attention on a ring of rank threads, forward and backward, compared with
// correct results and with the schedule's bytes.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_RUN_H_
#define DTENSOR_TOOLS_CLI_RING_RING_RUN_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/tools/cli/request.h"
#include "dtensor/tools/cli/ring/ring_errors.h"
#include "dtensor/tools/cli/ring/ring_progress.h"
#include "dtensor/tools/cli/ring/ring_request.h"
#include "dtensor/tools/cli/ring/ring_tensors.h"

namespace dtensor::cli {

struct RingRun {
  RingOutputs outputs;
  int64_t counted_bytes = 0;  // that ranks received, by their communicators
  int64_t peak_bytes = 0;     // of the rank that held most, including arguments and results
};

// Runs the schedule on a thread for each rank. Each takes its positions of the inputs, and puts its
// results into the place of its ring rank. The ring's first rank reports its exchanges. Errors: a
// rank's failure.
absl::StatusOr<RingRun> RunOnThreads(Device& device, const RingSchedule& schedule,
                                     const RingInputs& inputs, const TellFraction& tell = {});

struct RingReport {
  std::array<RingError, 5> errors;
  int64_t counted_bytes = 0, planned_bytes = 0, peak_bytes = 0, planned_peak_bytes = 0;
};

// Describes what went wrong: errors beyond their limits, or bytes that differ from the schedule;
// empty if nothing did.
std::string Verdict(const RingReport& report);

// Errors: of ParseRing and RingSchedule::Create; of the files; kInvalidArgument for more ranks than
// threads should be; kResourceExhausted for too little memory; kInternal for a rank's failure, and
// results that cannot be written.
absl::StatusOr<Outcome> RunRingOnThreads(const RingFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_RUN_H_
