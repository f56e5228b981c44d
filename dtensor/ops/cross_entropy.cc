// CrossEntropy in two stages: statistics of each shard of the classes, then their merge.
#include "absl/strings/str_cat.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

absl::Status CrossEntropyCheck(Specs operands, AttrsView) {
  const Spec& logits = *operands[0];
  const Spec& targets = *operands[1];
  // The rule alone would broadcast.
  if (logits.ndim() >= 1 && absl::MakeConstSpan(logits.shape).first(logits.ndim() - 1) ==
                                absl::MakeConstSpan(targets.shape)) {
    return absl::OkStatus();
  }
  return InvalidArgument({"CrossEntropy: needs one target for each row of logits (",
                          SpecsText(operands), "); targets have the shape of logits without the ",
                          "last dimension"});
}

DType CrossEntropyType(Specs operands, AttrsView, int) { return AccumulatorOf(operands[0]->dtype); }

// One rank's tokens in a row: logits [T, classes here] and targets [T].
struct Rows {
  Tensor logits, targets;
  int64_t tokens = 0;
};
absl::StatusOr<Rows> Flatten(Device& device, const Tensor& logits, const Tensor& targets) {
  Rows rows;
  rows.tokens = targets.numel();
  DT_ASSIGN_OR_RETURN(rows.logits,
                      ReshapeLocal(device, logits, {rows.tokens, logits.shape().back()}));
  DT_ASSIGN_OR_RETURN(rows.targets, ReshapeLocal(device, targets, {rows.tokens}));
  return rows;
}

// Results: the loss and the logarithm of each row's sum of exponentials.
absl::Status CrossEntropyForward(const OpCall& call) {
  Device& device = call.device();
  const int64_t ignore = call.attrs<CrossEntropyAttrs>().ignore;
  DT_ASSIGN_OR_RETURN(const Rows rows, Flatten(device, call.operands[0], call.operands[1]));
  DT_ASSIGN_OR_RETURN(const Tensor stats,
                      Tensor::Empty(device, call.results[0].dtype(), {rows.tokens, 3}));
  const int class_dim = call.operands[0].ndim() - 1;
  DT_RETURN_IF_ERROR(kernels::CrossEntropyStats(
      device, rows.logits, rows.targets, call.OperandIndices(0, class_dim),
      call.decision.operands[0]->shape.back(), ignore, stats));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards("v", stats));
  DT_ASSIGN_OR_RETURN(const Tensor loss, call.results[0].Reshape({rows.tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor lse, call.results[1].Reshape({rows.tokens}));
  return kernels::CrossEntropyMerge(device, all, rows.targets, ignore, lse, loss);
}

absl::Status CrossEntropyBackward(const GradCall& call) {
  if (!call.wants(0)) return absl::OkStatus();
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const Rows rows, Flatten(device, call.operands[0], call.operands[1]));
  DT_ASSIGN_OR_RETURN(const Tensor lse, call.results[1].Reshape({rows.tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor dloss,
                      ReshapeLocal(device, call.result_gradients[0], {rows.tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor dlogits, call.gradients[0].Reshape(rows.logits.shape()));
  return kernels::CrossEntropyGrad(device, rows.logits, rows.targets,
                                   call.OperandIndices(0, call.operands[0].ndim() - 1),
                                   call.attrs<CrossEntropyAttrs>().ignore, lse, dloss, dlogits);
}

const OpDef kCrossEntropyOp = {
    .name = "CrossEntropy",
    .rule = "... v^, ... -> ..., ...",
    .attrs = &kAttrsType<CrossEntropyAttrs>,
    .operand_types = {TypeSet::Floats(), TypeSet::Integers()},
    .check = CrossEntropyCheck,
    .result_dtype = CrossEntropyType,
    .host = {CrossEntropyForward, CrossEntropyBackward},
    .saved_operands = 0b11,
    .saved_results = 0b10,
};

}  // namespace

absl::Span<const OpDef* const> CrossEntropyOps() {
  static constexpr const OpDef* kOps[] = {&kCrossEntropyOp};
  return kOps;
}

}  // namespace internal

TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore) {
  return Dispatch(internal::kCrossEntropyOp, {&logits, &targets},
                  internal::CrossEntropyAttrs{ignore});
}

}  // namespace dtensor
