// JoinWorld from a caller's MPI communicator, for programs that link //dtensor/mpi.
//
//   MPI_Init(&argc, &argv);
//   auto world = JoinWorld(comm);   // by all processes of comm
//   ... (*world)->context() ...
//   (*world)->Leave(status);
//   MPI_Finalize();                 // if the world did not fail
//
// Linking it is also all that JoinWorld() and RunWorld() need to send by MPI under mpirun and
// Slurm: they initialize MPI themselves then, and finalize it when the process exits. (A world of
// one sends nothing, and is joined without MPI.)
// When a process dies, a call to MPI may never return (OpenMPI over TCP). Where that is one of this
// library's, this process ends, 5 s after its world has failed: the failure on stderr, status 1, no
// functions of atexit. MPI's own default (MPI_ERRORS_ARE_FATAL) ends processes too.
// docs/running.md says more of that, and what may be called after a failure.
#ifndef DTENSOR_MPI_JOIN_MPI_H_
#define DTENSOR_MPI_JOIN_MPI_H_

#include <mpi.h>

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/join_world.h"

namespace DTENSOR_EXPORT dtensor {

// This process as the rank that it is in `comm`; the world is the communicator's processes, of
// which others may make worlds too, at the same time. The communicator stays the caller's: this
// call makes a duplicate of it, and uses that. So does MPI: it is used by this thread alone,
// within calls, and must not be finalized before the world has ended. DTENSOR_TRANSPORT counts as
// it does without a communicator: `tcp` leaves MPI no more than this call. Rank 0 chooses a port
// and a secret and tells them to the others over MPI, unless its options or its environment
// (DTENSOR_ADDRESS, DTENSOR_JOB, DTENSOR_SECRET) say which.
//
// Collective over `comm`. Errors: kInvalidArgument, on all ranks, for options that contradict each
// other, the communicator (rank, size) or rank 0's (address, job, secret), or for another
// DTENSOR_TRANSPORT; for no communicator, or one between two groups; kFailedPrecondition where MPI
// does not run, or takes no calls from this thread; kDeadlineExceeded where not all ranks call:
// they may call again, and until all have, no other collective call goes by `comm`; kUnavailable
// where rank 0 cannot listen, or a rank's trace cannot be written.
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(MPI_Comm comm,
                                                       const JoinOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_MPI_JOIN_MPI_H_
