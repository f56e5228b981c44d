// RankContext: a rank's Context as its world holds it. RunRanks, Simulate, LocalWorld, LocalRank
// and JoinedWorld have one for each of their ranks, so in all of them a Context ends alike.
#ifndef DTENSOR_TENSOR_RANK_CONTEXT_H_
#define DTENSOR_TENSOR_RANK_CONTEXT_H_

#include <memory>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tensor/context.h"
#include "dtensor/trace/trace_file.h"

namespace dtensor {

class RankContext {
 public:
  // `communicator`, `device` and `traces` must outlive it.
  RankContext(Communicator& communicator, Device& device, const ContextOptions& options,
              TraceFile& traces);
  // Ends the rank's program without communication, unless Finish() was called. The Context is then
  // destroyed, or, if `device` has tensors, passed to the device, which is kept as long as it has
  // tensors (kept_worlds.h).
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  Context& operator*() { return *context_; }

  // Ends the rank's program, which returned `status`, with Context::FinishProgram, and adds its
  // trace to the trace file. Returns the first error. Call it once.
  absl::Status Finish(absl::Status status);

 private:
  absl::Status KeepTrace();

  std::shared_ptr<Context> context_;
  TraceFile& traces_;
  bool finished_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_RANK_CONTEXT_H_
