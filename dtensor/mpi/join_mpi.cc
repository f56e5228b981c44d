#include "dtensor/mpi/join_mpi.h"

#include <utility>

#include "dtensor/runtime/comm/mpi/mpi_world.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(MPI_Comm comm, const JoinOptions& options) {
  DT_ASSIGN_OR_RETURN(JoinedRank joined, JoinMpiWorld(comm, ToLaunchOptions(options)));
  return std::make_unique<JoinedWorld>(std::move(joined.world), joined.local_rank,
                                       options.contexts);
}

}  // namespace dtensor
