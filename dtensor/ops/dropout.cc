#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// Distinguishes masks from other random numbers with the same seed.
constexpr uint64_t kDropoutStream = 0x64726F706F7574;  // "dropout"

// out = x with the mask for the operand's global indices, in forward and backward alike.
absl::Status Drop(const RankCall& call, const Tensor& x, const Tensor& out) {
  const Dims& shape = call.decision.operands[0]->shape;
  absl::InlinedVector<IndexSet, 4> region;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    region.push_back(call.OperandIndices(0, d));
  }
  return kernels::Dropout(call.device(), x, region, shape, call.values.seed, kDropoutStream,
                          call.values.scalar, out);
}

absl::Status DropoutForward(const OpCall& call) {
  return Drop(call, call.operands[0], call.results[0]);
}

absl::Status DropoutBackward(const GradCall& call) {
  return Drop(call, call.result_gradients[0], call.gradients[0]);
}

// Linear, because all terms of a Partial operand get the same mask.
const OpDef kDropoutOp = {
    .name = "Dropout",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Floats(),
    .every_device = {DropoutForward, DropoutBackward},
    .passes_partial_gradients = true,
};

}  // namespace

absl::Span<const OpDef* const> DropoutOps() {
  static constexpr const OpDef* kOps[] = {&kDropoutOp};
  return kOps;
}

}  // namespace internal

TensorOr Dropout(const TensorOr& x, double p, uint64_t seed) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Dropout", x));
  if (!(p >= 0 && p < 1)) {
    return InvalidArgument({"Dropout: ", absl::StrCat(p),
                            " is no probability below 1, with which to drop elements of ",
                            x->ToString(), "; give 0 <= p < 1"});
  }
  DT_RETURN_IF_ERROR(internal::kDropoutOp.CheckTypes({&x->spec()}));
  if (p == 0) return internal::Itself(x);
  return Dispatch(internal::kDropoutOp, {&x}, {}, {.seed = seed, .scalar = p});
}

}  // namespace dtensor
