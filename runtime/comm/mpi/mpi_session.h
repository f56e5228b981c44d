// MPI in this process: started, waited for and ended without ever waiting for ever.
//
// MPI is no failure detector: a call that needs a peer which died may never return, and what is
// on its way cannot be taken back. So nothing here blocks in MPI; waits are of requests, and end
// when their caller says so. Where a call hangs that does not block, the process ends
// (call_watch.h).
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

// Why a wait is to end; OK while it may go on. Thread-safe.
using MpiStop = std::function<absl::Status()>;

// Initializes MPI, unless the program has. MPI_Init waits for all processes that mpirun has
// started, so it runs on a thread of its own; where `stop` ends the wait, that thread stays in it.
// What was initialized here is finalized when the process exits, unless by then a wait was given
// up, or a world has failed, could not be joined, or still goes on: then MPI_Finalize could wait
// for the dead. Errors: stop's; kFailedPrecondition for an MPI that is finalized, that takes no
// calls from this thread, or that a failed world has left with messages under way.
absl::Status StartMpi(const MpiStop& stop);
// MPI can be called: it is initialized, and not finalized.
bool MpiIsRunning();
// StartMpi has initialized it, so nothing else in this process calls it, as far as this library
// knows.
bool MpiIsOurs();

// Until what `start`, which is MPI's function `call`, requests is done. Where `stop` ends the wait,
// the request is lost: what it refers to must stay where it is for good. Where `stop` does, and MPI
// does not return for 5 s, the process ends. Errors: stop's; as MpiError; kInternal where there is
// no thread to be had.
using MpiStart = absl::FunctionRef<int(MPI_Request*)>;
absl::Status AwaitMpi(const char* call, MpiStart start, const MpiStop& stop);
// A communicator of the same processes, whose errors are returned. Collective. Where the wait is
// given up, the next call for `comm` goes on with it: so ranks that come late meet those that try
// again.
absl::StatusOr<MPI_Comm> DuplicateComm(MPI_Comm comm, const MpiStop& stop);
// kUnavailable, with MPI's words for `code`.
absl::Status MpiError(absl::string_view call, int code);

// A world begins to use MPI, and ends: as all others did, or by a failure, perhaps with messages
// under way that MPI may still write to memory if it is called again.
enum class MpiEnd { kClean, kFailed, kFailedUnderWay };
void BeginMpiWorld();
void EndMpiWorld(MpiEnd end);

// A world's use of MPI beside its messages: to come together. It ends with this.
class MpiUse {
 public:
  MpiUse() { BeginMpiWorld(); }
  ~MpiUse() { EndMpiWorld(end_); }
  MpiUse(const MpiUse&) = delete;
  MpiUse& operator=(const MpiUse&) = delete;
  void EndsClean() { end_ = MpiEnd::kClean; }  // if not said, it failed

 private:
  MpiEnd end_ = MpiEnd::kFailed;
};

// Keeps this thread from being killed where MPI writes to a connection that a dead peer had:
// OpenMPI's TCP raises SIGPIPE. Whoever calls what may send holds one.
class SigpipeGuard {
 public:
  SigpipeGuard();
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool was_blocked_;
};

// Between two looks at what has not come for `waited`: nothing while it may come at once, later a
// sleep of an eighth of that. (Whoever yields instead of sleeping, on a busy machine, waits until
// all others have had their turn.)
void PauseBetweenLooks(std::chrono::nanoseconds waited, std::chrono::nanoseconds most);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_MPI_SESSION_H_
