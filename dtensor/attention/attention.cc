// Attention with grouped queries: its call, its checks, and the choice of its plan. For what a rank
// then does, see attention_kernel.h.
#include "dtensor/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/attention/attention_kernel.h"
#include "dtensor/attention/attention_op.h"
#include "dtensor/attention/attention_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

absl::Status AttentionCheck(Specs operands, AttrsView attrs) {
  const auto& [plan, backward, all_to_all, mask, scale, dropout, query_offset] =
      attrs.as<AttentionAttrs>();
  for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(CheckNdim("Attention", operands, i, 4));
  const Dims& q = operands[0]->shape;
  const Dims& k = operands[1]->shape;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"Attention: ", why, " (q, k, v: ", SpecsText(operands), ")"});
  };
  if (k != operands[2]->shape) return refuse("k and v must have one shape [b, t, hkv, d]");
  if (q[0] != k[0]) return refuse("q and k must have one batch size");
  if (q[3] != k[3] || q[3] == 0) return refuse("q and k must have one head size d > 0");
  if (operands[1]->dtype != operands[0]->dtype || operands[2]->dtype != operands[0]->dtype) {
    return refuse("q, k and v must have one type; use Cast()");
  }
  if (operands.size() == 4 && operands[3]->shape != Dims({q[0]})) {
    return refuse(absl::StrCat("key_lengths are ", operands[3]->ToString(),
                               "; give one for each of the ", q[0], " batch entries"));
  }
  if (k[2] == 0 || q[2] % k[2] != 0) {
    return refuse(absl::StrCat(q[2], " query heads cannot share ", k[2],
                               " key heads evenly; choose hq as a multiple of hkv"));
  }
  if (!std::isfinite(scale)) {
    return refuse(absl::StrCat("scale is ", scale, "; take a finite number, or 0 for 1/sqrt(d)"));
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return refuse(
        absl::StrCat("dropout is ", dropout, ", no probability below 1; take 0 for none"));
  }
  constexpr int64_t kMostPositions = int64_t{1} << 31;  // so that pairs can be counted
  if (std::max(q[1], k[1]) > kMostPositions) {
    return refuse(absl::StrCat(std::max(q[1], k[1]),
                               " positions are more than 2^31; attend to parts of the sequence"));
  }
  if (query_offset != AttentionProblem::kEndTogether) return absl::OkStatus();  // see CheckOffset
  const absl::Status fits = mask.CheckFits(std::max(q[1], k[1]));
  return fits.ok() ? fits : refuse(fits.message());
}

// Explains why there is no all-to-all over `moved`, with the remedy.
std::string WhyNot(const AttentionProblem& problem, const AxisList& moved) {
  const DeviceMesh& mesh = problem.q.mesh();
  const AxisList streamed = StreamedAxes(problem);
  for (int axis : moved) {
    if (absl::c_linear_search(streamed, axis)) continue;
    return absl::StrCat(
        "axis \"", mesh.axis_name(axis),
        "\" does not split both sequences; name axes that do: ", mesh.AxisNames(streamed));
  }
  // The rule shards k's heads over a subset of the axes that shard q's.
  const AxisList kv = AxesOf(problem.kv.dim(2));
  if (AxesOf(problem.q.dim(2)).size() != kv.size()) {
    return "the heads of q and of k are split by unlike axes; take plan ring";
  }
  int64_t ranks = 1;
  for (const AxisList& axes : {kv, moved}) {
    for (int axis : axes) ranks *= mesh.axis_size(axis);
  }
  return absl::StrCat(ranks, " ranks, with those that split the heads already, cannot share ",
                      problem.kv_shape[2], " key heads evenly; name fewer axes, or take plan ring");
}

// The plan that the user has chosen. Errors: it does not exist.
absl::StatusOr<const AttentionPlan*> Pinned(const std::vector<AttentionPlan>& plans,
                                            const AttentionAttrs& arguments,
                                            const AttentionProblem& problem, Specs operands) {
  AxisList moved = arguments.all_to_all.empty() ? StreamedAxes(problem) : arguments.all_to_all;
  absl::c_sort(moved);
  const AttentionPlan* found = nullptr;
  for (const AttentionPlan& plan : plans) {
    if (plan.kind != arguments.plan) continue;
    if (plan.kind != AttentionPlanKind::kAllToAll || plan.all_to_all == moved) found = &plan;
  }
  if (found != nullptr) return found;
  return InvalidArgument({"Attention: all-to-all over ", problem.q.mesh().AxisNames(moved), ": ",
                          WhyNot(problem, moved), " (q, k, v: ", SpecsText(operands), ")"});
}

// The problem with operands as the rule places them, which is the same for all plans: batches and
// heads aligned, and nothing Partial.
AttentionProblem ProblemOf(const LayoutChoiceRequest& request, const AttentionAttrs& arguments) {
  AttentionProblem problem;
  problem.q = request.assignment.operands[0];
  problem.kv = request.assignment.operands[1];
  problem.q_shape = request.operands[0]->shape;
  problem.kv_shape = request.operands[1]->shape;
  problem.dtype = request.operands[0]->dtype;
  problem.mask = arguments.mask;
  problem.backward = arguments.backward;
  problem.query_offset = arguments.query_offset;
  return problem;
}

absl::StatusOr<LayoutChoice> AttentionLayouts(const LayoutChoiceRequest& request) {
  LayoutChoice choice;
  const AttentionAttrs& arguments = request.attrs.as<AttentionAttrs>();
  if (arguments.plan == AttentionPlanKind::kRing) return choice;
  const AttentionProblem problem = ProblemOf(request, arguments);
  DT_ASSIGN_OR_RETURN(const std::vector<AttentionPlan> plans,
                      AttentionPlans(problem, request.options.links));
  if (plans.empty()) return choice;
  const RedistributionOptions& options = request.options;
  const int64_t left = std::max<int64_t>(0, options.max_extra_bytes - options.staging_bytes);
  const AttentionPlan* plan = &ChooseAttentionPlan(plans, options.max_extra_bytes < 0 ? -1 : left);
  choice.asked_for = arguments.plan != AttentionPlanKind::kAutomatic;
  if (choice.asked_for) {
    DT_ASSIGN_OR_RETURN(plan, Pinned(plans, arguments, problem, request.operands));
  }
  if (plan->kind == AttentionPlanKind::kRing) return choice;  // the rule's own layouts
  choice.operands = {plan->q, plan->kv, plan->kv};
  if (request.operands.size() == 4) choice.operands.push_back(request.assignment.operands[3]);
  if (plan->kind == AttentionPlanKind::kAllToAll) choice.results = {problem.q};
  return choice;
}

DType AttentionType(Specs operands, AttrsView, int result) {
  return result == 0 ? operands[0]->dtype : AccumulatorOf(operands[0]->dtype);
}

}  // namespace

absl::StatusOr<AttentionAttrs> AttrsOf(const AttentionOptions& options, const DeviceMesh& mesh,
                                       bool backward) {
  AttentionAttrs attrs = {options.plan, backward, {}, options.mask, options.scale, options.dropout};
  attrs.query_offset = options.query_offset.value_or(AttentionProblem::kEndTogether);
  if (options.plan != AttentionPlanKind::kAllToAll) return attrs;
  bool named = false;
  for (const absl::string_view name : absl::StrSplit(options.all_to_all, ',', absl::SkipEmpty())) {
    const absl::StatusOr<AxisList> axes = mesh.Find(name);
    if (!axes.ok()) {
      return InvalidArgument({"Attention: all_to_all: ", axes.status().message()});
    }
    named = true;
    for (int axis : *axes) {
      if (mesh.axis_size(axis) > 1) attrs.all_to_all.push_back(axis);
    }
  }
  absl::c_sort(attrs.all_to_all);
  attrs.all_to_all.erase(std::unique(attrs.all_to_all.begin(), attrs.all_to_all.end()),
                         attrs.all_to_all.end());
  // Axes of size 1 shard nothing. If all named axes have size 1, nothing moves to the heads, and a
  // ring is left.
  if (named && attrs.all_to_all.empty()) attrs.plan = AttentionPlanKind::kRing;
  return attrs;
}

namespace {

// The second result is the logarithm of each row's sum of exponentials, for backward. A fourth
// operand, if there is one: key_lengths.
absl::StatusOr<RuleText> AttentionRule(absl::Span<const Dims> shapes, AttrsView) {
  return RuleText{absl::StrCat("b s (h g) d!, b t~s h d!, b t~s h d!",
                               shapes.size() == 4 ? ", b" : "", " -> b s (h g) d!, b (h g) s"),
                  {}};
}

const OpDef kAttentionOp = {
    .name = "Attention",
    .describe = AttentionRule,
    .attrs = &kAttrsType<AttentionAttrs>,
    .operand_types = {TypeSet::Floats(), TypeSet::Floats(), TypeSet::Floats(), TypeSet::Integers()},
    .check = AttentionCheck,
    .result_dtype = AttentionType,
    .every_device = {AttentionForward, AttentionBackward},
    .saved_operands = 0b1111,
    .saved_results = 0b11,
    .optional_result_gradients = 0b10,
    .choose_layouts = AttentionLayouts,
    .prepare = PrepareAttention,
};

}  // namespace

absl::Span<const OpDef* const> AttentionOps() {
  static constexpr const OpDef* kOps[] = {&kAttentionOp};
  return kOps;
}

}  // namespace internal

namespace {

// Checks that the queries' positions are valid, and that the mask covers them.
absl::Status CheckOffset(const DistributedTensor& q, const DistributedTensor& k,
                         const AttentionOptions& options) {
  constexpr int64_t kMostPositions = int64_t{1} << 31;
  const auto is_position = [](int64_t x) { return 0 <= x && x <= kMostPositions; };
  const int64_t first = options.query_offset.value_or(0);
  int64_t offset = first;  // the largest one, or an invalid one
  for (const int64_t row : options.row_offsets) {
    if (!is_position(offset)) break;
    offset = is_position(row) ? std::max(offset, first + row) : row;
  }
  const auto refuse = [&](absl::string_view why) {
    const Spec* const specs[] = {&q.spec(), &k.spec()};
    return InvalidArgument({"Attention: query_offset is ", absl::StrCat(offset), ": ", why,
                            " (q, k: ", SpecsText(specs), ")"});
  };
  if (!is_position(offset)) return refuse("give a position from 0 to 2^31");
  const AttentionMask::Kind kind = options.mask.kind();
  if (kind != AttentionMask::Kind::kPrefix && kind != AttentionMask::Kind::kDocuments)
    return absl::OkStatus();
  const absl::Status fits = options.mask.CheckFits(std::max(q.shape()[1] + offset, k.shape()[1]));
  return fits.ok() ? fits : refuse(fits.message());
}

// Whether a plan might stream keys past queries; plans need to know the positions.
bool MayStream(const DistributedTensor& q, const DistributedTensor& k, const DistributedTensor& v) {
  const auto is_split = [](const DistributedTensor& x) { return IsSplit(x.layout().dim(1)); };
  return is_split(q) && (is_split(k) || is_split(v));
}

absl::Status RowsInARing(const DistributedTensor& q, const DistributedTensor& k) {
  const Spec* const specs[] = {&q.spec(), &k.spec()};
  return InvalidArgument(
      {"Attention: offsets of batch entries, where both sequences are sharded "
       "(q, k: ",
       SpecsText(specs), "); bring q to where its sequence is whole"});
}

// Lengths, of a stage's batch too: moves nothing if every rank of q's mesh has them.
TensorOr OnMeshOf(const DistributedTensor& q, const DistributedTensor& lengths) {
  if (&lengths.context() != &q.context() || lengths.mesh() == q.mesh()) return lengths;
  DT_ASSIGN_OR_RETURN(const Layout there, lengths.layout().OnMesh(q.mesh()));
  return lengths.Redistribute(there);
}

absl::StatusOr<absl::InlinedVector<DistributedTensor, 2>> Results(const TensorOr& q,
                                                                  const TensorOr& k,
                                                                  const TensorOr& v,
                                                                  const AttentionOptions& options) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Attention", q));
  DT_ASSIGN_OR_RETURN(internal::AttentionAttrs attrs,
                      internal::AttrsOf(options, q->mesh(), q->context().recording()));
  CallValues values = {.seed = options.dropout_seed};
  const auto has_sequence = [](const TensorOr& x) {
    return x.ok() && x->defined() && x->spec().ndim() == 4;
  };
  const bool in_rows = !options.row_offsets.empty();
  if (in_rows) DT_RETURN_IF_ERROR(internal::CheckRowOffsets("Attention", *q, options.row_offsets));
  if ((options.query_offset || in_rows) && has_sequence(q) && has_sequence(k) && has_sequence(v)) {
    DT_RETURN_IF_ERROR(CheckOffset(*q, *k, options));
    const bool streams = MayStream(*q, *k, *v);
    if (streams && in_rows) return RowsInARing(*q, *k);
    if (!streams) {
      attrs.query_offset = 0;
      values.offset = options.query_offset.value_or(0);
      values.row_offsets = options.row_offsets;
    }
  }
  const DistributedTensor& lengths = options.key_lengths;
  if (!lengths.defined()) {
    return DispatchAll(internal::kAttentionOp, {&q, &k, &v}, attrs, values);
  }
  const TensorOr there = OnMeshOf(*q, lengths);
  return DispatchAll(internal::kAttentionOp, {&q, &k, &v, &there}, attrs, values);
}

}  // namespace

TensorOr Attention(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                   const AttentionOptions& options) {
  DT_ASSIGN_OR_RETURN(auto results, Results(q, k, v, options));
  return std::move(results[0]);
}

absl::StatusOr<AttentionResults> AttentionWithLse(const TensorOr& q, const TensorOr& k,
                                                  const TensorOr& v,
                                                  const AttentionOptions& options) {
  DT_ASSIGN_OR_RETURN(auto results, Results(q, k, v, options));
  AttentionResults out;
  out.o = std::move(results[0]);
  const Layout& o = out.o.layout();  // lse [b, h, s] beside o [b, s, h, d]
  DT_ASSIGN_OR_RETURN(const Layout lse, Layout::Create(o.mesh(), {o.dim(0), o.dim(2), o.dim(1)}));
  DT_ASSIGN_OR_RETURN(out.lse, results[1].Redistribute(lse));
  return out;
}

}  // namespace dtensor
