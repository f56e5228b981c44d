// CumSum: each rank sums its own runs; where a dimension is sharded, one all-gather of the runs'
// sums says with what each of them begins.
#include "dtensor/runtime/kernels/scan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/regions.h"
#include "dtensor/ops/dim_runs.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/shard_stats.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// "d0 d1^ -> d0 d1^".
absl::StatusOr<RuleText> CumSumText(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int dim = attrs.as<CumSumAttrs>().dim;
  std::vector<std::string> letters;
  for (int d = 0; d < static_cast<int>(shapes[0].size()); ++d) {
    letters.push_back(absl::StrCat(Letter(d), d == dim ? "^" : ""));
  }
  const std::string term = absl::StrJoin(letters, " ");
  return RuleText{absl::StrCat(term, " -> ", term), {}};
}

absl::StatusOr<LayoutChoice> CumSumLayouts(const LayoutChoiceRequest& request) {
  return InFewRuns(request, request.attrs.as<CumSumAttrs>().dim, 1);
}

// The runs of every shard of the dimension, in the order in which GatherShards gives them.
struct CumSumState final : OpState {
  std::vector<std::vector<DimRun>> shards;
  size_t me = 0;
  size_t most_runs = 0;
  int64_t bytes() const override {
    return static_cast<int64_t>(shards.size() * (most_runs + 1) * sizeof(DimRun));
  }
};

absl::StatusOr<std::shared_ptr<const OpState>> CumSumPrepare(const OpStateRequest& request) {
  auto state = std::make_shared<CumSumState>();
  const Spec& x = *request.operands[0];
  const int dim = request.attrs.as<CumSumAttrs>().dim;
  for (const int rank : x.mesh().Group(request.rank, AxesOf(x.layout.dim(dim)))) {
    if (rank == request.rank) state->me = state->shards.size();
    const auto coordinate = x.mesh().Coordinate(rank);
    state->shards.push_back(RunsOf(DimRegion(x.layout, dim, x.shape[dim], coordinate)));
    state->most_runs = std::max(state->most_runs, state->shards.back().size());
  }
  return state;
}

// A tensor as [a, n, b], n being the dimension.
absl::StatusOr<Tensor> AsRows(const Tensor& x, int dim) {
  const auto sizes = absl::MakeConstSpan(x.shape());
  return x.Reshape(
      {NumElements(sizes.first(dim)), sizes[dim], NumElements(sizes.subspan(dim + 1))});
}

// The sums of all runs, [shards, most_runs, a, b].
absl::StatusOr<Tensor> GatherSums(const RankCall& call, const CumSumState& state, const Tensor& x) {
  Device& device = call.device();
  const int64_t shape[] = {static_cast<int64_t>(state.most_runs), x.size(0), x.size(2)};
  DT_ASSIGN_OR_RETURN(const Tensor sums, Tensor::Empty(device, AccumulatorOf(x.dtype()), shape));
  DT_RETURN_IF_ERROR(kernels::Fill(device, sums, 0));
  const std::vector<DimRun>& runs = state.shards[state.me];
  for (size_t r = 0; r < runs.size(); ++r) {
    const Tensor run = x.Narrow(1, runs[r].position, runs[r].count);
    DT_RETURN_IF_ERROR(kernels::Reduce(device, ReduceOp::kSum, run, {1},
                                       sums.Narrow(0, static_cast<int64_t>(r), 1)));
  }
  return GatherStats(call, Letter(call.attrs<CumSumAttrs>().dim), sums);
}

// The sum of `terms` [..., a, b], in this order; undefined if there are none.
absl::StatusOr<Tensor> SumOf(Device& device, std::vector<Tensor> terms) {
  if (terms.empty()) return Tensor();
  Tensor sum = terms[0];
  for (size_t i = 1; i < terms.size();) {
    const size_t n = std::min(terms.size() - i, static_cast<size_t>(kernels::kMaxTerms - 1));
    std::vector<Tensor> some = {sum};
    some.insert(some.end(), terms.begin() + i, terms.begin() + i + n);
    DT_ASSIGN_OR_RETURN(sum, Tensor::Empty(device, sum.dtype(), sum.shape()));
    DT_RETURN_IF_ERROR(kernels::AddN(device, some, sum));
    i += n;
  }
  return sum;
}

// The sum of the runs in front of `run` (behind it, if in reverse), of `all` as GatherSums gives
// them.
absl::StatusOr<Tensor> SumBefore(Device& device, const CumSumState& state, const Tensor& all,
                                 const DimRun& run, bool reverse) {
  std::vector<std::pair<int64_t, Tensor>> earlier;
  for (size_t p = 0; p < state.shards.size(); ++p) {
    for (size_t r = 0; r < state.shards[p].size(); ++r) {
      const int64_t first = state.shards[p][r].first;
      if (reverse ? first <= run.first : first >= run.first) continue;
      const Tensor sum =
          all.Narrow(0, static_cast<int64_t>(p), 1).Narrow(1, static_cast<int64_t>(r), 1);
      earlier.emplace_back(reverse ? -first : first, sum);
    }
  }
  std::sort(earlier.begin(), earlier.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Tensor> terms;
  for (auto& [order, sum] : earlier) terms.push_back(std::move(sum));
  return SumOf(device, std::move(terms));
}

absl::Status Scan(const RankCall& call, const Tensor& given, bool reverse, const Tensor& to) {
  Device& device = call.device();
  const auto& attrs = call.attrs<CumSumAttrs>();
  const auto& state = static_cast<const CumSumState&>(*call.decision.state);
  DT_ASSIGN_OR_RETURN(const Tensor row_major, Contiguous(device, given));
  DT_ASSIGN_OR_RETURN(const Tensor x, AsRows(row_major, attrs.dim));
  DT_ASSIGN_OR_RETURN(const Tensor y, AsRows(to, attrs.dim));
  Tensor all;
  if (state.shards.size() > 1) {
    DT_ASSIGN_OR_RETURN(all, GatherSums(call, state, x));
  }
  for (const DimRun& run : state.shards[state.me]) {
    Tensor start;
    if (all.defined()) {
      DT_ASSIGN_OR_RETURN(start, SumBefore(device, state, all, run, reverse));
    }
    DT_RETURN_IF_ERROR(kernels::CumSum(device, x.Narrow(1, run.position, run.count), reverse, start,
                                       y.Narrow(1, run.position, run.count)));
  }
  return absl::OkStatus();
}

absl::Status CumSumForward(const OpCall& call) {
  return Scan(call, call.operands[0], false, call.results[0]);
}

absl::Status CumSumBackward(const GradCall& call) {
  return Scan(call, call.result_gradients[0], true, call.gradients[0]);
}

const OpDef kCumSumOp = {
    .name = "CumSum",
    .describe = CumSumText,
    .linearity = RuleLinearity::kMulti,
    .attrs = &kAttrsType<CumSumAttrs>,
    .types = TypeSet::Numbers(),
    .every_device = {CumSumForward, CumSumBackward},
    .choose_layouts = CumSumLayouts,
    .prepare = CumSumPrepare,
};

}  // namespace

absl::Span<const OpDef* const> ScanOps() {
  static constexpr const OpDef* kOps[] = {&kCumSumOp};
  return kOps;
}

}  // namespace internal

TensorOr CumSum(const TensorOr& x, int dim) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("CumSum", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("CumSum", x->spec(), dim));
  return Dispatch(internal::kCumSumOp, {&x}, internal::CumSumAttrs{d});
}

}  // namespace dtensor
