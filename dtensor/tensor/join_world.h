// JoinWorld: this process as one rank of a world of processes, on one host or on many.
//
//   int main() {
//     const absl::Status status = RunWorld(4, [](Context& context) -> absl::Status { ... });
//     return status.ok() ? 0 : 1;
//   }
//
// runs four threads when it is started by itself, and one rank of as many as there are when dtrun,
// torchrun, mpirun or Slurm start it. docs/running.md has their command lines.
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
class TraceFile;       // trace_file.h

// What is not said here, the environment says (runtime/comm/process/launch.h has the order).
struct JoinOptions {
  std::optional<int> rank = {}, size = {}, local_rank = {};
  std::string address = {};     // "host:port" where rank 0 listens
  std::string job = {};         // so that two worlds at one address do not mix
  std::string secret = {};      // needed where other hosts can reach the address
  double timeout_seconds = 60;  // for all ranks to come; of a rank's silence, afterwards
  // kCpu or kCuda, the same on all ranks. On kCuda each rank has a GPU for itself, and exchanges by
  // NCCL, in programs that are built with --config=cuda (docs/cuda.md says what has run where).
  Device::Kind device = Device::Kind::kCpu;
  // The CUDA ordinal of this rank's GPU, among those visible to this process. Unset: the only
  // visible GPU, else number local_rank modulo the number of visible GPUs.
  std::optional<int> gpu = {};
  // Makes this rank's device on that GPU, for a stream or an allocator of the program's. Null: a
  // stream of its own, and memory of CUDA's pool.
  CudaDeviceMaker cuda_device = nullptr;
  // An ncclComm_t of the program's, of all ranks of the world in their order, each on its GPU,
  // which carries what all ranks exchange; made with blocking = 0, or a call that waits for a rank
  // that died may not return. It outlives the world, is nobody else's meanwhile, and stays the
  // program's to destroy; if the world fails it is revoked. Null: NCCL makes one.
  ncclComm* nccl = nullptr;
  // Set where NCCL cannot revoke it, for it has failed or what is on its way does not end: it is
  // aborted then, and the program neither touches nor destroys it. For the program to look at when
  // the world is gone. May be null.
  std::shared_ptr<std::atomic<bool>> nccl_is_gone = nullptr;
  // Called once, with kDeadlineExceeded, if some rank has still not returned timeout_seconds after
  // the others, which wait for it. Only the lowest waiting rank calls it, on the thread that is in
  // Leave(). Null: nothing is reported.
  std::function<void(const absl::Status&)> report = PrintOnStderr;
  ContextOptions contexts = {};  // of this rank; of RunWorld's threads as well
};

// One rank of a world, of the thread that joined. Its tensors may outlive it, as those of RunRanks
// may. A process may be in several worlds, one after the other or at once, each by options that
// name its own job, address, rank and size: what a launcher says is one world's. A child that the
// process forks must end by _exit or exec: one that ran destructors would leave the world in its
// parent's name. Where ranks of a host share memory the child has no tensors either, and dies of
// SIGSEGV where it touches one; copy values first (ToGlobal). While it lives it holds this rank's
// connections: a death of this rank is then found after the time-out.
class JoinedWorld {
 public:
  // By JoinWorld.
  JoinedWorld(std::unique_ptr<ProcessWorld> world, int local_rank, const ContextOptions& contexts);
  // Leaves, unless it has left: with OK, so a program that an error ends says so by Leave(); with
  // an error where an exception is on its way through the thread, so that the other ranks hear of
  // it.
  ~JoinedWorld();
  JoinedWorld(const JoinedWorld&) = delete;
  JoinedWorld& operator=(const JoinedWorld&) = delete;

  Context& context() { return *context_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  // Whether this rank could write its trace now. Errors: kUnavailable.
  absl::Status CheckTraceFile() const;

  // This rank's program ended with `status`; waits until those of all ranks have. Returns the
  // world's failure if it failed, else `status`, else whether the trace was written. The Context
  // can exchange nothing any more.
  absl::Status Leave(const absl::Status& status);

 private:
  const ContextOptions options_;
  std::unique_ptr<ProcessWorld> world_;
  std::unique_ptr<Context> context_;
  const std::unique_ptr<TraceFile> trace_;  // of this rank
  const int local_rank_;
  const ExceptionWatch exceptions_;
  bool left_ = false;
};

// Under mpirun and Slurm, a program that links //dtensor/mpi joins by MPI (join_mpi.h), others by
// TCP. Collective. Errors: kInvalidArgument for options or variables that contradict each other, or
// say too little, for two ranks on one GPU, and for ranks on GPUs beside others; kUnavailable for a
// GPU that is not there, or a program that is built without CUDA; kDeadlineExceeded, naming the
// ranks that did not come; kPermissionDenied where another job listens at the address;
// kFailedPrecondition for another number of ranks, or two processes of one rank, or an MPI that
// cannot be used.
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(const JoinOptions& options = {});

// JoinWorld by another way to find the others (join_mpi.h). `join` is told why this rank's options
// cannot be, if they cannot, and returns that; on all ranks, where it can.
using RankJoiner = absl::FunctionRef<absl::StatusOr<JoinedRank>(const LaunchOptions& launch,
                                                                const absl::Status& refusal)>;
absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorldBy(const JoinOptions& options,
                                                         RankJoiner join);

// Runs fn as this process's rank, where a launcher or `join` says that it is one; else on `n`
// threads, as RunRanks. An exception that leaves fn is its rank's error. A process that is a rank
// computes where join says, or else on threads.device. Errors: of RunRanks, or of JoinWorld and
// Leave; kInvalidArgument for a process that is a rank, and threads.device is deferred.
absl::Status RunWorld(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& threads = {}, const JoinOptions& join = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_JOIN_WORLD_H_
