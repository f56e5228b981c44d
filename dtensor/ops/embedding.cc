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

absl::Status EmbeddingCheck(Specs operands, const Attrs&) {
  const DType ids = operands[0]->dtype;
  if ((ids == DType::kI32 || ids == DType::kI64) && IsFloat(operands[1]->dtype)) {
    return absl::OkStatus();
  }
  return InvalidArgument({"Embedding: takes ids of i32 or i64 and a table of floating numbers (",
                          SpecsText(operands), "); Cast them, or swap the operands"});
}

DType EmbeddingType(Specs operands, const Attrs&, int) { return operands[1]->dtype; }

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

}  // namespace

// Linear in the table, but not in the ids, and one word must do for both: Partial operands are
// reduced.
const OpDef kEmbeddingOp = {
    .name = "Embedding",
    .rule = "... @v, v d -> ... d",
    .host = {EmbeddingForward, EmbeddingBackward},
    .saved_operands = 0b01,
    .check = EmbeddingCheck,
    .result_dtype = EmbeddingType,
};

}  // namespace internal

TensorOr Embedding(const TensorOr& ids, const TensorOr& table) {
  return Dispatch(internal::kEmbeddingOp, {&ids, &table}, {});
}

}  // namespace dtensor
