// Comparisons, the logic of their results, Where and Clamp.
#include "dtensor/runtime/kernels/comparison.h"

#include "absl/strings/str_cat.h"
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
using kernels::CompareOp;
using kernels::UnaryOp;

DType Bool(Specs, AttrsView, int) { return DType::kBool; }

template <CompareOp kOp>
absl::Status CompareForward(const OpCall& call) {
  const Tensor& out = call.results[0];
  return kernels::Compare(call.device(), kOp, Broadcast(call.operands[0], out.shape()),
                          Broadcast(call.operands[1], out.shape()), out);
}

template <CompareOp kOp>
constexpr OpDef Comparison(const char* name) {
  return {.name = name,
          .rule = "..., ... -> ...",
          .types = TypeSet::Numbers(),
          .result_dtype = Bool,
          .every_device = {CompareForward<kOp>}};
}

DType TypeOfChoices(Specs operands, AttrsView, int) { return operands[1]->dtype; }

absl::Status WhereCheck(Specs operands, AttrsView) {
  if (operands[1]->dtype == operands[2]->dtype) return absl::OkStatus();
  return InvalidArgument({"Where: what is chosen from has unlike types (", SpecsText(operands),
                          "); Cast one to the other's"});
}

absl::Status WhereForward(const OpCall& call) {
  const Tensor& out = call.results[0];
  return kernels::Where(call.device(), Broadcast(call.operands[0], out.shape()),
                        Broadcast(call.operands[1], out.shape()),
                        Broadcast(call.operands[2], out.shape()), out);
}

// The gradient is dy where the operand was chosen, and 0 elsewhere.
absl::Status WhereBackward(const GradCall& call) {
  const Tensor& dy = call.result_gradients[0];
  const Tensor condition = Broadcast(call.operands[0], dy.shape());
  DT_ASSIGN_OR_RETURN(const Tensor zero, Tensor::Empty(call.device(), dy.dtype(), {}));
  DT_RETURN_IF_ERROR(kernels::Fill(call.device(), zero, 0));
  const Tensor zeros = zero.BroadcastTo(dy.shape());
  for (int i = 1; i <= 2; ++i) {
    if (!call.wants(i)) continue;
    DT_RETURN_IF_ERROR(WriteGradient(call, i, [&](const Tensor& out) {
      return kernels::Where(call.device(), condition, i == 1 ? dy : zeros, i == 1 ? zeros : dy,
                            out);
    }));
  }
  return absl::OkStatus();
}

// A number of x's type, with x's shape.
absl::StatusOr<Tensor> NumberLike(Device& device, const Tensor& x, double value) {
  DT_ASSIGN_OR_RETURN(const Tensor scalar, Tensor::Empty(device, x.dtype(), {}));
  DT_RETURN_IF_ERROR(kernels::Fill(device, scalar, value));
  return scalar.BroadcastTo(x.shape());
}

absl::Status ClampForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  DT_ASSIGN_OR_RETURN(const Tensor low, NumberLike(device, x, call.attrs<ClampAttrs>().low));
  DT_ASSIGN_OR_RETURN(const Tensor high, NumberLike(device, x, call.attrs<ClampAttrs>().high));
  DT_ASSIGN_OR_RETURN(const Tensor is_out, Tensor::Empty(device, DType::kBool, x.shape()));
  DT_RETURN_IF_ERROR(kernels::Compare(device, CompareOp::kLess, x, low, is_out));
  DT_RETURN_IF_ERROR(kernels::Where(device, is_out, low, x, y));
  DT_RETURN_IF_ERROR(kernels::Compare(device, CompareOp::kLess, high, x, is_out));
  return kernels::Where(device, is_out, high, y, y);
}

absl::Status ClampBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor& x = call.operands[0];
  DT_ASSIGN_OR_RETURN(const Tensor low, NumberLike(device, x, call.attrs<ClampAttrs>().low));
  DT_ASSIGN_OR_RETURN(const Tensor high, NumberLike(device, x, call.attrs<ClampAttrs>().high));
  DT_ASSIGN_OR_RETURN(const Tensor zero, NumberLike(device, x, 0));
  DT_ASSIGN_OR_RETURN(const Tensor above, Tensor::Empty(device, DType::kBool, x.shape()));
  DT_ASSIGN_OR_RETURN(const Tensor inside, Tensor::Empty(device, DType::kBool, x.shape()));
  DT_RETURN_IF_ERROR(kernels::Compare(device, CompareOp::kLess, low, x, above));
  DT_RETURN_IF_ERROR(kernels::Compare(device, CompareOp::kLess, x, high, inside));
  DT_RETURN_IF_ERROR(kernels::Binary(device, BinaryOp::kMul, above, inside, inside));  // both
  return kernels::Where(device, inside, call.result_gradients[0], zero, call.gradients[0]);
}

const OpDef kEqualOp = Comparison<CompareOp::kEqual>("Equal");
const OpDef kNotEqualOp = Comparison<CompareOp::kNotEqual>("NotEqual");
const OpDef kLessOp = Comparison<CompareOp::kLess>("Less");
const OpDef kLessEqualOp = Comparison<CompareOp::kLessEqual>("LessEqual");
const OpDef kGreaterOp = Comparison<CompareOp::kGreater>("Greater");
const OpDef kGreaterEqualOp = Comparison<CompareOp::kGreaterEqual>("GreaterEqual");

// For bools, the product is "and" and the sum is "or".
const OpDef kLogicalAndOp = {
    .name = "LogicalAnd",
    .rule = "..., ... -> ...",
    .types = {DType::kBool},
    .every_device = {BinaryForward<BinaryOp::kMul>},
};

const OpDef kLogicalOrOp = {
    .name = "LogicalOr",
    .rule = "..., ... -> ...",
    .types = {DType::kBool},
    .every_device = {BinaryForward<BinaryOp::kAdd>},
};

const OpDef kLogicalNotOp = {
    .name = "LogicalNot",
    .rule = "... -> ...",
    .types = {DType::kBool},
    .every_device = {UnaryForward<UnaryOp::kNot>},
};

const OpDef kWhereOp = {
    .name = "Where",
    .rule = "..., ..., ... -> ...",
    .operand_types = {TypeSet({DType::kBool})},
    .check = WhereCheck,
    .result_dtype = TypeOfChoices,
    .every_device = {WhereForward, WhereBackward},
    .saved_operands = 0b1,
};

const OpDef kClampOp = {
    .name = "Clamp",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kIncreasing,
    .attrs = &kAttrsType<ClampAttrs>,
    .types = TypeSet::Floats(),
    .every_device = {ClampForward, ClampBackward},
    .saved_operands = 0b1,
};

}  // namespace

absl::Span<const OpDef* const> ComparisonOps() {
  static constexpr const OpDef* kOps[] = {
      &kEqualOp,      &kNotEqualOp,  &kLessOp,       &kLessEqualOp, &kGreaterOp, &kGreaterEqualOp,
      &kLogicalAndOp, &kLogicalOrOp, &kLogicalNotOp, &kWhereOp,     &kClampOp};
  return kOps;
}

}  // namespace internal

TensorOr Equal(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kEqualOp, {&a, &b});
}
TensorOr NotEqual(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kNotEqualOp, {&a, &b});
}
TensorOr Less(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kLessOp, {&a, &b});
}
TensorOr LessEqual(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kLessEqualOp, {&a, &b});
}
TensorOr Greater(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kGreaterOp, {&a, &b});
}
TensorOr GreaterEqual(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kGreaterEqualOp, {&a, &b});
}
TensorOr LogicalAnd(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kLogicalAndOp, {&a, &b});
}
TensorOr LogicalOr(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kLogicalOrOp, {&a, &b});
}
TensorOr LogicalNot(const TensorOr& a) { return Dispatch(internal::kLogicalNotOp, {&a}); }
TensorOr Where(const TensorOr& condition, const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kWhereOp, {&condition, &a, &b});
}

TensorOr Clamp(const TensorOr& x, double low, double high) {
  if (!(low <= high)) {
    return InvalidArgument({"Clamp: there is no number from ", absl::StrCat(low), " to ",
                            absl::StrCat(high), "; give low <= high"});
  }
  return Dispatch(internal::kClampOp, {&x}, internal::ClampAttrs{low, high});
}

}  // namespace dtensor
