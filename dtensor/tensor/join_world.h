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

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tensor/context.h"

struct ncclComm;

namespace DTENSOR_EXPORT dtensor {

struct JoinedRank;     // world_joiner.h
struct LaunchOptions;  // launch.h
class ProcessWorld;    // process_world.h
class RankContext;     // rank_context.h
class TraceFile;       // trace_file.h

// Members that are not set are taken from the environment, as launchers set it
// (runtime/comm/process/launch.h has the order).
struct JoinOptions {
  std::optional<int> rank = {}, size = {}, local_rank = {};
  std::string address = {};     // "host:port" where rank 0 listens
  std::string job = {};         // so that ranks of two jobs at one address do not mix
  std::string secret = {};      // needed if other hosts can reach the address
  double timeout_seconds = 60;  // until all ranks have joined; later, for a rank that is silent
  // kCpu or kCuda, the same on all ranks. With kCuda each rank has a GPU of its own and exchanges
  // by NCCL; the program must be built with --config=cuda (docs/cuda.md says what has run where).
  Device::Kind device = Device::Kind::kCpu;
  // The CUDA ordinal of this rank's GPU, among those visible to this process. Unset: the only
  // visible GPU, else number local_rank modulo the number of visible GPUs.
  std::optional<int> gpu = {};
  // Makes this rank's device on that GPU, for programs that bring their own stream or allocator.
  // Null: the device has a stream of its own, and memory of CUDA's pool.
  CudaDeviceMaker cuda_device = nullptr;
  // An ncclComm_t that the program has created, for exchanges among all ranks. It must contain all
  // ranks of the world in their order, each on its GPU. Create it with blocking = 0, else a call
  // that waits for a rank that died may not return. It must outlive the world and must not be used
  // for anything else meanwhile. The program destroys it; if the world fails, it is revoked. Null:
  // the library creates a communicator.
  ncclComm* nccl = nullptr;
  // Set to true if NCCL cannot revoke `nccl`, because it has failed or its operations do not end.
  // Then it is aborted, and the program must neither use nor destroy it. Read the flag after the
  // world is gone. May be null.
  std::shared_ptr<std::atomic<bool>> nccl_is_gone = nullptr;
  // Called once, with kDeadlineExceeded, if some rank has still not returned timeout_seconds after
  // the others, which wait for it. Only the lowest waiting rank calls it, on the thread that is in
  // Leave(). Null: nothing is reported.
  std::function<void(const absl::Status&)> report = PrintOnStderr;
  ContextOptions contexts = {};  // of this rank; of RunWorld's threads as well
};

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
};

// Joins the world that the options and the environment describe. Under mpirun and Slurm, a program
// that links //dtensor/mpi joins by MPI (join_mpi.h); all others join by TCP. Collective. Errors:
// kInvalidArgument for options or variables that contradict each other or are incomplete, for two
// ranks on one GPU, and if only some ranks are on GPUs; kUnavailable for a GPU that does not exist,
// or a program that is built without CUDA; kDeadlineExceeded, naming the ranks that did not join;
// kPermissionDenied if another job listens at the address; kFailedPrecondition for another number
// of ranks, for two processes with the same rank, or if MPI cannot be used.
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(const JoinOptions& options = {});

// JoinWorld with another way to find the other ranks (join_mpi.h). If this rank's options are not
// valid, `join` gets the reason as `refusal`. It returns that error, on all ranks if possible.
using RankJoiner = absl::FunctionRef<absl::StatusOr<JoinedRank>(const LaunchOptions& launch,
                                                                const absl::Status& refusal)>;
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorldBy(const JoinOptions& options,
                                                         RankJoiner join);

// Runs fn as this process's rank, if a launcher or `join` says that the process is one; else on `n`
// threads, as RunRanks. An exception that leaves fn is its rank's error. A process that is a rank
// computes on join.device if that is kCuda, else on threads.device. Errors: of RunRanks, or of
// JoinWorld and Leave; kInvalidArgument if the process is a rank and threads.device is neither kCpu
// nor kCuda.
absl::Status RunWorld(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& threads = {}, const JoinOptions& join = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_JOIN_WORLD_H_
