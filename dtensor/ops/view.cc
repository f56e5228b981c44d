// Reshape and Transpose: views of the local tensor, once its elements lie where the rule wants
// them.
#include <algorithm>
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

// `shape` with -1 replaced by what is left.
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
    .host = {ReshapeForward, ReshapeBackward},
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
    .host = {TransposeForward, TransposeBackward},
    .view = true,
    .sets_gradients = true,
    .passes_partial_gradients = true,
};

}  // namespace

absl::Span<const OpDef* const> ViewOps() {
  static constexpr const OpDef* kOps[] = {&kReshapeOp, &kTransposeOp};
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

}  // namespace dtensor
