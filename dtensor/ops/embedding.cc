// Embedding: each rank looks up the rows it holds and leaves the others 0, so a sharded table gives
// P(sum). Bincount: the gradient of a table of which each row that is read counts 1.
#include "absl/strings/str_cat.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
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

absl::StatusOr<RuleText> BincountRule(absl::Span<const Dims>, AttrsView attrs) {
  return RuleText{"... -> n!", {{"n", attrs.as<BincountAttrs>().n}}};
}

absl::Status BincountCheck(Specs operands, AttrsView attrs) {
  const auto& [n, dtype] = attrs.as<BincountAttrs>();
  const auto refuse = [&](absl::string_view what, absl::string_view remedy) {
    return InvalidArgument({"Bincount: ", what, " of ", operands[0]->ToString(), "; ", remedy});
  };
  if (n < 0) return refuse(absl::StrCat(n, " bins"), "give 0 or more");
  if (dtype == DType::kF32 || dtype == DType::kF64) return absl::OkStatus();
  return refuse(absl::StrCat("counts in ", ToString(dtype)), "they are f32 or f64");
}

DType BincountType(Specs, AttrsView attrs, int) { return attrs.as<BincountAttrs>().dtype; }

absl::Status BincountForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor& ids = call.operands[0];
  const int64_t n = call.attrs<BincountAttrs>().n;
  DT_ASSIGN_OR_RETURN(const Tensor one, Tensor::Empty(device, call.results[0].dtype(), {1}));
  DT_RETURN_IF_ERROR(kernels::Fill(device, one, 1));
  Dims shape = ids.shape();
  shape.push_back(1);
  DT_ASSIGN_OR_RETURN(const Tensor table, call.results[0].Reshape({n, 1}));
  return kernels::EmbeddingGrad(device, ids, one.BroadcastTo(shape), IndexSet::Interval(0, n),
                                table);
}

const OpDef kBincountOp = {
    .name = "Bincount",
    .describe = BincountRule,
    .attrs = &kAttrsType<BincountAttrs>,
    .types = TypeSet::Integers(),
    .check = BincountCheck,
    .result_dtype = BincountType,
    .every_device = {BincountForward},
};

}  // namespace

absl::Span<const OpDef* const> EmbeddingOps() {
  static constexpr const OpDef* kOps[] = {&kEmbeddingOp, &kBincountOp};
  return kOps;
}

}  // namespace internal

TensorOr Embedding(const TensorOr& ids, const TensorOr& table) {
  return Dispatch(internal::kEmbeddingOp, {&ids, &table});
}

TensorOr Bincount(const TensorOr& ids, int64_t n, DType dtype) {
  return Dispatch(internal::kBincountOp, {&ids}, internal::BincountAttrs{n, dtype});
}

}  // namespace dtensor
