// Concat, Stack and Pad: their results consist of parts that lie side by side along one dimension.
// It is replicated on every rank, or sharded within the units that all parts are multiples of
// (dim_units.h).
#include <numeric>
#include <string>
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

static_assert(kMostJoined == OpRule::kMaxOperands);
namespace internal {
namespace {

absl::Status ConcatCheck(Specs operands, AttrsView) {
  for (const Spec* operand : operands) {
    if (operand->ndim() == operands[0]->ndim()) continue;
    return InvalidArgument({"Concat: operands have unlike numbers of dimensions (",
                            SpecsText(operands), "); Reshape them first"});
  }
  return absl::OkStatus();
}

// "d0 a0!, d0 a1! -> d0 e!", or "d0 (a0! r), d0 (a1! r) -> d0 (e! r)".
absl::StatusOr<RuleText> ConcatText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  const int dim = attrs.as<ConcatAttrs>().dim;
  std::vector<int64_t> sizes;
  for (const Dims& shape : shapes) sizes.push_back(shape[dim]);
  const int64_t unit = CommonUnit(sizes);
  RuleText out;
  std::vector<std::string> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    operands.push_back(TermInUnits(ndim, dim, absl::StrCat("a", i), unit));
  }
  AddSizes("e", std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), unit, out.sizes);
  out.text = absl::StrCat(absl::StrJoin(operands, ", "), " -> ", TermInUnits(ndim, dim, "e", unit));
  return out;
}

absl::Status ConcatForward(const OpCall& call) {
  return CopySideBySide(call.device(), call.operands, call.attrs<ConcatAttrs>().dim,
                        call.results[0]);
}

absl::Status ConcatBackward(const GradCall& call) {
  const int dim = call.attrs<ConcatAttrs>().dim;
  int64_t begin = 0;
  for (size_t i = 0; i < call.gradients.size(); ++i) {
    const int64_t size = call.decision.operands[i]->local_shape[dim];
    if (call.wants(i)) call.gradients[i] = call.result_gradients[0].Narrow(dim, begin, size);
    begin += size;
  }
  return absl::OkStatus();
}

absl::StatusOr<LayoutChoice> ConcatLayouts(const LayoutChoiceRequest& request) {
  const int dim = request.attrs.as<ConcatAttrs>().dim;
  std::vector<int64_t> sizes;
  for (const Spec* operand : request.operands) sizes.push_back(operand->shape[dim]);
  return SplitWithinUnits(request, dim, CommonUnit(sizes));
}

absl::Status StackCheck(Specs operands, AttrsView) {
  for (const Spec* operand : operands) {
    if (operand->shape == operands[0]->shape) continue;
    return InvalidArgument({"Stack: operands have unlike shapes (", SpecsText(operands),
                            "); Expand or Pad them to one shape, or Concat them"});
  }
  return absl::OkStatus();
}

// "d0 d1, d0 d1 -> d0 e! d1".
absl::StatusOr<RuleText> StackText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  std::vector<std::string> result;
  for (int d = 0; d < ndim; ++d) result.push_back(Letter(d));
  result.insert(result.begin() + attrs.as<StackAttrs>().dim, "e!");
  const std::vector<std::string> operands(shapes.size(), Letters(ndim));
  return RuleText{absl::StrCat(absl::StrJoin(operands, ", "), " -> ", absl::StrJoin(result, " ")),
                  {{"e", static_cast<int64_t>(shapes.size())}}};
}

// Element i of a stack along `dim`.
Tensor OneOf(const Tensor& stack, int dim, int64_t i) {
  const Tensor one = stack.Narrow(dim, i, 1);
  Dims shape = one.shape(), strides = one.strides();
  shape.erase(shape.begin() + dim);
  strides.erase(strides.begin() + dim);
  return one.View(shape, strides, 0);
}

absl::Status StackForward(const OpCall& call) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Tensor part = OneOf(call.results[0], call.attrs<StackAttrs>().dim, i);
    DT_RETURN_IF_ERROR(kernels::Copy(call.device(), call.operands[i], part));
  }
  return absl::OkStatus();
}

absl::Status StackBackward(const GradCall& call) {
  for (size_t i = 0; i < call.gradients.size(); ++i) {
    if (!call.wants(i)) continue;
    call.gradients[i] = OneOf(call.result_gradients[0], call.attrs<StackAttrs>().dim, i);
  }
  return absl::OkStatus();
}

int64_t PadUnit(const Dims& shape, const PadAttrs& attrs) {
  return CommonUnit({attrs.before, shape[attrs.dim], attrs.after});
}

// "d0 a! -> d0 e!", or "d0 (a! r) -> d0 (e! r)".
absl::StatusOr<RuleText> PadText(absl::Span<const Dims> shapes, AttrsView view) {
  const PadAttrs& attrs = view.as<PadAttrs>();
  const int ndim = static_cast<int>(shapes[0].size());
  const int64_t unit = PadUnit(shapes[0], attrs);
  RuleText out{absl::StrCat(TermInUnits(ndim, attrs.dim, "a", unit), " -> ",
                            TermInUnits(ndim, attrs.dim, "e", unit)),
               {}};
  AddSizes("e", attrs.before + shapes[0][attrs.dim] + attrs.after, unit, out.sizes);
  return out;
}

// Where the padding in front of a local result ends.
int64_t LocalBefore(const Decision& decision, const Tensor& result) {
  const PadAttrs& attrs = AttrsView(decision.attrs).as<PadAttrs>();
  return LocalIndex(result, attrs.dim, decision.results[0]->shape[attrs.dim],
                    PadUnit(decision.operands[0]->shape, attrs), attrs.before);
}

absl::Status PadForward(const OpCall& call) {
  const auto& [dim, before, after, value] = call.attrs<PadAttrs>();
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  const int64_t begin = LocalBefore(call.decision, y), end = begin + x.size(dim);
  DT_RETURN_IF_ERROR(kernels::Fill(device, y.Narrow(dim, 0, begin), value));
  DT_RETURN_IF_ERROR(kernels::Fill(device, y.Narrow(dim, end, y.size(dim) - end), value));
  return kernels::Copy(device, x, y.Narrow(dim, begin, x.size(dim)));
}

absl::Status PadBackward(const GradCall& call) {
  const int dim = call.attrs<PadAttrs>().dim;
  const Tensor& dy = call.result_gradients[0];
  call.gradients[0] =
      dy.Narrow(dim, LocalBefore(call.decision, dy), call.decision.operands[0]->local_shape[dim]);
  return absl::OkStatus();
}

absl::StatusOr<LayoutChoice> PadLayouts(const LayoutChoiceRequest& request) {
  const PadAttrs& attrs = request.attrs.as<PadAttrs>();
  return SplitWithinUnits(request, attrs.dim, PadUnit(request.operands[0]->shape, attrs));
}

const OpDef kConcatOp = {
    .name = "Concat",
    .describe = ConcatText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<ConcatAttrs>,
    .check = ConcatCheck,
    .every_device = {ConcatForward, ConcatBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
    .choose_layouts = ConcatLayouts,
};

const OpDef kStackOp = {
    .name = "Stack",
    .describe = StackText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<StackAttrs>,
    .check = StackCheck,
    .every_device = {StackForward, StackBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

// Pads with zeros. Any reduction of zeros is zero, so Partial operands are allowed.
const OpDef kPadOp = {
    .name = "Pad",
    .describe = PadText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<PadAttrs>,
    .every_device = {PadForward, PadBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
    .choose_layouts = PadLayouts,
};

// Pads with another number. If terms were summed, it would count once for each term.
const OpDef kPadWithOp = {
    .name = "Pad",
    .describe = PadText,
    .attrs = &kAttrsType<PadAttrs>,
    .every_device = {PadForward, PadBackward},
    .sets_gradients = true,
    .passes_partial_gradients = true,
    .choose_layouts = PadLayouts,
};

using Operands = absl::InlinedVector<const TensorOr*, 8>;

// Errors: as CheckDefined; for no tensors, or too many.
absl::StatusOr<Operands> OperandsOf(absl::string_view op, absl::Span<const TensorOr> tensors) {
  if (tensors.empty() || tensors.size() > OpRule::kMaxOperands) {
    return InvalidArgument({op, ": takes 1 to ", absl::StrCat(OpRule::kMaxOperands),
                            " tensors, got ", absl::StrCat(tensors.size()),
                            "; join them in several steps"});
  }
  Operands operands;
  for (const TensorOr& tensor : tensors) {
    DT_RETURN_IF_ERROR(CheckDefined(op, tensor));
    operands.push_back(&tensor);
  }
  return operands;
}

}  // namespace

absl::Span<const OpDef* const> ConcatOps() {
  static constexpr const OpDef* kOps[] = {&kConcatOp, &kStackOp, &kPadOp, &kPadWithOp};
  return kOps;
}

}  // namespace internal

TensorOr Concat(absl::Span<const TensorOr> tensors, int dim) {
  DT_ASSIGN_OR_RETURN(const internal::Operands operands, internal::OperandsOf("Concat", tensors));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("Concat", tensors[0]->spec(), dim));
  if (tensors.size() == 1) return internal::Itself(tensors[0]);
  return Dispatch(internal::kConcatOp, operands, internal::ConcatAttrs{d});
}

TensorOr Stack(absl::Span<const TensorOr> tensors, int dim) {
  DT_ASSIGN_OR_RETURN(const internal::Operands operands, internal::OperandsOf("Stack", tensors));
  const int ndim = tensors[0]->spec().ndim() + 1;
  if (dim < -ndim || dim >= ndim) {
    return InvalidArgument({"Stack: there is no place ", absl::StrCat(dim),
                            " for another dimension of ", tensors[0]->ToString(), "; give one of ",
                            absl::StrCat(-ndim), " to ", absl::StrCat(ndim - 1)});
  }
  return Dispatch(internal::kStackOp, operands, internal::StackAttrs{dim < 0 ? dim + ndim : dim});
}

TensorOr Pad(const TensorOr& x, int dim, int64_t before, int64_t after, double value) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Pad", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("Pad", x->spec(), dim));
  if (before < 0 || after < 0 || before > kMaxElements || after > kMaxElements) {
    return InvalidArgument({"Pad: ", absl::StrCat(before), " before and ", absl::StrCat(after),
                            " behind dimension ", absl::StrCat(d), " of ", x->ToString(),
                            ": give sizes from 0 to 2^56; Slice makes a dimension smaller"});
  }
  if (before == 0 && after == 0) return internal::Itself(x);
  return Dispatch(value == 0 ? internal::kPadOp : internal::kPadWithOp, {&x},
                  internal::PadAttrs{d, before, after, value});
}

}  // namespace dtensor
