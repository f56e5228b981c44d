// Sum, Mean and SumOfSquares.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/dispatch.h"
#include "dtensor/ops.h"
#include "dtensor/ops_internal.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/reduce.h"

namespace dtensor {
namespace internal {
namespace {

bool IsReduced(const Attrs& attrs, int dim) {
  return std::find(attrs.ints.begin(), attrs.ints.end(), dim) != attrs.ints.end();
}

// attrs: ints {the reduced dimensions, ascending}. "d0 d1 d2 -> d0 d2".
absl::StatusOr<RuleText> SumRule(absl::Span<const Dims> shapes, const Attrs& attrs) {
  const int rank = static_cast<int>(shapes[0].size());
  std::vector<std::string> kept;
  for (int d = 0; d < rank; ++d) {
    if (!IsReduced(attrs, d)) kept.push_back(Letter(d));
  }
  return RuleText{absl::StrCat(Letters(rank), " -> ", absl::StrJoin(kept, " ")), {}};
}

absl::Status SumForward(const OpCall& call) {
  const absl::InlinedVector<int, 4> dims(call.attrs().ints.begin(), call.attrs().ints.end());
  return kernels::Reduce(call.device(), ReduceOp::kSum, call.operands[0], dims, call.results[0]);
}

// Every element of x gets the gradient of its sum: a broadcast view.
absl::Status SumBackward(const GradCall& call) {
  const Dims& shape = call.decision.operands[0]->local_shape;
  Dims kept = shape;
  for (int64_t d : call.attrs().ints) kept[d] = 1;
  DT_ASSIGN_OR_RETURN(const Tensor dy, ReshapeLocal(call.device(), call.result_gradients[0], kept));
  call.gradients[0] = dy.BroadcastTo(shape);
  return absl::OkStatus();
}

absl::StatusOr<RuleText> ScalarRule(absl::Span<const Dims> shapes, const Attrs&) {
  return RuleText{absl::StrCat(Letters(static_cast<int>(shapes[0].size())), " -> "), {}};
}

absl::Status SumOfSquaresForward(const OpCall& call) {
  return kernels::SumOfSquares(call.device(), call.operands[0], call.results[0]);
}

DType SumOfSquaresType(Specs operands, const Attrs&, int) {
  return AccumulatorOf(operands[0]->dtype);
}

// Ascending, without repetition.
absl::StatusOr<Attrs> ReducedDims(absl::string_view op, const Spec& spec,
                                  absl::Span<const int> dims) {
  Attrs attrs;
  for (int dim : dims) {
    DT_ASSIGN_OR_RETURN(const int d, CheckedDim(op, spec, dim));
    if (IsReduced(attrs, d)) {
      return InvalidArgument({op, ": dimension ", absl::StrCat(d), " of ", spec.ToString(),
                              " is given twice; give each once"});
    }
    attrs.ints.push_back(d);
  }
  std::sort(attrs.ints.begin(), attrs.ints.end());
  return attrs;
}

}  // namespace

const OpDef kSumOp = {
    .name = "Sum",
    .describe = SumRule,
    .linearity = Linearity::kJoint,
    .forward = SumForward,
    .backward = SumBackward,
    .sets_gradients = true,
    .check = [](Specs operands, const Attrs&) { return CheckNumbers("Sum", operands); },
};

const OpDef kSumOfSquaresOp = {
    .name = "SumOfSquares",
    .describe = ScalarRule,
    .forward = SumOfSquaresForward,
    .check = [](Specs operands, const Attrs&) { return CheckFloats("SumOfSquares", operands); },
    .result_dtype = SumOfSquaresType,
};

}  // namespace internal

TensorOr Sum(const TensorOr& x, absl::Span<const int> dims) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Sum", x));
  DT_ASSIGN_OR_RETURN(const Attrs attrs, internal::ReducedDims("Sum", x->spec(), dims));
  if (attrs.ints.empty()) return x;
  return Dispatch(internal::kSumOp, {&x}, attrs);
}

TensorOr Mean(const TensorOr& x, absl::Span<const int> dims) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Mean", x));
  const Spec& spec = x->spec();
  DT_RETURN_IF_ERROR(internal::CheckFloats("Mean", {&spec}));
  DT_ASSIGN_OR_RETURN(const Attrs attrs, internal::ReducedDims("Mean", spec, dims));
  double count = 1;  // of all ranks' elements, not of this rank's
  for (int64_t d : attrs.ints) count *= static_cast<double>(spec.shape[d]);
  return Scale(Sum(x, dims), 1 / count);
}

TensorOr SumOfSquares(const TensorOr& x) { return Dispatch(internal::kSumOfSquaresOp, {&x}, {}); }

}  // namespace dtensor
