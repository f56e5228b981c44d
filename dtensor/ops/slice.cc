// Slice, SplitTensor and Concat, along a dimension that is whole on every rank.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// "d0 NAME! d2": the letters of `ndim` dimensions with another one at `dim`.
std::string TermWith(int ndim, int dim, absl::string_view name) {
  std::vector<std::string> letters;
  for (int d = 0; d < ndim; ++d) letters.push_back(d == dim ? absl::StrCat(name, "!") : Letter(d));
  return absl::StrJoin(letters, " ");
}

// "d0 a! d2 -> d0 e! d2".
absl::StatusOr<RuleText> SliceText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const auto& [dim, size] = attrs.as<SliceAttrs>();
  return RuleText{absl::StrCat(TermWith(ndim, dim, "a"), " -> ", TermWith(ndim, dim, "e")),
                  {{"e", size}}};
}

absl::Status SliceForward(const OpCall& call) {
  const auto& [dim, size] = call.attrs<SliceAttrs>();
  call.results[0] = call.operands[0].Narrow(dim, call.values.offset, size);
  return absl::OkStatus();
}

absl::Status SliceBackward(const GradCall& call) {
  const auto& [dim, size] = call.attrs<SliceAttrs>();
  const int64_t begin = call.values.offset, end = begin + size;
  const Tensor& dx = call.gradients[0];
  Device& device = call.device();
  DT_RETURN_IF_ERROR(kernels::Fill(device, dx.Narrow(dim, 0, begin), 0));
  DT_RETURN_IF_ERROR(kernels::Fill(device, dx.Narrow(dim, end, dx.size(dim) - end), 0));
  return kernels::Copy(device, call.result_gradients[0], dx.Narrow(dim, begin, end - begin));
}

// "d0 a! -> d0 e0!, d0 e1!".
absl::StatusOr<RuleText> SplitText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const auto& [dim, sizes] = attrs.as<SplitAttrs>();
  RuleText out;
  std::vector<std::string> results;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = absl::StrCat("e", i);
    results.push_back(TermWith(ndim, dim, name));
    out.sizes.push_back({name, sizes[i]});
  }
  out.text = absl::StrCat(TermWith(ndim, dim, "a"), " -> ", absl::StrJoin(results, ", "));
  return out;
}

absl::Status SplitForward(const OpCall& call) {
  const auto& [dim, sizes] = call.attrs<SplitAttrs>();
  int64_t begin = 0;
  for (size_t i = 0; i < call.results.size(); ++i) {
    call.results[i] = call.operands[0].Narrow(dim, begin, sizes[i]);
    begin += sizes[i];
  }
  return absl::OkStatus();
}

// Copies `parts` side by side along `dim`; together they fill `out`.
template <typename Tensors>
absl::Status Join(Device& device, const Tensors& parts, int dim, const Tensor& out) {
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    DT_RETURN_IF_ERROR(kernels::Copy(device, part, out.Narrow(dim, begin, part.size(dim))));
    begin += part.size(dim);
  }
  return absl::OkStatus();
}

absl::Status SplitBackward(const GradCall& call) {
  return Join(call.device(), call.result_gradients, call.attrs<SplitAttrs>().dim,
              call.gradients[0]);
}

absl::Status ConcatCheck(Specs operands, AttrsView) {
  for (const Spec* operand : operands) {
    if (operand->ndim() == operands[0]->ndim()) continue;
    return InvalidArgument({"Concat: operands have unlike numbers of dimensions (",
                            SpecsText(operands), "); Reshape them first"});
  }
  return absl::OkStatus();
}

// "d0 a0!, d0 a1! -> d0 e!".
absl::StatusOr<RuleText> ConcatText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const int dim = attrs.as<ConcatAttrs>().dim;
  int64_t size = 0;
  std::vector<std::string> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    operands.push_back(TermWith(ndim, dim, absl::StrCat("a", i)));
    size += shapes[i][dim];
  }
  return RuleText{absl::StrCat(absl::StrJoin(operands, ", "), " -> ", TermWith(ndim, dim, "e")),
                  {{"e", size}}};
}

absl::Status ConcatForward(const OpCall& call) {
  return Join(call.device(), call.operands, call.attrs<ConcatAttrs>().dim, call.results[0]);
}

absl::Status ConcatBackward(const GradCall& call) {
  const int dim = call.attrs<ConcatAttrs>().dim;
  int64_t begin = 0;
  for (size_t i = 0; i < call.gradients.size(); ++i) {
    const int64_t size = call.decision.operands[i]->shape[dim];
    if (call.wants(i)) call.gradients[i] = call.result_gradients[0].Narrow(dim, begin, size);
    begin += size;
  }
  return absl::OkStatus();
}

const OpDef kSliceOp = {
    .name = "Slice",
    .describe = SliceText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<SliceAttrs>,
    .host = {SliceForward, SliceBackward},
    .view = true,
};

// As many results as sizes.
const OpDef kSplitOp = {
    .name = "SplitTensor",
    .describe = SplitText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<SplitAttrs>,
    .host = {SplitForward, SplitBackward},
    .view = true,
};

const OpDef kConcatOp = {
    .name = "Concat",
    .describe = ConcatText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<ConcatAttrs>,
    .check = ConcatCheck,
    .host = {ConcatForward, ConcatBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

}  // namespace

absl::Span<const OpDef* const> SliceOps() {
  static constexpr const OpDef* kOps[] = {&kSliceOp, &kSplitOp, &kConcatOp};
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
  return Dispatch(internal::kSliceOp, {&x}, internal::SliceAttrs{d, end - begin},
                  {.offset = begin});
}

absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("SplitTensor", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("SplitTensor", x->spec(), dim));
  int64_t left = x->shape()[d];  // no sum: sizes may wrap
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

TensorOr Concat(absl::Span<const TensorOr> tensors, int dim) {
  constexpr size_t kMost = 8;
  if (tensors.empty() || tensors.size() > kMost) {
    return InvalidArgument({"Concat: takes 1 to ", absl::StrCat(kMost), " tensors, got ",
                            absl::StrCat(tensors.size()), "; join them in several steps"});
  }
  absl::InlinedVector<const TensorOr*, kMost> operands;
  for (const TensorOr& tensor : tensors) {
    DT_RETURN_IF_ERROR(internal::CheckDefined("Concat", tensor));
    operands.push_back(&tensor);
  }
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("Concat", tensors[0]->spec(), dim));
  if (tensors.size() == 1) return internal::Itself(tensors[0]);
  return Dispatch(internal::kConcatOp, operands, internal::ConcatAttrs{d});
}

}  // namespace dtensor
