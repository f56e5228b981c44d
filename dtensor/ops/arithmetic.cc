// Add, Sub, Mul, Div, AddN, Maximum, Minimum, Scale, AddScalar, Neg and Abs.
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

using kernels::BinaryOp;
using kernels::UnaryOp;

// The gradient of operand i of a sum: dy itself, or dy summed over what was broadcast.
absl::StatusOr<Tensor> SumGradient(const GradCall& call, int i) {
  const Tensor& dy = call.result_gradients[0];
  const Dims& shape = call.decision.operands[i]->local_shape;
  if (dy.shape() == shape) return dy;
  DT_ASSIGN_OR_RETURN(Tensor gradient, Tensor::Empty(call.device(), dy.dtype(), shape));
  DT_RETURN_IF_ERROR(SumToShape(call.device(), dy, gradient));
  return gradient;
}

// For a sum of any number of operands.
absl::Status AddBackward(const GradCall& call) {
  for (size_t i = 0; i < call.gradients.size(); ++i) {
    if (!call.wants(static_cast<int>(i))) continue;
    DT_ASSIGN_OR_RETURN(call.gradients[i], SumGradient(call, static_cast<int>(i)));
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
    const Tensor other = Broadcast(call.operands[1 - i], dy.shape());
    DT_RETURN_IF_ERROR(WriteGradient(call, i, [&](const Tensor& out) {
      return kernels::Binary(call.device(), BinaryOp::kMul, dy, other, out);
    }));
  }
  return absl::OkStatus();
}

// "..., ..., ... -> ...".
absl::StatusOr<RuleText> AddNText(absl::Span<const Dims> shapes, AttrsView) {
  const std::vector<std::string> terms(shapes.size(), "...");
  return RuleText{absl::StrCat(absl::StrJoin(terms, ", "), " -> ..."), {}};
}

absl::Status AddNForward(const OpCall& call) {
  absl::InlinedVector<Tensor, kernels::kMaxTerms> terms;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    terms.push_back(Broadcast(call.operands[i], call.results[0].shape()));
  }
  return kernels::AddN(call.device(), terms, call.results[0]);
}

absl::Status ScaleForward(const OpCall& call) {
  return kernels::Scale(call.device(), call.operands[0], call.values.scalar, call.results[0]);
}

absl::Status ScaleBackward(const GradCall& call) {
  return kernels::Scale(call.device(), call.result_gradients[0], call.values.scalar,
                        call.gradients[0]);
}

absl::Status AddScalarForward(const OpCall& call) {
  return kernels::Affine(call.device(), call.operands[0], 1, call.values.scalar, call.results[0]);
}

absl::Status NegBackward(const GradCall& call) {
  return kernels::Unary(call.device(), UnaryOp::kNeg, call.result_gradients[0], call.gradients[0]);
}

constexpr OpDef SumOp(const char* name, absl::Status (*forward)(const OpCall&),
                      absl::Status (*backward)(const GradCall&)) {
  return {.name = name,
          .rule = "..., ... -> ...",
          .linearity = RuleLinearity::kJoint,
          .types = TypeSet::Numbers(),
          .every_device = {forward, backward},
          .sets_gradients = true,
          .passes_partial_gradients = true};
}

const OpDef kAddOp = SumOp("Add", BinaryForward<BinaryOp::kAdd>, AddBackward);
const OpDef kSubOp = SumOp("Sub", BinaryForward<BinaryOp::kSub>, SubBackward);

const OpDef kAddNOp = {
    .name = "AddN",
    .describe = AddNText,
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Numbers(),
    .every_device = {AddNForward, AddBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

const OpDef kMulOp = {
    .name = "Mul",
    .rule = "..., ... -> ...",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Numbers(),
    .every_device = {BinaryForward<BinaryOp::kMul>, MulBackward},
    .saved_operands = 0b11,
};

// Linear in the numerator only, which is more than kNone and less than kMulti.
const OpDef kDivOp = {
    .name = "Div",
    .rule = "..., ... -> ...",
    .types = TypeSet::Floats(),
    .every_device = {BinaryForward<BinaryOp::kDiv>, BinaryBackward<BinaryOp::kDiv>},
    .saved_operands = 0b11,
};

const OpDef kMaximumOp = {
    .name = "Maximum",
    .rule = "..., ... -> ...",
    .types = TypeSet::Numbers(),
    .every_device = {BinaryForward<BinaryOp::kMax>, BinaryBackward<BinaryOp::kMax>},
    .saved_operands = 0b11,
};

const OpDef kMinimumOp = {
    .name = "Minimum",
    .rule = "..., ... -> ...",
    .types = TypeSet::Numbers(),
    .every_device = {BinaryForward<BinaryOp::kMin>, BinaryBackward<BinaryOp::kMin>},
    .saved_operands = 0b11,
};

const OpDef kScaleOp = {
    .name = "Scale",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Floats(),
    .every_device = {ScaleForward, ScaleBackward},
    .passes_partial_gradients = true,
};

const OpDef kAddScalarOp = {
    .name = "AddScalar",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kIncreasing,
    .types = TypeSet::Floats(),
    .every_device = {AddScalarForward, AddBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

const OpDef kNegOp = {
    .name = "Neg",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kJoint,
    .types = TypeSet::Numbers(),
    .every_device = {UnaryForward<UnaryOp::kNeg>, NegBackward},
    .passes_partial_gradients = true,
};

const OpDef kAbsOp = UnaryFunction<UnaryOp::kAbs>("Abs", RuleLinearity::kNone);

}  // namespace

absl::Span<const OpDef* const> ArithmeticOps() {
  static constexpr const OpDef* kOps[] = {&kAddOp,       &kSubOp,     &kAddNOp,    &kMulOp,
                                          &kDivOp,       &kMaximumOp, &kMinimumOp, &kScaleOp,
                                          &kAddScalarOp, &kNegOp,     &kAbsOp};
  return kOps;
}

}  // namespace internal

TensorOr Add(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kAddOp, {&a, &b}); }
TensorOr Sub(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kSubOp, {&a, &b}); }
TensorOr Mul(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kMulOp, {&a, &b}); }
TensorOr Div(const TensorOr& a, const TensorOr& b) { return Dispatch(internal::kDivOp, {&a, &b}); }
TensorOr Maximum(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kMaximumOp, {&a, &b});
}
TensorOr Minimum(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kMinimumOp, {&a, &b});
}
TensorOr Scale(const TensorOr& x, double factor) {
  return Dispatch(internal::kScaleOp, {&x}, {}, {.scalar = factor});
}
TensorOr AddScalar(const TensorOr& x, double summand) {
  return Dispatch(internal::kAddScalarOp, {&x}, {}, {.scalar = summand});
}
TensorOr Neg(const TensorOr& x) { return Dispatch(internal::kNegOp, {&x}); }
TensorOr Abs(const TensorOr& x) { return Dispatch(internal::kAbsOp, {&x}); }

TensorOr AddN(absl::Span<const TensorOr> tensors) {
  constexpr size_t kMost = kernels::kMaxTerms;
  if (tensors.empty() || tensors.size() > kMost) {
    return InvalidArgument({"AddN: takes 1 to ", absl::StrCat(kMost), " tensors, got ",
                            absl::StrCat(tensors.size()), "; add them in several steps"});
  }
  absl::InlinedVector<const TensorOr*, kMost> operands;
  for (const TensorOr& tensor : tensors) {
    DT_RETURN_IF_ERROR(internal::CheckDefined("AddN", tensor));
    operands.push_back(&tensor);
  }
  if (tensors.size() > 1) return Dispatch(internal::kAddNOp, operands);
  DT_RETURN_IF_ERROR(internal::kAddNOp.CheckTypes({&tensors[0]->spec()}));
  return internal::Itself(tensors[0]);
}

}  // namespace dtensor
