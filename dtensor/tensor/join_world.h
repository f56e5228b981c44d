// JoinWorld: this process as one rank of a world of processes, on one host or on many.
//
//   int main() {
//     const absl::Status status = RunWorld(4, [](Context& context) -> absl::Status { ... });
//     return status.ok() ? 0 : 1;
//   }
//
// runs four ranks as threads if the program is started directly. If dtrun, torchrun, mpirun or
// Slurm start it, each process is one rank of the launcher's world. docs/running.md has their
// command lines.
#ifndef DTENSOR_TENSOR_JOIN_WORLD_H_
#define DTENSOR_TENSOR_JOIN_WORLD_H_

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/process/join_options.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

struct JoinedRank;   // world_joiner.h
class ProcessWorld;  // process_world.h
class RankContext;   // rank_context.h
class TraceFile;     // trace_file.h

// This process's rank of a world. It belongs to the thread that joined. Its tensors may outlive it,
// as those of RunRanks may. A process may be in several worlds, one after the other or at once, if
// the options for each give its job, address, rank and size: the launcher's variables describe only
// one world.
//
// A child that the process forks must end by _exit or exec: if it ran destructors, it would leave
// the world in its parent's name. If ranks of a host share memory, the child has no tensors either,
// and dies of SIGSEGV if it touches one; copy values first (ToGlobal). While the child lives, it
// holds this rank's connections open, so the death of this rank is noticed only after the time-out.
class JoinedWorld {
 public:
  // Called by JoinWorld.
  JoinedWorld(std::unique_ptr<ProcessWorld> world, int local_rank, const ContextOptions& contexts);
  // Calls Leave(), unless that was called: with OK, or with an error if the thread is unwinding
  // from an exception, so that other ranks learn of it. A program that ends with an error has to
  // call Leave() itself.
  ~JoinedWorld();
  JoinedWorld(const JoinedWorld&) = delete;
  JoinedWorld& operator=(const JoinedWorld&) = delete;

  Context& context();
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  // Checks that this rank can write its trace. Errors: kUnavailable.
  absl::Status CheckTraceFile() const;

  // Says that this rank's program has ended with `status`, and waits until the programs of all
  // ranks have ended. Returns the world's failure if it failed; else `status`, if it is an error;
  // else whether the trace was written. Afterwards the Context cannot communicate.
  absl::Status Leave(const absl::Status& status);

 private:
  std::unique_ptr<ProcessWorld> world_;
  std::unique_ptr<TraceFile> trace_;  // of this rank
  std::unique_ptr<RankContext> context_;
  const int local_rank_;
  const ExceptionWatch exceptions_;
  bool left_ = false;
  absl::Status result_;  // of the first Leave
};

// Joins the world that the options and the environment describe. Under mpirun and Slurm, a program
// that links //dtensor/mpi joins by MPI (join_mpi.h); all others join by TCP. Collective. Errors:
// kInvalidArgument for options or variables that contradict each other or are incomplete, for two
// ranks on one GPU, and if only some ranks are on GPUs; kUnavailable for a GPU that does not exist,
// or a program that is built without CUDA; kDeadlineExceeded, naming the ranks that did not join;
// kPermissionDenied if another job listens at the address; kFailedPrecondition for another number
// of ranks, for two processes with the same rank, or if MPI cannot be used.
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(const JoinOptions& options = {},
                                                       const ContextOptions& contexts = {});

// JoinWorld with another way to find the other ranks (join_mpi.h).
using RankJoiner = absl::FunctionRef<absl::StatusOr<JoinedRank>()>;
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorldBy(RankJoiner join,
                                                         const ContextOptions& contexts);

// Runs fn as this process's rank, if a launcher's variables say that the process is one (launch.h);
// else on `n` threads, as RunRanks does. An exception that leaves fn is its rank's error. A process
// that is a rank uses device, cuda_device, timeout_seconds and report of `options`, as JoinOptions
// have them; the other options are for threads. A program that has JoinOptions of its own calls
// JoinWorld. Errors: of RunRanks, or of JoinWorld and Leave; kInvalidArgument if the process is a
// rank and the device is neither kCpu nor kCuda.
absl::Status RunWorld(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options = {}, const ContextOptions& contexts = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_JOIN_WORLD_H_
