#include "dtensor/mpi/join_mpi.h"

#include "dtensor/runtime/comm/mpi/mpi_world.h"

namespace dtensor {

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(MPI_Comm comm, const JoinOptions& options) {
  return JoinWorldBy(options, [&](const LaunchOptions& launch, const absl::Status& refusal) {
    return JoinMpiWorld(comm, launch, refusal);
  });
}

}  // namespace dtensor
