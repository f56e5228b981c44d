// MPI in this process: started, waited for and ended without ever blocking for ever.
//
// MPI does not detect failures: a call that needs a dead peer may never return, and operations in
// flight cannot be cancelled. So nothing here blocks in MPI; waits poll requests, and end when
// their caller says so. If a non-blocking call hangs, the process ends (call_watch.h).
#ifndef DTENSOR_RUNTIME_COMM_MPI_MPI_SESSION_H_
#define DTENSOR_RUNTIME_COMM_MPI_MPI_SESSION_H_

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor {

// Why a wait should end; OK while it may continue. Thread-safe.
using MpiStop = std::function<absl::Status()>;

// Initializes MPI, unless the program has done so. MPI_Init waits for all processes that mpirun has
// started, so it runs on a thread of its own; if `stop` ends the wait, that thread stays in
// MPI_Init. If MPI was initialized here, it is finalized when the process exits, unless by then a
// wait was given up, or a world has failed, could not be joined, or is still running: MPI_Finalize
// could then wait for dead processes. Errors: stop's; kFailedPrecondition if MPI is finalized,
// takes no calls from this thread, or was left by a failed world with messages in flight.
absl::Status StartMpi(const MpiStop& stop);
// Whether MPI can be called: it is initialized, and not finalized.
bool MpiIsRunning();
// Whether StartMpi has initialized MPI. If so, nothing else in this process calls it, as far as
// this library knows.
bool MpiIsOurs();

// Waits for the request that `start` makes; `call` is the name of MPI's function. If `stop` ends
// the wait, the request is lost: what it refers to must then stay in place for good. If MPI itself
// does not return for 5 s after that, the process ends. Errors: stop's; as MpiError; kInternal if
// no thread can be created.
using MpiStart = absl::FunctionRef<int(MPI_Request*)>;
absl::Status AwaitMpi(const char* call, MpiStart start, const MpiStop& stop);
// Returns a communicator of the same processes that returns errors instead of aborting. Collective.
// If the wait is given up, the next call for `comm` continues it, so late ranks meet those that try
// again.
absl::StatusOr<MPI_Comm> DuplicateComm(MPI_Comm comm, const MpiStop& stop);
// kUnavailable, with MPI's words for `code`.
absl::Status MpiError(absl::string_view call, int code);

// A world begins to use MPI, and ends its use: as all others did, or by a failure, perhaps with
// messages in flight, for which MPI may still write to memory if it is called again.
enum class MpiEnd { kClean, kFailed, kFailedUnderWay };
void BeginMpiWorld();
void EndMpiWorld(MpiEnd end);

// A world's use of MPI apart from its messages, to find each other. It lasts as long as this
// object.
class MpiUse {
 public:
  MpiUse() { BeginMpiWorld(); }
  ~MpiUse() { EndMpiWorld(end_); }
  MpiUse(const MpiUse&) = delete;
  MpiUse& operator=(const MpiUse&) = delete;
  void EndsClean() { end_ = MpiEnd::kClean; }  // if not called, it failed

 private:
  MpiEnd end_ = MpiEnd::kFailed;
};

// Keeps SIGPIPE from killing this thread when MPI writes to a connection of a dead peer, for which
// OpenMPI's TCP raises it. Hold one around calls that may send.
class SigpipeGuard {
 public:
  SigpipeGuard();
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool was_blocked_;
};

// Pauses between two polls for something that has not come for `waited`: not at all while it may
// come soon, later a sleep of an eighth of `waited`. (On a busy machine, a thread that yields
// instead of sleeping waits until all others have had their turn.)
void PauseBetweenLooks(std::chrono::nanoseconds waited, std::chrono::nanoseconds most);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_MPI_SESSION_H_
