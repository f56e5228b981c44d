// NcclGroup: a group's NCCL communicator, in non-blocking mode: calls are started, and then polled
// until they are done or a stop ends the wait. For sources that are built with CUDA.
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

// Why a wait should end; OK while it may continue.
using NcclStop = std::function<absl::Status()>;

// Errors: kFailedPrecondition if the environment makes NCCL block whatever a program asks for.
absl::Status CheckNcclEnvironment();

// Makes an id for a new communicator, to be used by all its ranks. Errors: the environment's;
// kUnavailable, with NCCL's message.
absl::StatusOr<std::string> NewNcclId();

// One thread calls Call and End; any thread may call failure, and AbortAll.
class NcclGroup {
 public:
  // Collective. Requires: the GPU is current. Errors: kInvalidArgument for ranks that share a GPU;
  // kUnavailable, with NCCL's message; stop's. After an error, what was begun is aborted.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Connect(absl::string_view id, int size,
                                                            int rank, const NcclStop& stop);
  // Uses the caller's communicator, which the caller destroys, unless `is_gone` is set; it is set
  // before an abort. Waits until the communicator has been created. Errors: kInvalidArgument for a
  // communicator of other ranks or another GPU; what NCCL reports of it; stop's.
  using Flag = std::shared_ptr<std::atomic<bool>>;
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Adopt(ncclComm_t comm, int size, int rank,
                                                          int gpu, const NcclStop& stop,
                                                          Flag is_gone = nullptr);
  ~NcclGroup();  // requires: ended, or aborted

  // Runs `calls` as one NCCL group, and returns when its work is on its stream. Errors:
  // kUnavailable, with NCCL's message; stop's; kAborted if it was aborted before. After an error,
  // what was begun is aborted, so that NCCL's thread launches nothing later on memory that its
  // owner frees.
  using Calls = absl::FunctionRef<ncclResult_t(ncclComm_t)>;
  absl::Status Call(Calls calls, const NcclStop& stop);
  // The error that NCCL reports. OK while it works, or once it was aborted.
  absl::Status failure() const;

  // Called by all ranks when all their work is done. Errors: stop's, after which it is aborted.
  absl::Status End(const NcclStop& stop);

  // Abandons what is in flight in all groups, each on a thread of its own, and waits for that no
  // longer than `deadline`, since an abort may hang. A caller's communicator is revoked, and is
  // done when NCCL says that it is quiescent; if it does not come to rest within 0.2 s, or has
  // failed, it is aborted like the others. Returns whether all are done.
  using Deadline = std::chrono::steady_clock::time_point;
  static bool AbortAll(const std::vector<NcclGroup*>& groups, Deadline deadline);

 private:
  struct State;  // shared with threads that may hang, and outlive this
  explicit NcclGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void BeginAbort(const std::shared_ptr<State>& state);
  absl::Status Await(const NcclStop& stop);
  absl::Status Finish(const NcclStop& stop);

  const std::shared_ptr<State> state_;
  std::atomic<bool> is_ended_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NCCL_GROUP_H_
