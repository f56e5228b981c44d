// LocalRanks: a world whose ranks are threads of this process, and stay from one function to the
// next: threads of its own, or the caller's.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_RANKS_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_RANKS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/core_claim.h"
#include "dtensor/runtime/comm/local/rank_threads.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/local/world_parts.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Thread-safe, but for what one rank's thread has.
class LocalRanks {
 public:
  // Errors: as RunLocalRanks; no thread is started yet.
  static absl::StatusOr<std::unique_ptr<LocalRanks>> Create(int n, const RunOptions& options);
  // Requires: no Run is on its way. What tensors refer to stays while there are any.
  ~LocalRanks();

  int size() const { return static_cast<int>(parts_->devices.size()); }
  Device& device(int rank) { return *parts_->devices[rank]; }
  absl::Status failure() const { return parts_->world->failure(); }
  bool runs() const;  // a Run is on its way

  // As RunLocalRanks, on threads that are kept for the next call. Returns the world's failure at
  // once if it has failed before. Where some ranks return errors and others do not, the world has
  // failed: they are at unlike points of their program. Errors: kFailedPrecondition while another
  // Run is on its way, or if a rank was taken.
  absl::Status Run(const RankFunction& fn);

  // `rank` for a thread of the caller's, in place of Run. Errors: kInvalidArgument for a rank that
  // the world lacks, pinned threads or an executor; kFailedPrecondition for one that was taken
  // before, or after Run; the world's failure.
  absl::StatusOr<Communicator*> Take(int rank);
  // The program of `rank`, which was taken, ended with `status`: finishes what it has begun.
  // Returns the world's failure if it failed, else `status`, prefixed "rank R: ". Once for each
  // rank.
  absl::Status Leave(int rank, absl::Status status);

 private:
  LocalRanks(int n, const RunOptions& options);
  absl::StatusOr<std::unique_ptr<Device>> NewDevice(int rank) const;
  absl::Status MakeDevice(int rank);
  Communicator& CommunicatorOf(int rank);  // on the rank's thread
  absl::Status BeginRun(const RankFunction& fn);
  absl::Status StartThreads();
  absl::Status RunOnLentThreads(const RankFunction& fn);
  absl::Status RunOnThreads(const RankFunction& fn,
                            absl::FunctionRef<void(const std::function<void(int)>&)> start);
  void RunRank(const RankFunction& fn, int rank);
  absl::Status Result();

  const RunOptions options_;
  CoreClaim cores_;
  std::vector<int> gpus_;  // of rank r: the r-th, and round
  std::unique_ptr<WorldParts> parts_;
  mutable std::mutex mutex_;  // of the three below
  bool has_threads_ = false, runs_ = false;
  std::vector<bool> taken_;
  std::vector<absl::Status> results_;  // of the run at hand
  RankThreads threads_;                // gone first
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_RANKS_H_
