// Softmax and RmsNorm.
#include "dtensor/runtime/kernels/norm.h"

#include "absl/container/inlined_vector.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

absl::Status SoftmaxForward(const OpCall& call) {
  return kernels::Softmax(call.device(), call.operands[0], call.results[0]);
}

absl::Status SoftmaxBackward(const GradCall& call) {
  return kernels::SoftmaxGrad(call.device(), call.results[0], call.result_gradients[0],
                              call.gradients[0]);
}

// The second result is 1/rms of each row, for backward.
absl::Status RmsNormForward(const OpCall& call) {
  return kernels::RmsNorm(call.device(), call.operands[0], call.operands[1],
                          call.attrs<RmsNormAttrs>().eps, call.results[0], call.results[1]);
}

// The kernel makes both gradients; one that nobody wants goes to scratch memory.
absl::Status RmsNormBackward(const GradCall& call) {
  absl::InlinedVector<Tensor, 2> gradients(call.gradients.begin(), call.gradients.end());
  for (int i = 0; i < 2; ++i) {
    if (call.wants(i)) continue;
    const Tensor& like = call.operands[i];
    DT_ASSIGN_OR_RETURN(gradients[i], Tensor::Empty(call.device(), like.dtype(), like.shape()));
  }
  return kernels::RmsNormGrad(call.device(), call.operands[0], call.operands[1], call.results[1],
                              call.result_gradients[0], gradients[0], gradients[1]);
}

DType RmsNormType(Specs operands, AttrsView, int result) {
  return result == 0 ? operands[0]->dtype : AccumulatorOf(operands[0]->dtype);
}

const OpDef kSoftmaxOp = {
    .name = "Softmax",
    .rule = "... d! -> ... d!",
    .types = TypeSet::Floats(),
    .host = {SoftmaxForward, SoftmaxBackward},
    .saved_results = 0b1,
};

const OpDef kRmsNormOp = {
    .name = "RmsNorm",
    .rule = "... d!, d! -> ... d!, ...",
    .attrs = &kAttrsType<RmsNormAttrs>,
    .types = TypeSet::Floats(),
    .result_dtype = RmsNormType,
    .host = {RmsNormForward, RmsNormBackward},
    .saved_operands = 0b11,
    .saved_results = 0b10,
};

}  // namespace

absl::Span<const OpDef* const> NormOps() {
  static constexpr const OpDef* kOps[] = {&kSoftmaxOp, &kRmsNormOp};
  return kOps;
}

}  // namespace internal

TensorOr Softmax(const TensorOr& x) { return Dispatch(internal::kSoftmaxOp, {&x}); }

TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps) {
  return Dispatch(internal::kRmsNormOp, {&x, &weight}, internal::RmsNormAttrs{eps});
}

}  // namespace dtensor
