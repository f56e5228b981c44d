// Softmax and LogSoftmax. If a row is sharded, each rank computes the largest element and the sum
// of exponentials of its part, and every rank merges them. The gradient does the same with one sum.
#include "dtensor/runtime/kernels/softmax.h"

#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/shard_stats.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"

namespace dtensor {
namespace internal {
namespace {

using kernels::SoftmaxForm;

template <SoftmaxForm kForm>
absl::Status SoftmaxForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  if (call.NumShards("d") == 1) return kernels::Softmax(device, kForm, x, y);
  DT_ASSIGN_OR_RETURN(const Tensor stats, RowStats(device, x, {2}));
  DT_RETURN_IF_ERROR(kernels::SoftmaxStats(device, x, stats));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", stats));
  return kernels::SoftmaxMerge(device, kForm, x, all, y);
}

template <SoftmaxForm kForm>
absl::Status SoftmaxBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor &y = call.results[0], &dy = call.result_gradients[0], &dx = call.gradients[0];
  if (call.NumShards("d") == 1) return kernels::SoftmaxGrad(device, kForm, y, dy, dx);
  DT_ASSIGN_OR_RETURN(const Tensor sums, RowStats(device, y));
  DT_RETURN_IF_ERROR(kernels::SoftmaxGradSums(device, kForm, y, dy, sums));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", sums));
  return kernels::SoftmaxGradMerge(device, kForm, y, dy, all, dx);
}

const OpDef kSoftmaxOp = {
    .name = "Softmax",
    .rule = "... d^ -> ... d^",
    .types = TypeSet::Floats(),
    .every_device = {SoftmaxForward<SoftmaxForm::kPlain>, SoftmaxBackward<SoftmaxForm::kPlain>},
    .saved_results = 0b1,
};

const OpDef kLogSoftmaxOp = {
    .name = "LogSoftmax",
    .rule = "... d^ -> ... d^",
    .types = TypeSet::Floats(),
    .every_device = {SoftmaxForward<SoftmaxForm::kLog>, SoftmaxBackward<SoftmaxForm::kLog>},
    .saved_results = 0b1,
};

}  // namespace

absl::Span<const OpDef* const> SoftmaxOps() {
  static constexpr const OpDef* kOps[] = {&kSoftmaxOp, &kLogSoftmaxOp};
  return kOps;
}

}  // namespace internal

TensorOr Softmax(const TensorOr& x) { return Dispatch(internal::kSoftmaxOp, {&x}); }
TensorOr LogSoftmax(const TensorOr& x) { return Dispatch(internal::kLogSoftmaxOp, {&x}); }

}  // namespace dtensor
