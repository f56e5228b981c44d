// Embedding: each rank looks up the rows it holds and leaves the others 0, so a sharded table gives
// P(sum).
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

DType EmbeddingType(Specs operands, AttrsView, int) { return operands[1]->dtype; }

absl::Status EmbeddingForward(const OpCall& call) {
  return kernels::Embedding(call.device(), call.operands[0], call.operands[1],
                            call.OperandIndices(1, 0), call.decision.operands[1]->shape[0],
                            call.results[0]);
}

absl::Status EmbeddingBackward(const GradCall& call) {
  if (!call.wants(1)) return absl::OkStatus();
  return kernels::EmbeddingGrad(call.device(), call.operands[0], call.result_gradients[0],
                                call.OperandIndices(1, 0), call.gradients[1]);
}

// It is linear in the table but not in the ids, and a rule has only one linearity for all operands.
// So Partial operands are reduced first.
const OpDef kEmbeddingOp = {
    .name = "Embedding",
    .rule = "... @v, v d -> ... d",
    .operand_types = {TypeSet::Integers(), TypeSet::Floats()},
    .result_dtype = EmbeddingType,
    .every_device = {EmbeddingForward, EmbeddingBackward},
    .saved_operands = 0b01,
};

}  // namespace

absl::Span<const OpDef* const> EmbeddingOps() {
  static constexpr const OpDef* kOps[] = {&kEmbeddingOp};
  return kOps;
}

}  // namespace internal

TensorOr Embedding(const TensorOr& ids, const TensorOr& table) {
  return Dispatch(internal::kEmbeddingOp, {&ids, &table});
}

}  // namespace dtensor
