// Another way to join a world than by launch.h and TCP: by MPI, in programs that link it.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_WORLD_JOINER_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_WORLD_JOINER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct JoinedRank {
  std::unique_ptr<ProcessWorld> world;
  int local_rank = 0;
};

// Joins as a rank, or returns no world if the options and the environment do not ask for this way.
using WorldJoiner = absl::StatusOr<JoinedRank> (*)(const JoinOptions& options);

void SetWorldJoiner(WorldJoiner joiner);  // by a library that is linked, before main
WorldJoiner world_joiner();               // null: there is none

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_WORLD_JOINER_H_
