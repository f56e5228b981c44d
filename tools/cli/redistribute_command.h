// dtensor redistribute: runs a plan on rank threads, checks every element, and reports bytes and
// time, compared with the fastest copy that this machine can do.
#ifndef DTENSOR_TOOLS_CLI_REDISTRIBUTE_COMMAND_H_
#define DTENSOR_TOOLS_CLI_REDISTRIBUTE_COMMAND_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

struct RunReport {
  int64_t mismatches = 0;      // elements, over all ranks
  std::string first_mismatch;  // "rank 1: element 12 is 3, not 4"
  int64_t counted_total_bytes = 0, counted_max_bytes_per_rank = 0;  // by the communicators
  double seconds = 0;  // of a call in the best round, from the first rank's start to the last's end
  int64_t touched_bytes = 0;           // what the plan reads and writes, on all ranks; 0 for a view
  double stream_bytes_per_second = 0;  // read and written by the best copy on all ranks at once

  // The time that the copy would take for touched_bytes, divided by `seconds`.
  double stream_limit_ratio() const;
};

struct MeasureOptions {
  int64_t rounds = 10;
  int64_t copy_bytes = int64_t{128} << 20;     // that all ranks together copy: past the caches
  std::function<void(int64_t done)> progress;  // on rank 0, after each round
};

struct RoundsFlags {
  int64_t rounds = 10;
  bool progress = false;  // report progress on stderr, even if it is no terminal
};

// Threads that Measure() starts: ranks 0 to the highest one of the meshes.
int64_t WorldSize(const RedistributionPlan& plan);
// Bytes of memory that Measure() takes, on all ranks.
int64_t MemoryNeeded(const RedistributionPlan& plan, const MeasureOptions& options = {});
// Errors: kInvalidArgument for too many ranks; kResourceExhausted for too little memory.
absl::Status CheckRunnable(const RedistributionPlan& plan, int64_t memory_available);

// Runs the plan on a thread for each rank: untimed first, then in timed rounds, each followed by a
// copy. Checks the first result and the last. Errors: a rank's failure.
absl::StatusOr<RunReport> Measure(const RedistributionPlan& plan,
                                  const MeasureOptions& options = {});

// Describes what went wrong: elements or bytes that differ from the plan; empty if nothing did.
std::string Verdict(const RedistributionPlan& plan, const RunReport& report);

// Errors: of ParseMove, MakePlan and CheckRunnable; a rank's failure (kInternal).
absl::StatusOr<Outcome> RunRedistribute(const MoveFlags& flags, const RoundsFlags& rounds,
                                        bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_REDISTRIBUTE_COMMAND_H_
