#include "dtensor/mpi/join_mpi.h"

#include "dtensor/runtime/comm/mpi/mpi_world.h"

namespace dtensor {

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(MPI_Comm comm, const JoinOptions& options,
                                                       const ContextOptions& contexts) {
  return JoinWorldBy([&] { return JoinMpiWorld(comm, options); }, contexts);
}

}  // namespace dtensor
