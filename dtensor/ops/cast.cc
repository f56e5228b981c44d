// Cast and Clone: copies.
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

DType CastType(Specs, AttrsView attrs, int) { return attrs.as<CastAttrs>().to; }

absl::Status CastBackward(const GradCall& call) {
  return kernels::Unary(call.device(), UnaryOp::kCopy, call.result_gradients[0], call.gradients[0]);
}

// Not linear: the sum of rounded terms is not the rounded sum.
const OpDef kCastOp = {
    .name = "Cast",
    .rule = "... -> ...",
    .attrs = &kAttrsType<CastAttrs>,
    .result_dtype = CastType,
    .every_device = {UnaryForward<UnaryOp::kCopy>, CastBackward},
};

// To or from integers: not differentiable.
const OpDef kCastToIntegerOp = {
    .name = "Cast",
    .rule = "... -> ...",
    .attrs = &kAttrsType<CastAttrs>,
    .result_dtype = CastType,
    .every_device = {UnaryForward<UnaryOp::kCopy>},
};

absl::Status CloneBackward(const GradCall& call) {
  call.gradients[0] = call.result_gradients[0];
  return absl::OkStatus();
}

const OpDef kCloneOp = {
    .name = "Clone",
    .rule = "... -> ...",
    .linearity = RuleLinearity::kView,
    .every_device = {UnaryForward<UnaryOp::kCopy>, CloneBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

}  // namespace

absl::Span<const OpDef* const> CastOps() {
  static constexpr const OpDef* kOps[] = {&kCastOp, &kCastToIntegerOp, &kCloneOp};
  return kOps;
}

}  // namespace internal

TensorOr Cast(const TensorOr& x, DType dtype) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Cast", x));
  if (x->dtype() == dtype) return internal::Itself(x);
  const bool differentiable = IsFloat(x->dtype()) && IsFloat(dtype);
  return Dispatch(differentiable ? internal::kCastOp : internal::kCastToIntegerOp, {&x},
                  internal::CastAttrs{dtype});
}

TensorOr Clone(const TensorOr& x) { return Dispatch(internal::kCloneOp, {&x}); }

}  // namespace dtensor
