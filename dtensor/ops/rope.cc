// Rope: each rank rotates by the global positions of the tokens that it holds.
#include <algorithm>
#include <cmath>

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

absl::Status CheckScaling(double theta, const RopeScaling& scaling) {
  const auto& [factor, low, high, trained, transition, amplitude] = scaling;
  const bool by_pairs = transition != RopeTransition::kByTurns;
  if (factor > 0 && low < high && trained >= 0 && amplitude > 0 &&
      (!by_pairs || (theta > 1 && low > 0)) &&
      std::isfinite(factor + low + high + trained + amplitude)) {
    return absl::OkStatus();
  }
  return InvalidArgument({"Rope: scaling by ", absl::StrCat(factor), ", low ", absl::StrCat(low),
                          ", high ", absl::StrCat(high), ", trained ", absl::StrCat(trained),
                          ", amplitude ", absl::StrCat(amplitude),
                          by_pairs ? absl::StrCat(" by pairs, theta ", theta) : "",
                          "; take a factor and an amplitude above 0, low < high and trained >= 0",
                          by_pairs ? ", and by pairs low > 0 and theta > 1" : ""});
}

absl::Status RopeCheck(Specs operands, AttrsView attrs) {
  DT_RETURN_IF_ERROR(CheckNdim("Rope", operands, 0, 4));
  if (operands[0]->shape[3] % 2 != 0) {
    return InvalidArgument({"Rope: the last dimension must be even, to rotate its halves (",
                            SpecsText(operands), "); choose an even head size"});
  }
  const auto& [theta, scaling] = attrs.as<RopeAttrs>();
  if (!(theta > 0)) {
    return InvalidArgument(
        {"Rope: theta must be positive, got ", absl::StrCat(theta), "; 10000 is usual"});
  }
  return CheckScaling(theta, scaling);
}

kernels::RopeBase BaseOf(const RankCall& call) {
  const auto& [theta, scaling] = call.attrs<RopeAttrs>();
  return {theta, scaling};
}

// The positions of this rank's tokens.
IndexSet Positions(const RankCall& call) {
  const IndexSet indices = call.OperandIndices(0, kPositionDim);
  return call.values.offset == 0 ? indices : indices.Shifted(call.values.offset);
}

absl::Status RopeForward(const OpCall& call) {
  const Tensor &x = call.operands[0], &y = call.results[0];
  const IndexSet positions = Positions(call);
  const absl::Span<const int64_t> offsets = call.values.row_offsets;
  if (offsets.empty()) {
    return kernels::Rope(call.device(), x, positions, BaseOf(call), /*inverse=*/false, y);
  }
  const IndexSet rows = call.OperandIndices(0, 0);
  for (int64_t r = 0; r < x.size(0); ++r) {
    DT_RETURN_IF_ERROR(kernels::Rope(call.device(), x.Narrow(0, r, 1),
                                     positions.Shifted(offsets[rows.At(r)]), BaseOf(call),
                                     /*inverse=*/false, y.Narrow(0, r, 1)));
  }
  return absl::OkStatus();
}

// The gradient is the inverse rotation, since a rotation's transpose is its inverse, with the same
// amplitude.
absl::Status RopeBackward(const GradCall& call) {
  return kernels::Rope(call.device(), call.result_gradients[0], Positions(call), BaseOf(call),
                       /*inverse=*/true, call.gradients[0]);
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

TensorOr Rope(const TensorOr& x, const RopeOptions& options) {
  const auto& [theta, scaling, offset, row_offsets] = options;
  int64_t least = 0, most = 0;
  for (const int64_t row : row_offsets) {
    least = std::min(least, row);
    most = std::max(most, row);
  }
  if (least < 0 || offset < 0 || offset >= internal::kMaxPosition - most) {
    // The message has no sums: they may overflow.
    return InvalidArgument({"Rope: there are no positions for an offset of ", absl::StrCat(offset),
                            " and offsets of its batch entries from ", absl::StrCat(least), " to ",
                            absl::StrCat(most), "; give offsets of 0 or more, below 2^40 in all"});
  }
  if (x.ok() && x->defined()) {
    DT_RETURN_IF_ERROR(internal::CheckRowOffsets("Rope", *x, row_offsets));
  }
  return Dispatch(internal::kRopeOp, {&x}, internal::RopeAttrs{theta, scaling},
                  {.offset = offset, .row_offsets = row_offsets});
}

}  // namespace dtensor
