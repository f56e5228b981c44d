// Rope: each rank rotates by the global positions that it holds.
#include "absl/strings/str_cat.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

constexpr int kPositionDim = 1;
constexpr int64_t kMaxPosition = int64_t{1} << 40;

absl::Status RopeCheck(Specs operands, AttrsView attrs) {
  DT_RETURN_IF_ERROR(CheckNdim("Rope", operands, 0, 4));
  if (operands[0]->shape[3] % 2 != 0) {
    return InvalidArgument({"Rope: the last dimension must be even, to rotate its halves (",
                            SpecsText(operands), "); choose an even head size"});
  }
  const double theta = attrs.as<RopeAttrs>().theta;
  if (theta > 0) return absl::OkStatus();
  return InvalidArgument(
      {"Rope: theta must be positive, got ", absl::StrCat(theta), "; 10000 is usual"});
}

// The positions of this rank's tokens.
template <typename Call>
IndexSet Positions(const Call& call) {
  const IndexSet indices = call.OperandIndices(0, kPositionDim);
  return call.values.offset == 0 ? indices : indices.Shifted(call.values.offset);
}

absl::Status RopeForward(const OpCall& call) {
  return kernels::Rope(call.device(), call.operands[0], Positions(call),
                       call.attrs<RopeAttrs>().theta, /*inverse=*/false, call.results[0]);
}

// A rotation's transpose is its inverse.
absl::Status RopeBackward(const GradCall& call) {
  return kernels::Rope(call.device(), call.result_gradients[0], Positions(call),
                       call.attrs<RopeAttrs>().theta, /*inverse=*/true, call.gradients[0]);
}

const OpDef kRopeOp = {
    .name = "Rope",
    .rule = "b t h d! -> b t h d!",
    .linearity = RuleLinearity::kJoint,
    .attrs = &kAttrsType<RopeAttrs>,
    .types = TypeSet::Floats(),
    .check = RopeCheck,
    .every_device = {RopeForward, RopeBackward},
};

}  // namespace

absl::Span<const OpDef* const> RopeOps() {
  static constexpr const OpDef* kOps[] = {&kRopeOp};
  return kOps;
}

}  // namespace internal

TensorOr Rope(const TensorOr& x, double theta, int64_t offset) {
  if (offset < 0 || offset >= internal::kMaxPosition) {
    return InvalidArgument({"Rope: no position is ", absl::StrCat(offset),
                            "; give an offset of 0 or more, below 2^40"});
  }
  return Dispatch(internal::kRopeOp, {&x}, internal::RopeAttrs{theta}, {.offset = offset});
}

}  // namespace dtensor
