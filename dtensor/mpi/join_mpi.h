// JoinWorld from an MPI communicator of the caller's, for programs that link //dtensor/mpi.
//
//   MPI_Init(&argc, &argv);
//   auto world = JoinWorld(comm);   // by all processes of comm
//   ... (*world)->context() ...
//   (*world)->Leave(status);
//   MPI_Finalize();                 // if the world did not fail
//
// Linking it is also all that JoinWorld() and RunWorld() need to send by MPI under mpirun and
// Slurm: they then initialize MPI themselves, and finalize it when the process exits. (A world of
// one rank sends nothing, and is joined without MPI.)
//
// When a process dies, a call to MPI may never return (OpenMPI over TCP). If it is a call made by
// this library, this process exits 5 s after its world has failed: with the failure on stderr,
// status 1, and without running atexit functions. MPI's own default (MPI_ERRORS_ARE_FATAL) ends
// processes too. docs/running.md says more about this, and about what may be called after a
// failure.
#ifndef DTENSOR_MPI_JOIN_MPI_H_
#define DTENSOR_MPI_JOIN_MPI_H_

#include <mpi.h>

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/join_world.h"

namespace DTENSOR_EXPORT dtensor {

// Joins this process as the rank that it is in `comm`. The world consists of the communicator's
// processes; other communicators may be made into worlds too, at the same time. The communicator
// stays the caller's: this call duplicates it and uses the duplicate. MPI stays the caller's too:
// it is used only by this thread, within calls, and must not be finalized before the world has
// ended. DTENSOR_TRANSPORT has the same effect as without a communicator: with `tcp`, MPI is used
// in this call only. Rank 0 chooses a port and a secret and sends them to the others over MPI,
// unless its options or its environment (DTENSOR_ADDRESS, DTENSOR_JOB, DTENSOR_SECRET) specify
// them.
//
// Collective over `comm`. Errors: kInvalidArgument, on all ranks, for options that contradict each
// other, the communicator (rank, size) or rank 0's (address, job, secret), or for another
// DTENSOR_TRANSPORT; for no communicator, or an intercommunicator; kFailedPrecondition if MPI is
// not running, or does not allow calls from this thread; kDeadlineExceeded if not all ranks call:
// they may call again, and until all have done so, no other collective call may use `comm`;
// kUnavailable if rank 0 cannot listen, or a rank's trace cannot be written.
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(MPI_Comm comm,
                                                       const JoinOptions& options = {},
                                                       const ContextOptions& contexts = {});

}  // namespace dtensor

#endif  // DTENSOR_MPI_JOIN_MPI_H_
