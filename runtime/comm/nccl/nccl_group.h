// NcclGroup: the NCCL communicator of a group of ranks, which never blocks: calls begin, and are
// asked whether they are done, until a stop. For sources that are built with CUDA.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_NCCL_GROUP_H_
#define DTENSOR_RUNTIME_COMM_NCCL_NCCL_GROUP_H_

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor {

// Why a wait is to end; OK while it may go on.
using NcclStop = std::function<absl::Status()>;

// Errors: kFailedPrecondition where NCCL is told to block whatever a program asks for.
absl::Status CheckNcclEnvironment();

// A name for a communicator that is to be made, for all its ranks. Errors: the environment's;
// kUnavailable, with NCCL's words.
absl::StatusOr<std::string> NewNcclId();

// One thread calls Call and End; any calls failure, and AbortAll.
class NcclGroup {
 public:
  // Collective. Requires: the GPU is current. Errors: kInvalidArgument for ranks that share a GPU;
  // kUnavailable, with NCCL's words; stop's. What was begun is aborted then.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Connect(absl::string_view id, int size,
                                                            int rank, const NcclStop& stop);
  // The caller's, who destroys it, unless `is_gone` is set, which it is before an abort. Waits
  // until it is made. Errors: kInvalidArgument for one of other ranks, or another GPU; what NCCL
  // reports of it; stop's.
  using Flag = std::shared_ptr<std::atomic<bool>>;
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Adopt(ncclComm_t comm, int size, int rank,
                                                          int gpu, const NcclStop& stop,
                                                          Flag is_gone = nullptr);
  ~NcclGroup();  // requires: ended, or aborted

  // Calls `calls` as one group, and returns when its work is on its stream. Errors: kUnavailable,
  // with NCCL's words; stop's; kAborted once it was aborted. What was begun is aborted then: NCCL's
  // thread launches nothing later on memory that its owner frees.
  using Calls = absl::FunctionRef<ncclResult_t(ncclComm_t)>;
  absl::Status Call(Calls calls, const NcclStop& stop);
  // What NCCL says is wrong. OK while it works, or once it was aborted.
  absl::Status failure() const;

  // All ranks end it, when all their work is done. Errors: stop's: aborted then.
  absl::Status End(const NcclStop& stop);

  // Lets go of what is on its way, undone, in all of them, on threads of their own; waits for them
  // until the deadline, and no longer: an abort may hang. A caller's communicator is revoked, and
  // done when NCCL says that it is quiescent; where it does not come to rest within 0.2 s, or has
  // failed, it is aborted as others are. Returns whether all are done.
  using Deadline = std::chrono::steady_clock::time_point;
  static bool AbortAll(const std::vector<NcclGroup*>& groups, Deadline deadline);

 private:
  struct State;  // which threads that hang may have for longer
  explicit NcclGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void BeginAbort(const std::shared_ptr<State>& state);
  absl::Status Await(const NcclStop& stop);
  absl::Status Finish(const NcclStop& stop);

  const std::shared_ptr<State> state_;
  std::atomic<bool> is_ended_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NCCL_GROUP_H_
