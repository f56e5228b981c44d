// Reshape, Transpose and Expand: views of the local tensor, after the operand was redistributed as
// the rule requires.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

absl::StatusOr<RuleText> ReshapeText(absl::Span<const Dims> shapes, AttrsView attrs) {
  RuleText out;
  const Dims& shape = attrs.as<ReshapeAttrs>().shape;
  DT_ASSIGN_OR_RETURN(out.text, ReshapeRule(shapes[0], shape, &out.sizes));
  return out;
}

absl::Status ReshapeForward(const OpCall& call) {
  DT_ASSIGN_OR_RETURN(call.results[0], ReshapeLocal(call.device(), call.operands[0],
                                                    call.decision.results[0]->local_shape));
  return absl::OkStatus();
}

absl::Status ReshapeBackward(const GradCall& call) {
  DT_ASSIGN_OR_RETURN(call.gradients[0], ReshapeLocal(call.device(), call.result_gradients[0],
                                                      call.decision.operands[0]->local_shape));
  return absl::OkStatus();
}

// "d0 d1 d2 -> d0 d2 d1".
absl::StatusOr<RuleText> TransposeText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const auto& [dim0, dim1] = attrs.as<TransposeAttrs>();
  const int ndim = static_cast<int>(shapes[0].size());
  std::vector<std::string> letters;
  for (int d = 0; d < ndim; ++d) letters.push_back(Letter(d));
  std::swap(letters[dim0], letters[dim1]);
  return RuleText{absl::StrCat(Letters(ndim), " -> ", absl::StrJoin(letters, " ")), {}};
}

absl::Status TransposeForward(const OpCall& call) {
  const auto& [dim0, dim1] = call.attrs<TransposeAttrs>();
  call.results[0] = call.operands[0].Transpose(dim0, dim1);
  return absl::OkStatus();
}

absl::Status TransposeBackward(const GradCall& call) {
  const auto& [dim0, dim1] = call.attrs<TransposeAttrs>();
  call.gradients[0] = call.result_gradients[0].Transpose(dim0, dim1);
  return absl::OkStatus();
}

// "d0 () d2 -> e0! d0 e2! d2": dimensions that were broadcast are not sharded in the result.
absl::StatusOr<RuleText> ExpandText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const Dims& shape = attrs.as<ExpandAttrs>().shape;
  const int missing = static_cast<int>(shape.size() - shapes[0].size());
  RuleText out;
  std::vector<std::string> operand, result;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    const bool is_kept = d >= missing && shapes[0][d - missing] == shape[d];
    if (is_kept) {
      operand.push_back(Letter(d));
      result.push_back(Letter(d));
      continue;
    }
    if (d >= missing) operand.push_back("()");
    result.push_back(absl::StrCat("e", d, "!"));
    out.sizes.push_back({absl::StrCat("e", d), shape[d]});
  }
  out.text = absl::StrCat(absl::StrJoin(operand, " "), " -> ", absl::StrJoin(result, " "));
  return out;
}

absl::Status ExpandForward(const OpCall& call) {
  call.results[0] = call.operands[0].BroadcastTo(call.decision.results[0]->local_shape);
  return absl::OkStatus();
}

absl::Status ExpandBackward(const GradCall& call) {
  return SumToShape(call.device(), call.result_gradients[0], call.gradients[0]);
}

// Whether `from` broadcasts to `to`.
bool Expands(const Dims& from, absl::Span<const int64_t> to) {
  if (from.size() > to.size()) return false;
  const size_t missing = to.size() - from.size();
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] < 0 || (d >= missing && from[d - missing] != 1 && from[d - missing] != to[d])) {
      return false;
    }
  }
  return true;
}

// `dims` counted from 0; each must occur once.
absl::StatusOr<std::vector<int>> Permutation(const Spec& spec, absl::Span<const int> dims) {
  std::vector<int> permutation;
  for (int dim : dims) {
    DT_ASSIGN_OR_RETURN(permutation.emplace_back(), CheckedDim("Permute", spec, dim));
  }
  std::vector<int> sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  bool fits = static_cast<int>(sorted.size()) == spec.ndim();
  for (int d = 0; fits && d < spec.ndim(); ++d) fits = sorted[d] == d;
  if (fits) return permutation;
  return InvalidArgument({"Permute: [", absl::StrJoin(dims, ", "), "] is no order of the ",
                          absl::StrCat(spec.ndim()), " dimensions of ", spec.ToString(),
                          "; give each once"});
}

// `shape` with -1 replaced by the remaining size.
absl::StatusOr<Dims> ResolveShape(const Spec& spec, absl::Span<const int64_t> shape) {
  Dims out(shape.begin(), shape.end());
  int open = -1;
  Dims known_sizes;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument(
        {"Reshape: ", spec.ToString(), " cannot become ", DimsToString(shape), ": ", why});
  };
  for (int d = 0; d < static_cast<int>(out.size()); ++d) {
    if (out[d] < -1) return refuse("a size is negative; only -1 has a meaning");
    if (out[d] == -1 && open >= 0) return refuse("-1 stands twice; give all sizes but one");
    if (out[d] == -1)
      open = d;
    else
      known_sizes.push_back(out[d]);
  }
  DT_ASSIGN_OR_RETURN(const int64_t known, CheckedNumElements("Reshape", known_sizes));
  if (open < 0) return out;
  const int64_t elements = NumElements(spec.shape);
  if (known == 0) return refuse("-1 could be any size beside a size of 0; give all sizes");
  if (elements % known != 0) {
    return refuse(absl::StrCat(elements, " elements are no multiple of ", known,
                               "; give sizes that divide them"));
  }
  out[open] = elements / known;
  return out;
}

const OpDef kReshapeOp = {
    .name = "Reshape",
    .describe = ReshapeText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<ReshapeAttrs>,
    .every_device = {ReshapeForward, ReshapeBackward},
    .view = true,
    .reshapes = true,
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

const OpDef kTransposeOp = {
    .name = "Transpose",
    .describe = TransposeText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<TransposeAttrs>,
    .every_device = {TransposeForward, TransposeBackward},
    .view = true,
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

// Any reduction of copies is the copy of the reduction, so Expand passes Partial operands on.
const OpDef kExpandOp = {
    .name = "Expand",
    .describe = ExpandText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<ExpandAttrs>,
    .every_device = {ExpandForward, ExpandBackward},
    .view = true,
};

}  // namespace

absl::Span<const OpDef* const> ViewOps() {
  static constexpr const OpDef* kOps[] = {&kReshapeOp, &kTransposeOp, &kExpandOp};
  return kOps;
}

}  // namespace internal

TensorOr Reshape(const TensorOr& x, absl::Span<const int64_t> shape) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Reshape", x));
  DT_ASSIGN_OR_RETURN(const Dims resolved, internal::ResolveShape(x->spec(), shape));
  if (resolved == x->shape()) return internal::Itself(x);
  return Dispatch(internal::kReshapeOp, {&x}, internal::ReshapeAttrs{resolved});
}

TensorOr Transpose(const TensorOr& x, int dim0, int dim1) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Transpose", x));
  DT_ASSIGN_OR_RETURN(const int a, internal::CheckedDim("Transpose", x->spec(), dim0));
  DT_ASSIGN_OR_RETURN(const int b, internal::CheckedDim("Transpose", x->spec(), dim1));
  if (a == b) return internal::Itself(x);
  return Dispatch(internal::kTransposeOp, {&x},
                  internal::TransposeAttrs{std::min(a, b), std::max(a, b)});
}

// Swaps each dimension into its place: at most ndim - 1 nested views.
TensorOr Permute(const TensorOr& x, absl::Span<const int> dims) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Permute", x));
  DT_ASSIGN_OR_RETURN(const std::vector<int> permutation, internal::Permutation(x->spec(), dims));
  std::vector<int> now(permutation.size());  // which dimension of x stands where
  std::iota(now.begin(), now.end(), 0);
  TensorOr out = internal::Itself(x);
  for (int d = 0; d < static_cast<int>(now.size()); ++d) {
    const auto found = std::find(now.begin(), now.end(), permutation[d]) - now.begin();
    if (found == d) continue;
    out = Transpose(out, d, static_cast<int>(found));
    std::swap(now[d], now[found]);
  }
  return out;
}

TensorOr Expand(const TensorOr& x, absl::Span<const int64_t> shape) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Expand", x));
  if (!internal::Expands(x->shape(), shape)) {
    return InvalidArgument({"Expand: ", x->ToString(), " does not broadcast to ",
                            DimsToString(shape),
                            "; give its sizes, others where they are 1, and more in front"});
  }
  const Dims to(shape.begin(), shape.end());
  if (to == x->shape()) return internal::Itself(x);
  return Dispatch(internal::kExpandOp, {&x}, internal::ExpandAttrs{to});
}

}  // namespace dtensor
