// Max, Min and ArgMax. If a reduced dimension is sharded, each rank reduces its part, and every
// rank merges the results. So the results are not Partial, and have gradients. TopK and
// TakeAlongDim, of whole rows.
#include "dtensor/runtime/kernels/extremum.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/reduced_dims.h"
#include "dtensor/ops/shard_stats.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// "d0^ d1 d2^ -> d1".
RuleText MergedRule(int ndim, absl::Span<const int> dims) {
  std::vector<std::string> all, kept;
  for (int d = 0; d < ndim; ++d) {
    const bool reduced = absl::c_linear_search(dims, d);
    all.push_back(absl::StrCat(Letter(d), reduced ? "^" : ""));
    if (!reduced) kept.push_back(Letter(d));
  }
  return {absl::StrCat(absl::StrJoin(all, " "), " -> ", absl::StrJoin(kept, " ")), {}};
}

absl::Status CheckNotEmpty(absl::string_view op, const Spec& x, absl::Span<const int> dims) {
  for (int d : dims) {
    if (x.shape[d] > 0) continue;
    return InvalidArgument({op, ": dimension ", absl::StrCat(d), " of ", x.ToString(),
                            " has no elements, and so no largest or smallest; reduce dimensions ",
                            "that have some"});
  }
  return absl::OkStatus();
}

absl::StatusOr<RuleText> ExtremumRule(absl::Span<const Dims> shapes, AttrsView attrs) {
  return MergedRule(static_cast<int>(shapes[0].size()), attrs.as<ReduceAttrs>().dims);
}

template <ReduceOp kOp>
absl::Status ExtremumCheck(Specs operands, AttrsView attrs) {
  return CheckNotEmpty(kOp == ReduceOp::kMax ? "Max" : "Min", *operands[0],
                       attrs.as<ReduceAttrs>().dims);
}

std::string ReducedLetters(const ReduceAttrs& attrs) {
  return absl::StrJoin(attrs.dims, " ", [](std::string* out, int d) { *out += Letter(d); });
}

template <ReduceOp kOp>
absl::Status ExtremumForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  const auto& attrs = call.attrs<ReduceAttrs>();
  const std::string letters = ReducedLetters(attrs);
  if (call.NumShards(letters) == 1) return kernels::Reduce(device, kOp, x, attrs.dims, y);
  DT_ASSIGN_OR_RETURN(const Tensor mine, Tensor::Empty(device, y.dtype(), y.shape()));
  DT_RETURN_IF_ERROR(kernels::Reduce(device, kOp, x, attrs.dims, mine));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, letters, mine));
  return kernels::Reduce(device, kOp, all, {0}, y);
}

// Elements that tie share the gradient evenly, also across shards.
absl::Status ExtremumBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  const auto& attrs = call.attrs<ReduceAttrs>();
  const std::string letters = ReducedLetters(attrs);
  DT_ASSIGN_OR_RETURN(Tensor count, Tensor::Empty(device, DType::kI64, y.shape()));
  DT_RETURN_IF_ERROR(kernels::CountTies(device, x, y, attrs.dims, count));
  if (call.NumShards(letters) > 1) {
    DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, letters, count));
    DT_ASSIGN_OR_RETURN(count, Tensor::Empty(device, DType::kI64, y.shape()));
    DT_RETURN_IF_ERROR(kernels::Reduce(device, ReduceOp::kSum, all, {0}, count));
  }
  return kernels::ShareAmongTies(device, x, y, attrs.dims, count, call.result_gradients[0],
                                 call.gradients[0]);
}

absl::StatusOr<RuleText> ArgMaxRule(absl::Span<const Dims> shapes, AttrsView attrs) {
  return MergedRule(static_cast<int>(shapes[0].size()), {attrs.as<ArgMaxAttrs>().dim});
}

absl::Status ArgMaxCheck(Specs operands, AttrsView attrs) {
  return CheckNotEmpty("ArgMax", *operands[0], {attrs.as<ArgMaxAttrs>().dim});
}

DType ArgMaxType(Specs, AttrsView, int) { return DType::kI64; }

absl::Status ArgMaxForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &y = call.results[0];
  const int dim = call.attrs<ArgMaxAttrs>().dim;
  Dims shape = y.shape();
  shape.push_back(2);
  DT_ASSIGN_OR_RETURN(const Tensor stats, Tensor::Empty(device, DType::kI64, shape));
  DT_RETURN_IF_ERROR(kernels::ArgMaxStats(device, x, dim, call.OperandIndices(0, dim), stats));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, Letter(dim), stats));
  return kernels::ArgMaxMerge(device, all, y);
}

absl::StatusOr<RuleText> TopKRule(absl::Span<const Dims>, AttrsView attrs) {
  return RuleText{"... d! -> ... k!, ... k!", {{"k", attrs.as<TopKAttrs>().k}}};
}

absl::Status TopKCheck(Specs operands, AttrsView attrs) {
  const Spec& x = *operands[0];
  DT_ASSIGN_OR_RETURN(const int dim, CheckedDim("TopK", x, -1));
  const int64_t k = attrs.as<TopKAttrs>().k, size = x.shape[dim];
  if (0 <= k && k <= size) return absl::OkStatus();
  return InvalidArgument({"TopK: k is ", absl::StrCat(k), " for dimension ", absl::StrCat(dim),
                          " of ", x.ToString(), "; give 0 <= k <= ", absl::StrCat(size)});
}

DType TopKType(Specs operands, AttrsView, int result) {
  return result == 0 ? operands[0]->dtype : DType::kI64;
}

absl::Status TopKForward(const OpCall& call) {
  return kernels::TopK(call.device(), call.operands[0], call.attrs<TopKAttrs>().k, call.results[0],
                       call.results[1]);
}

absl::Status TopKBackward(const GradCall& call) {
  return kernels::TakeGrad(call.device(), call.results[1], call.result_gradients[0],
                           call.gradients[0]);
}

absl::Status TakeCheck(Specs operands, AttrsView) {
  const Dims &x = operands[0]->shape, &indices = operands[1]->shape;
  const bool rows = !x.empty() && x.size() == indices.size() &&
                    std::equal(x.begin(), x.end() - 1, indices.begin());
  if (rows) return absl::OkStatus();
  return InvalidArgument({"TakeAlongDim: ", SpecsText(operands), "; give x [..., d] and indices ",
                          "[..., k], with the same leading dimensions (`dim` comes last)"});
}

DType TakeType(Specs operands, AttrsView, int) { return operands[0]->dtype; }

absl::Status TakeForward(const OpCall& call) {
  return kernels::Take(call.device(), call.operands[0], call.operands[1], call.results[0]);
}

absl::Status TakeBackward(const GradCall& call) {
  return kernels::TakeGrad(call.device(), call.operands[1], call.result_gradients[0],
                           call.gradients[0]);
}

const OpDef kMaxOp = {
    .name = "Max",
    .describe = ExtremumRule,
    .attrs = &kAttrsType<ReduceAttrs>,
    .types = TypeSet::Numbers(),
    .check = ExtremumCheck<ReduceOp::kMax>,
    .every_device = {ExtremumForward<ReduceOp::kMax>, ExtremumBackward},
    .saved_operands = 0b1,
    .saved_results = 0b1,
};

const OpDef kMinOp = {
    .name = "Min",
    .describe = ExtremumRule,
    .attrs = &kAttrsType<ReduceAttrs>,
    .types = TypeSet::Numbers(),
    .check = ExtremumCheck<ReduceOp::kMin>,
    .every_device = {ExtremumForward<ReduceOp::kMin>, ExtremumBackward},
    .saved_operands = 0b1,
    .saved_results = 0b1,
};

const OpDef kArgMaxOp = {
    .name = "ArgMax",
    .describe = ArgMaxRule,
    .attrs = &kAttrsType<ArgMaxAttrs>,
    .types = TypeSet::Numbers(),
    .check = ArgMaxCheck,
    .result_dtype = ArgMaxType,
    .every_device = {ArgMaxForward},
};

const OpDef kTopKOp = {
    .name = "TopK",
    .describe = TopKRule,
    .attrs = &kAttrsType<TopKAttrs>,
    .types = TypeSet::Numbers(),
    .check = TopKCheck,
    .result_dtype = TopKType,
    .every_device = {TopKForward, TopKBackward},
    .saved_results = 0b10,
};

// As the embedding's: linear in x, but not in the indices.
const OpDef kTakeAlongDimOp = {
    .name = "TakeAlongDim",
    .rule = "... d!, ... k! -> ... k!",
    .operand_types = {TypeSet::All(), TypeSet({DType::kI64})},
    .check = TakeCheck,
    .result_dtype = TakeType,
    .every_device = {TakeForward, TakeBackward},
    .saved_operands = 0b10,
};

}  // namespace

absl::Span<const OpDef* const> ExtremumOps() {
  static constexpr const OpDef* kOps[] = {&kMaxOp, &kMinOp, &kArgMaxOp, &kTopKOp, &kTakeAlongDimOp};
  return kOps;
}

}  // namespace internal

TensorOr Max(const TensorOr& x, absl::Span<const int> dims) {
  return internal::DispatchReduction(internal::kMaxOp, x, dims);
}

TensorOr Min(const TensorOr& x, absl::Span<const int> dims) {
  return internal::DispatchReduction(internal::kMinOp, x, dims);
}

TensorOr ArgMax(const TensorOr& x, int dim) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("ArgMax", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("ArgMax", x->spec(), dim));
  return Dispatch(internal::kArgMaxOp, {&x}, internal::ArgMaxAttrs{d});
}

absl::StatusOr<std::vector<DistributedTensor>> TopK(const TensorOr& x, int64_t k) {
  DT_ASSIGN_OR_RETURN(auto results, DispatchAll(internal::kTopKOp, {&x}, internal::TopKAttrs{k}));
  return std::vector<DistributedTensor>(std::make_move_iterator(results.begin()),
                                        std::make_move_iterator(results.end()));
}

TensorOr TakeAlongDim(const TensorOr& x, const TensorOr& indices, int dim) {
  for (const TensorOr* const operand : {&x, &indices}) {
    DT_RETURN_IF_ERROR(internal::CheckDefined("TakeAlongDim", *operand));
  }
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("TakeAlongDim", x->spec(), dim));
  if (d == x->ndim() - 1 || indices->ndim() != x->ndim()) {
    return Dispatch(internal::kTakeAlongDimOp, {&x, &indices});
  }
  const TensorOr rows = Transpose(x, d, -1), in_rows = Transpose(indices, d, -1);
  return Transpose(Dispatch(internal::kTakeAlongDimOp, {&rows, &in_rows}), d, -1);
}

}  // namespace dtensor
