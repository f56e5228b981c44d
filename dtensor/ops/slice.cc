// Slice and SplitTensor: views along a dimension that is replicated, or sharded within the units
// that all cuts are multiples of.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/dim_units.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// "d0 a! d2 -> d0 e! d2", or "d0 (a! r) d2 -> d0 (e! r) d2".
absl::StatusOr<RuleText> SliceText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const auto& [dim, size, unit] = attrs.as<SliceAttrs>();
  RuleText out{
      absl::StrCat(TermInUnits(ndim, dim, "a", unit), " -> ", TermInUnits(ndim, dim, "e", unit)),
      {}};
  AddSizes("e", size, unit, out.sizes);
  return out;
}

// The range that the call takes of a local tensor.
struct Range {
  int64_t begin, length;
  int64_t end() const { return begin + length; }
};
Range RangeOf(const Decision& decision, const CallValues& values, const Tensor& local) {
  const auto& [dim, size, unit] = AttrsView(decision.attrs).as<SliceAttrs>();
  const int64_t all = decision.operands[0]->shape[dim];
  return {LocalIndex(local, dim, all, unit, values.offset),
          LocalIndex(local, dim, all, unit, size)};
}

absl::Status SliceForward(const OpCall& call) {
  const Range range = RangeOf(call.decision, call.values, call.operands[0]);
  call.results[0] =
      call.operands[0].Narrow(call.attrs<SliceAttrs>().dim, range.begin, range.length);
  return absl::OkStatus();
}

absl::Status SliceBackward(const GradCall& call) {
  const int dim = call.attrs<SliceAttrs>().dim;
  const Tensor& dx = call.gradients[0];
  const Range range = RangeOf(call.decision, call.values, dx);
  Device& device = call.device();
  DT_RETURN_IF_ERROR(kernels::Fill(device, dx.Narrow(dim, 0, range.begin), 0));
  DT_RETURN_IF_ERROR(
      kernels::Fill(device, dx.Narrow(dim, range.end(), dx.size(dim) - range.end()), 0));
  return kernels::Copy(device, call.result_gradients[0], dx.Narrow(dim, range.begin, range.length));
}

absl::StatusOr<LayoutChoice> SliceLayouts(const LayoutChoiceRequest& request) {
  const SliceAttrs& attrs = request.attrs.as<SliceAttrs>();
  return SplitWithinUnits(request, attrs.dim, attrs.unit);
}

// "d0 a! -> d0 e0!, d0 e1!", or "d0 (a! r) -> d0 (e0! r), d0 (e1! r)".
absl::StatusOr<RuleText> SplitText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const auto& [dim, sizes] = attrs.as<SplitAttrs>();
  const int64_t unit = CommonUnit(sizes);
  RuleText out;
  std::vector<std::string> results;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = absl::StrCat("e", i);
    results.push_back(TermInUnits(ndim, dim, name, unit));
    AddSizes(name, sizes[i], unit, out.sizes);
  }
  out.text = absl::StrCat(TermInUnits(ndim, dim, "a", unit), " -> ", absl::StrJoin(results, ", "));
  if (out.text.size() <= OpRule::kMaxText) return out;
  return InvalidArgument({"SplitTensor: ", absl::StrCat(sizes.size()), " parts of ",
                          DimsToString(shapes[0]), " along dimension ", absl::StrCat(dim),
                          " are too many at once; split in several steps, into ",
                          absl::StrCat(sizes.size() * OpRule::kMaxText / out.text.size() / 2),
                          " parts or fewer each"});
}

absl::Status SplitForward(const OpCall& call) {
  const int dim = call.attrs<SplitAttrs>().dim;
  int64_t begin = 0;
  for (size_t i = 0; i < call.results.size(); ++i) {
    const int64_t size = call.decision.results[i]->local_shape[dim];
    call.results[i] = call.operands[0].Narrow(dim, begin, size);
    begin += size;
  }
  return absl::OkStatus();
}

absl::Status SplitBackward(const GradCall& call) {
  return CopySideBySide(call.device(), call.result_gradients, call.attrs<SplitAttrs>().dim,
                        call.gradients[0]);
}

absl::StatusOr<LayoutChoice> SplitLayouts(const LayoutChoiceRequest& request) {
  const auto& [dim, sizes] = request.attrs.as<SplitAttrs>();
  return SplitWithinUnits(request, dim, CommonUnit(sizes));
}

const OpDef kSliceOp = {
    .name = "Slice",
    .describe = SliceText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<SliceAttrs>,
    .every_device = {SliceForward, SliceBackward},
    .view = true,
    .choose_layouts = SliceLayouts,
};

// There are as many results as sizes.
const OpDef kSplitOp = {
    .name = "SplitTensor",
    .describe = SplitText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<SplitAttrs>,
    .every_device = {SplitForward, SplitBackward},
    .view = true,
    .choose_layouts = SplitLayouts,
};

}  // namespace

absl::Span<const OpDef* const> SliceOps() {
  static constexpr const OpDef* kOps[] = {&kSliceOp, &kSplitOp};
  return kOps;
}

}  // namespace internal

TensorOr Slice(const TensorOr& x, int dim, int64_t begin, int64_t end) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Slice", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("Slice", x->spec(), dim));
  const int64_t size = x->shape()[d];
  if (begin < 0 || begin > end || end > size) {
    return InvalidArgument({"Slice: ", absl::StrCat("[", begin, ", ", end, ")"),
                            " is no part of dimension ", absl::StrCat(d), " of ", x->ToString(),
                            "; give 0 <= begin <= end <= ", absl::StrCat(size)});
  }
  if (begin == 0 && end == size) return internal::Itself(x);
  // Another offset needs no new decision, unless the dimension is sharded and the unit changes.
  const bool split = IsSplit(x->layout().dim(d));
  const int64_t unit = split ? internal::CommonUnit({begin, end - begin, size}) : 1;
  return Dispatch(internal::kSliceOp, {&x}, internal::SliceAttrs{d, end - begin, unit},
                  {.offset = begin});
}

absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("SplitTensor", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("SplitTensor", x->spec(), dim));
  int64_t left = x->shape()[d];  // subtracts, since a sum of sizes may overflow
  bool fits = !sizes.empty();
  for (int64_t size : sizes) {
    fits &= 0 <= size && size <= left;
    left -= fits ? size : 0;
  }
  if (!fits || left != 0) {
    return InvalidArgument({"SplitTensor: sizes ", DimsToString(sizes),
                            " do not add up to dimension ", absl::StrCat(d), " of ", x->ToString(),
                            "; give sizes >= 0 whose sum is ", absl::StrCat(x->shape()[d])});
  }
  const internal::SplitAttrs attrs{d, Dims(sizes.begin(), sizes.end())};
  DT_ASSIGN_OR_RETURN(auto parts, DispatchAll(internal::kSplitOp, {&x}, attrs));
  return std::vector<DistributedTensor>(std::make_move_iterator(parts.begin()),
                                        std::make_move_iterator(parts.end()));
}

}  // namespace dtensor
