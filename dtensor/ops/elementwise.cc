// Add, Sub, Mul, Scale, Silu, SiluMul and Cast.
#include "dtensor/runtime/kernels/elementwise.h"

#include "absl/container/inlined_vector.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

template <BinaryOp kOp>
absl::Status BinaryForward(const OpCall& call) {
  const Tensor &a = call.operands[0], &b = call.operands[1], &out = call.results[0];
  if (a.shape() == out.shape() && b.shape() == out.shape())
    return kernels::Binary(call.device(), kOp, a, b, out);
  return kernels::Binary(call.device(), kOp, a.BroadcastTo(out.shape()), b.BroadcastTo(out.shape()),
                         out);
}

// The gradient of operand i of a sum: dy itself, or dy summed over what was broadcast.
absl::StatusOr<Tensor> SumGradient(const GradCall& call, int i) {
  const Tensor& dy = call.result_gradients[0];
  const Dims& shape = call.decision.operands[i]->local_shape;
  if (dy.shape() == shape) return dy;
  DT_ASSIGN_OR_RETURN(Tensor gradient, Tensor::Empty(call.device(), dy.dtype(), shape));
  DT_RETURN_IF_ERROR(SumToShape(call.device(), dy, gradient));
  return gradient;
}

absl::Status AddBackward(const GradCall& call) {
  for (int i = 0; i < 2; ++i) {
    if (!call.wants(i)) continue;
    DT_ASSIGN_OR_RETURN(call.gradients[i], SumGradient(call, i));
  }
  return absl::OkStatus();
}

absl::Status SubBackward(const GradCall& call) {
  if (call.wants(0)) {
    DT_ASSIGN_OR_RETURN(call.gradients[0], SumGradient(call, 0));
  }
  if (!call.wants(1)) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const Tensor sum, SumGradient(call, 1));
  DT_ASSIGN_OR_RETURN(call.gradients[1], Tensor::Empty(call.device(), sum.dtype(), sum.shape()));
  return kernels::Unary(call.device(), UnaryOp::kNeg, sum, call.gradients[1]);
}

absl::Status MulBackward(const GradCall& call) {
  const Tensor& dy = call.result_gradients[0];
  for (int i = 0; i < 2; ++i) {
    if (!call.wants(i)) continue;
    const Tensor other = call.operands[1 - i].BroadcastTo(dy.shape());
    const bool broadcast = call.gradients[i].shape() != dy.shape();
    Tensor product = call.gradients[i];
    if (broadcast) {
      DT_ASSIGN_OR_RETURN(product, Tensor::Empty(call.device(), dy.dtype(), dy.shape()));
    }
    DT_RETURN_IF_ERROR(kernels::Binary(call.device(), BinaryOp::kMul, dy, other, product));
    if (broadcast) DT_RETURN_IF_ERROR(SumToShape(call.device(), product, call.gradients[i]));
  }
  return absl::OkStatus();
}

absl::Status ScaleForward(const OpCall& call) {
  return kernels::Affine(call.device(), call.operands[0], call.values.factor, 0, call.results[0]);
}

absl::Status ScaleBackward(const GradCall& call) {
  return kernels::Affine(call.device(), call.result_gradients[0], call.values.factor, 0,
                         call.gradients[0]);
}

absl::Status SiluForward(const OpCall& call) {
  return kernels::Unary(call.device(), UnaryOp::kSilu, call.operands[0], call.results[0]);
}

absl::Status SiluBackward(const GradCall& call) {
  return kernels::UnaryGrad(call.device(), UnaryOp::kSilu, call.operands[0],
                            call.result_gradients[0], call.gradients[0]);
}

absl::Status SiluMulCheck(Specs operands, AttrsView) {
  if (operands[0]->shape == operands[1]->shape) return absl::OkStatus();
  return InvalidArgument({"SiluMul: operands have unlike shapes (", SpecsText(operands),
                          "); use Mul(Silu(gate), up), which broadcasts"});
}

absl::Status SiluMulForward(const OpCall& call) {
  return kernels::SiluMul(call.device(), call.operands[0], call.operands[1], call.results[0]);
}

// The kernel makes both gradients; one that nobody wants goes to scratch memory.
absl::Status SiluMulBackward(const GradCall& call) {
  const Tensor& dy = call.result_gradients[0];
  absl::InlinedVector<Tensor, 2> gradients(call.gradients.begin(), call.gradients.end());
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) continue;
    DT_ASSIGN_OR_RETURN(gradient, Tensor::Empty(call.device(), dy.dtype(), dy.shape()));
  }
  return kernels::SiluMulGrad(call.device(), call.operands[0], call.operands[1], dy, gradients[0],
                              gradients[1]);
}

DType CastType(Specs, AttrsView attrs, int) { return attrs.as<CastAttrs>().to; }

absl::Status CastForward(const OpCall& call) {
  return kernels::Unary(call.device(), UnaryOp::kCopy, call.operands[0], call.results[0]);
}

absl::Status CastBackward(const GradCall& call) {
  return kernels::Unary(call.device(), UnaryOp::kCopy, call.result_gradients[0], call.gradients[0]);
}

const OpDef kAddOp = {
    .name = "Add",
    .rule = "..., ... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Numbers(),
    .host = {BinaryForward<BinaryOp::kAdd>, AddBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

const OpDef kSubOp = {
    .name = "Sub",
    .rule = "..., ... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Numbers(),
    .host = {BinaryForward<BinaryOp::kSub>, SubBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

const OpDef kMulOp = {
    .name = "Mul",
    .rule = "..., ... -> ...",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Numbers(),
    .host = {BinaryForward<BinaryOp::kMul>, MulBackward},
    .saved_operands = 0b11,
};

const OpDef kScaleOp = {
    .name = "Scale",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Floats(),
    .host = {ScaleForward, ScaleBackward},
    .passes_partial_gradients = true,
};

const OpDef kSiluOp = {
    .name = "Silu",
    .rule = "... -> ...",
    .types = TypeSet::Floats(),
    .host = {SiluForward, SiluBackward},
    .saved_operands = 0b1,
};

const OpDef kSiluMulOp = {
    .name = "SiluMul",
    .rule = "..., ... -> ...",
    .types = TypeSet::Floats(),
    .check = SiluMulCheck,
    .host = {SiluMulForward, SiluMulBackward},
    .saved_operands = 0b11,
};

// Not linear: the sum of rounded terms is not the rounded sum.
const OpDef kCastOp = {
    .name = "Cast",
    .rule = "... -> ...",
    .attrs = &kAttrsType<CastAttrs>,
    .result_dtype = CastType,
    .host = {CastForward, CastBackward},
};

// To or from integers: not differentiable.
const OpDef kCastToIntegerOp = {
    .name = "Cast",
    .rule = "... -> ...",
    .attrs = &kAttrsType<CastAttrs>,
    .result_dtype = CastType,
    .host = {CastForward},
};

}  // namespace

absl::Span<const OpDef* const> ElementwiseOps() {
  static constexpr const OpDef* kOps[] = {&kAddOp,  &kSubOp,     &kMulOp,  &kScaleOp,
                                          &kSiluOp, &kSiluMulOp, &kCastOp, &kCastToIntegerOp};
  return kOps;
}

}  // namespace internal

TensorOr Add(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kAddOp, {&a, &b}); }
TensorOr Sub(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kSubOp, {&a, &b}); }
TensorOr Mul(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kMulOp, {&a, &b}); }
TensorOr Scale(const TensorOr& x, double factor) {
  return Dispatch(internal::kScaleOp, {&x}, {}, {.factor = factor});
}
TensorOr Silu(const TensorOr& x) { return Dispatch(internal::kSiluOp, {&x}); }
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up) {
  return Dispatch(internal::kSiluMulOp, {&gate, &up});
}

TensorOr Cast(const TensorOr& x, DType dtype) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Cast", x));
  if (x->dtype() == dtype) return internal::Itself(x);
  const bool differentiable = IsFloat(x->dtype()) && IsFloat(dtype);
  return Dispatch(differentiable ? internal::kCastOp : internal::kCastToIntegerOp, {&x},
                  internal::CastAttrs{dtype});
}

}  // namespace dtensor
