// Joins a world by MPI: from a caller's communicator, or because mpirun or Slurm started this
// process. Programs that link this room can join in this way; others never use MPI.
#ifndef DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_
#define DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_

#include <mpi.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/world_joiner.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Joins as the rank that this process has in `comm`. `comm` stays the caller's; the ranks exchange
// their cards, and later messages, if there are any, over a duplicate. Collective. Rank 0's
// address, job and secret apply: they come from its options or its environment (launch.h), or are
// made here, and are sent to the others by MPI. Errors, on all ranks: kInvalidArgument, naming the
// rank, for options that ReadGpu refuses, or that contradict the communicator or rank 0's, or if
// DTENSOR_TRANSPORT is invalid; kUnavailable if rank 0 cannot listen; kDeadlineExceeded if not all
// ranks call (all ranks may then call it again); kFailedPrecondition if MPI is not running, or
// takes no calls from this thread; as ProcessWorld::Join.
absl::StatusOr<JoinedRank> JoinMpiWorld(MPI_Comm comm, const JoinOptions& options);

// A WorldJoiner, used if mpirun, or Slurm with its MPI, says which rank this is. It does not apply
// if options or the variables of dtrun or torchrun say it, if DTENSOR_TRANSPORT is tcp, or for one
// rank.
absl::StatusOr<JoinedRank> JoinMpiLaunch(const JoinOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_MPI_WORLD_H_
