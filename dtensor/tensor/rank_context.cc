#include "dtensor/tensor/rank_context.h"

#include <utility>

#include "dtensor/runtime/core/no_throw.h"

namespace dtensor {

RankContext::RankContext(Communicator& communicator, Device& device, const ContextOptions& options,
                         TraceFile& traces)
    : context_(std::make_shared<Context>(communicator, device, options)), traces_(traces) {}

RankContext::~RankContext() {
  if (!finished_) {
    context_->EndProgram();
    KeepTrace().IgnoreError();
  }
  Device& device = context_->device();
  if (device.tensors() > 0) device.KeepAlive(std::move(context_));
}

absl::Status RankContext::Finish(absl::Status status) {
  finished_ = true;
  status = context_->FinishProgram(std::move(status));
  status.Update(KeepTrace());
  return status;
}

absl::Status RankContext::KeepTrace() {
  return NoThrow([&] {
    if (context_->tracer() != nullptr) traces_.Add(context_->trace());
    return absl::OkStatus();
  });
}

}  // namespace dtensor
