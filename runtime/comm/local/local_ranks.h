// LocalRanks: a world whose ranks are threads of this process and persist between calls: threads of
// its own, or the caller's.
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

// Thread-safe, except for what belongs to one rank's thread.
class LocalRanks {
 public:
  // Errors: as RunLocalRanks; no thread is started yet.
  static absl::StatusOr<std::unique_ptr<LocalRanks>> Create(int n, const RunOptions& options);
  // Requires: no Run is in progress. What tensors refer to is kept while there are any.
  ~LocalRanks();

  int size() const { return static_cast<int>(parts_->devices.size()); }
  Device& device(int rank) { return *parts_->devices[rank]; }
  absl::Status failure() const { return parts_->world->failure(); }
  bool runs() const;  // a Run is in progress

  // As RunLocalRanks, on threads that are kept for the next call. If the world has failed before,
  // returns its failure immediately. If some ranks return errors and others do not, the world
  // fails, since its ranks are then at different points of their program. Errors:
  // kFailedPrecondition while another Run is in progress, or if a rank was taken.
  absl::Status Run(const RankFunction& fn);

  // Gives `rank` to a thread of the caller's, instead of calling Run. Errors: kInvalidArgument for
  // a rank that is not in the world, and if threads are pinned or there is an executor;
  // kFailedPrecondition if the rank was taken before, or after Run; the world's failure.
  absl::StatusOr<Communicator*> Take(int rank);
  // Ends the program of `rank`, which was taken, with `status`: finishes the exchanges that it has
  // begun. Returns the world's failure if it failed, else `status`, prefixed "rank R: " unless it
  // names a rank so. Call it once for each rank.
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
  std::vector<int> gpus_;  // rank r has gpus_[r % size]
  std::unique_ptr<WorldParts> parts_;
  mutable std::mutex mutex_;  // of the three below
  bool has_threads_ = false, runs_ = false;
  std::vector<bool> taken_;
  std::vector<absl::Status> results_;  // of the current run
  RankThreads threads_;                // destroyed first
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_RANKS_H_
