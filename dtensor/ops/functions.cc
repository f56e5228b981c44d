// Functions of one operand: Exp, Log, Sqrt, Rsqrt, Pow; and activation functions: Silu, SiluMul,
// Relu, Sigmoid, Tanh, Gelu.
#include "absl/container/inlined_vector.h"
#include "dtensor/ops/elementwise.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

using kernels::UnaryOp;

absl::Status PowForward(const OpCall& call) {
  return kernels::Pow(call.device(), call.operands[0], call.values.scalar, call.results[0]);
}

absl::Status PowBackward(const GradCall& call) {
  return kernels::PowGrad(call.device(), call.operands[0], call.values.scalar,
                          call.result_gradients[0], call.gradients[0]);
}

UnaryOp GeluFunction(GeluForm form) {
  return form == GeluForm::kErf ? UnaryOp::kGelu : UnaryOp::kGeluTanh;
}

absl::Status GeluForward(const OpCall& call) {
  return kernels::Unary(call.device(), GeluFunction(call.attrs<GeluAttrs>().form), call.operands[0],
                        call.results[0]);
}

absl::Status GeluBackward(const GradCall& call) {
  return kernels::UnaryGrad(call.device(), GeluFunction(call.attrs<GeluAttrs>().form),
                            call.operands[0], call.result_gradients[0], call.gradients[0]);
}

absl::Status SiluMulCheck(Specs operands, AttrsView) {
  if (operands[0]->shape == operands[1]->shape) return absl::OkStatus();
  return InvalidArgument({"SiluMul: operands have unlike shapes (", SpecsText(operands),
                          "); use Mul(Silu(gate), up), which broadcasts"});
}

absl::Status SiluMulForward(const OpCall& call) {
  return kernels::SiluMul(call.device(), call.operands[0], call.operands[1], call.results[0]);
}

// The kernel computes both gradients; one that is not wanted goes to scratch memory.
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

// An increasing function may be applied to Partial(max) terms if it is defined everywhere. Log and
// Sqrt are not: some terms may be negative although the maximum is not, and their results would be
// NaN, which a maximum prefers to all numbers.
const OpDef kExpOp = UnaryFunction<UnaryOp::kExp>("Exp", RuleLinearity::kIncreasing);
const OpDef kLogOp = UnaryFunction<UnaryOp::kLog>("Log", RuleLinearity::kNone);
const OpDef kSqrtOp = UnaryFunction<UnaryOp::kSqrt>("Sqrt", RuleLinearity::kNone);
const OpDef kRsqrtOp = UnaryFunction<UnaryOp::kRsqrt>("Rsqrt", RuleLinearity::kNone);
const OpDef kReluOp = UnaryFunction<UnaryOp::kRelu>("Relu", RuleLinearity::kIncreasing);
const OpDef kSigmoidOp = UnaryFunction<UnaryOp::kSigmoid>("Sigmoid", RuleLinearity::kIncreasing);
const OpDef kTanhOp = UnaryFunction<UnaryOp::kTanh>("Tanh", RuleLinearity::kIncreasing);
const OpDef kSiluOp = UnaryFunction<UnaryOp::kSilu>("Silu", RuleLinearity::kNone);

const OpDef kPowOp = {
    .name = "Pow",
    .rule = "... -> ...",
    .types = TypeSet::Floats(),
    .every_device = {PowForward, PowBackward},
    .saved_operands = 0b1,
};

const OpDef kGeluOp = {
    .name = "Gelu",
    .rule = "... -> ...",
    .attrs = &kAttrsType<GeluAttrs>,
    .types = TypeSet::Floats(),
    .every_device = {GeluForward, GeluBackward},
    .saved_operands = 0b1,
};

const OpDef kSiluMulOp = {
    .name = "SiluMul",
    .rule = "..., ... -> ...",
    .types = TypeSet::Floats(),
    .check = SiluMulCheck,
    .every_device = {SiluMulForward, SiluMulBackward},
    .saved_operands = 0b11,
};

}  // namespace

absl::Span<const OpDef* const> FunctionOps() {
  static constexpr const OpDef* kOps[] = {&kExpOp,  &kLogOp,  &kSqrtOp,    &kRsqrtOp,
                                          &kPowOp,  &kReluOp, &kSigmoidOp, &kTanhOp,
                                          &kGeluOp, &kSiluOp, &kSiluMulOp};
  return kOps;
}

}  // namespace internal

TensorOr Exp(const TensorOr& x) { return Dispatch(internal::kExpOp, {&x}); }
TensorOr Log(const TensorOr& x) { return Dispatch(internal::kLogOp, {&x}); }
TensorOr Sqrt(const TensorOr& x) { return Dispatch(internal::kSqrtOp, {&x}); }
TensorOr Rsqrt(const TensorOr& x) { return Dispatch(internal::kRsqrtOp, {&x}); }
TensorOr Pow(const TensorOr& x, double exponent) {
  return Dispatch(internal::kPowOp, {&x}, {}, {.scalar = exponent});
}
TensorOr Relu(const TensorOr& x) { return Dispatch(internal::kReluOp, {&x}); }
TensorOr Sigmoid(const TensorOr& x) { return Dispatch(internal::kSigmoidOp, {&x}); }
TensorOr Tanh(const TensorOr& x) { return Dispatch(internal::kTanhOp, {&x}); }
TensorOr Gelu(const TensorOr& x, GeluForm form) {
  return Dispatch(internal::kGeluOp, {&x}, internal::GeluAttrs{form});
}
TensorOr Silu(const TensorOr& x) { return Dispatch(internal::kSiluOp, {&x}); }
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up) {
  return Dispatch(internal::kSiluMulOp, {&gate, &up});
}

}  // namespace dtensor
