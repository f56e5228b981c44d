// Joining a world by MPI: from a caller's communicator, or where mpirun or Slurm started this
// process. A program that links this room joins so; others never meet MPI.
#ifndef DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_
#define DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_

#include <mpi.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/world_joiner.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// This process as the rank that it is in `comm`, which stays the caller's, and by which a duplicate
// is made: over that ranks gather what they are, and send later, if anything is sent. Collective.
// Where rank 0 listens, the job and the secret are rank 0's: as its options or its environment
// (launch.h) say, else made here, and told to the others over MPI. `refusal`: why this rank's
// options cannot be. Errors, on all ranks: kInvalidArgument, naming the rank, for a refusal, and
// where options contradict the communicator or rank 0's, or DTENSOR_TRANSPORT is none; kUnavailable
// where rank 0 cannot listen; kDeadlineExceeded where not all ranks call: it may be called again,
// by all; kFailedPrecondition for an MPI that does not run, or takes no calls from this thread; as
// ProcessWorld::Join.
absl::StatusOr<JoinedRank> JoinMpiWorld(MPI_Comm comm, const LaunchOptions& options,
                                        const absl::Status& refusal);

// A WorldJoiner: where mpirun, or Slurm with its MPI, says which rank this is. Not where options or
// dtrun's or torchrun's variables say it, nor where DTENSOR_TRANSPORT is tcp, nor for one rank.
absl::StatusOr<JoinedRank> JoinMpiLaunch(const LaunchOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_
