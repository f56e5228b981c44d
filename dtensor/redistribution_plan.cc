#include "dtensor/redistribution_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/digest.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/redistribution_steps.h"
#include "dtensor/redistribution_ways.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/transition.h"

namespace dtensor {
namespace {

std::string Describe(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                     DType dtype) {
  const bool across = from.mesh() != to.mesh();
  return absl::StrCat(from.ToString(), across ? " on " : "", across ? from.mesh().ToString() : "",
                      " -> ", to.ToString(), across ? " on " : "",
                      across ? to.mesh().ToString() : "", ", ", DimsToString(shape), " ",
                      ToString(dtype));
}

// Partial terms of `dtype` must combine by `layout`'s op without loss.
absl::Status CheckOp(const Layout& layout, DType dtype) {
  if (!layout.is_partial()) return absl::OkStatus();
  const ReduceOp op = layout.partial_op();
  if (op == ReduceOp::kAvg && !IsFloat(dtype)) {
    return InvalidArgument(
        {"an average of ", ToString(dtype), " is not one; use P(sum), or a float type"});
  }
  if (dtype == DType::kBool && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) {
    return InvalidArgument(
        {"bool has no ", ToString(op), "; use P(max) for \"or\", P(min) for \"and\""});
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const Layout& from, const Layout& to, absl::Span<const int64_t> shape) {
  const size_t rank = shape.size();
  if (from.rank() != rank || to.rank() != rank) {
    return InvalidArgument({"the layouts have ", absl::StrCat(from.rank()), " and ",
                            absl::StrCat(to.rank()), " dimensions, the shape has ",
                            absl::StrCat(rank)});
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n < 0; })) {
    return InvalidArgument({"a size is negative"});
  }
  return absl::OkStatus();
}

// An axis that stays partial keeps its terms, so they must keep their op.
absl::Status CheckOpsAgree(const Layout& from, const Layout& to) {
  if (from.partial_op() == to.partial_op() || from.mesh() != to.mesh()) return absl::OkStatus();
  for (int axis : from.partial_axes()) {
    if (to.use(axis) != Layout::AxisUse::kPartial) continue;
    return InvalidArgument({"on axis \"", from.mesh().axis_name(axis), "\" P(",
                            ToString(from.partial_op()), ") cannot become P(",
                            ToString(to.partial_op()),
                            "); redistribute to Replicate or Shard first"});
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                          DType dtype) {
  DT_RETURN_IF_ERROR(CheckShape(from, to, shape));
  DT_RETURN_IF_ERROR(CheckOp(from, dtype));
  DT_RETURN_IF_ERROR(CheckOp(to, dtype));
  return CheckOpsAgree(from, to);
}

void Add(const Layout& layout, Digest& digest) {
  digest.Add(layout.rank());
  for (const DimLayout& dim : layout.dims()) {
    digest.Add(static_cast<int64_t>(dim.size()));
    for (const Factor& factor : dim) {
      digest.Add(factor.size);
      digest.Add(static_cast<int64_t>(factor.splits.size()));
      for (const Split& split : factor.splits) digest.Add(2 * split.axis + split.zigzag);
    }
  }
  digest.Add(static_cast<int64_t>(layout.partial_op()));
  digest.Add(static_cast<int64_t>(layout.partial_axes().size()));
  for (int axis : layout.partial_axes()) digest.Add(axis);
}

void Add(const DeviceMesh& mesh, Digest& digest) {
  digest.Add(mesh.rank_of_axes());
  for (const DeviceMesh::Axis& axis : mesh.axes()) {
    digest.Add(axis.name);
    digest.Add(axis.size);
  }
  for (int rank : mesh.listed_ranks()) digest.Add(rank);
}

Digest DigestOf(const RedistributionPlan& plan) {
  Digest digest;
  Add(plan.from().mesh(), digest);
  if (plan.to().mesh() != plan.from().mesh()) Add(plan.to().mesh(), digest);
  Add(plan.from(), digest);
  Add(plan.to(), digest);
  for (int64_t n : plan.shape()) digest.Add(n);
  digest.Add(static_cast<int64_t>(plan.dtype()));
  digest.Add(static_cast<int64_t>(plan.result_dtype()));
  return digest;
}

uint64_t DigestOf(const RedistributionPlan& plan, const Transition& chosen) {
  Digest digest = DigestOf(plan);
  digest.Add(static_cast<int64_t>(chosen.owners()) + 8 * chosen.shares_terms());
  for (const AxisList& stage : chosen.stages()) {
    digest.Add(static_cast<int64_t>(stage.size()));
    for (int axis : stage) digest.Add(axis);
  }
  return digest.value();
}

}  // namespace

namespace {

// Compared in order. Where all links are alike, the busiest rank stands for the time.
using Price = std::array<double, 3>;

Price PriceOf(const RedistributionPlan& plan, const RedistributionOptions& options) {
  const RedistributionBytes bytes = plan.Bytes();
  const double total = static_cast<double>(bytes.total);
  const double busiest = static_cast<double>(bytes.busiest);
  const bool timed = options.objective == Objective::kLatency || !options.links.uniform();
  const double seconds = timed ? plan.PredictedSeconds(options.links) : busiest;
  switch (options.objective) {
    case Objective::kTotal:
      return {total, seconds, busiest};
    case Objective::kBusiest:
      return {busiest, total, seconds};
    case Objective::kLatency:
      return {seconds, total, busiest};
  }
  return {};
}

}  // namespace

absl::string_view ToString(Objective objective) {
  switch (objective) {
    case Objective::kTotal:
      return "total";
    case Objective::kBusiest:
      return "busiest";
    case Objective::kLatency:
      return "latency";
  }
  return "";
}

absl::StatusOr<Objective> ParseObjective(absl::string_view text) {
  for (Objective o : {Objective::kTotal, Objective::kBusiest, Objective::kLatency}) {
    if (text == ToString(o)) return o;
  }
  return InvalidArgument({"there is no objective \"", text, "\"; use total, busiest or latency"});
}

absl::StatusOr<RedistributionPlan> RedistributionPlan::Create(
    const Layout& from, const Layout& to, absl::Span<const int64_t> shape, DType dtype,
    const RedistributionOptions& options) {
  if (absl::Status status = CheckRequest(from, to, shape, dtype); !status.ok()) {
    return InvalidArgument(
        {"redistribute ", Describe(from, to, shape, dtype), ": ", status.message()});
  }
  RedistributionPlan plan;
  plan.from_ = from;
  plan.to_ = to;
  plan.shape_.assign(shape.begin(), shape.end());
  plan.dtype_ = dtype;
  plan.result_dtype_ = options.dtype.value_or(dtype);
  if (!ConvertsOnTheWay(dtype, plan.result_dtype_)) {
    return InvalidArgument({"redistribute ", Describe(from, to, shape, dtype), ": ",
                            dtensor::ToString(dtype), " does not become ",
                            dtensor::ToString(plan.result_dtype_), " on the way; Cast it first"});
  }
  if (from.mesh() == to.mesh()) {
    plan.Choose(Transition(from, to, shape));
  } else {
    plan.Choose(MeshTransfer(from, to, shape));
  }
  if (absl::Status status = plan.Improve(options); !status.ok()) return status;
  return plan;
}

void RedistributionPlan::Choose(Transition transition) {
  transition_ = std::make_shared<const Transition>(std::move(transition));
  const Transition& t = *transition_;
  steps_ = StepsOf(t);
  is_view_ = steps_.empty() && dtype_ == result_dtype_ && t.IsView();
  fills_identity_ = !t.created().empty();
  if (!t.reduced().empty()) {
    op_ = from_.partial_op();
    if (op_ == ReduceOp::kAvg) scale_ = 1.0 / static_cast<double>(t.terms());
  }
  digest_ = DigestOf(*this, t);
}

void RedistributionPlan::Choose(MeshTransfer transfer) {
  transfer_ = std::make_shared<const MeshTransfer>(std::move(transfer));
  const MeshTransfer& t = *transfer_;
  if (t.moves()) {
    RedistributionStep& x = steps_.emplace_back();
    x.across = true;
    x.pivot = t.pivot();
    x.reduces = t.terms() > 1;
  }
  if (t.moves() && t.pivot()) {
    RedistributionStep& g = steps_.emplace_back();
    g.kind = CollectiveKind::kAllGather;
    g.axes = t.owner_axes();
    g.from_source = false;
  }
  is_view_ = t.is_view() && dtype_ == result_dtype_;
  fills_identity_ = t.fills_identity();
  if (t.terms() > 1) {
    op_ = from_.partial_op();
    if (op_ == ReduceOp::kAvg) scale_ = 1.0 / static_cast<double>(t.terms());
  }
  digest_ = DigestOf(*this).value();
}

// Each element is written by its owner alone, and nobody else reads it there before all are done:
// an all-reduce with owners may overwrite the source.
void RedistributionPlan::ReduceInPlace() {
  const bool stays = transition_ != nullptr && dtype_ == result_dtype_ &&
                     transition_->moved().empty() && transition_->gathered().empty() &&
                     transition_->sliced().empty() && transition_->created().empty();
  if (!stays || !transition_->may_have_owners()) return;
  if (transition_->owners() == Owners::kNeeders) {
    Transition owned = *transition_;
    owned.set_owners(Owners::kHolders);
    Choose(std::move(owned));
  }
  in_place_ = true;
}

// The plan at hand moves the least in total. Other ways of the same transition compete with it by
// what the options ask for; of equals the one that came first stays.
absl::Status RedistributionPlan::Improve(const RedistributionOptions& options) {
  const bool may_choose = options.objective != Objective::kTotal || !options.links.uniform();
  if (transition_ != nullptr && may_choose) {
    std::vector<Transition> others = OtherWays(*transition_, options.links);
    Price least = others.empty() ? Price() : PriceOf(*this, options);
    for (Transition& other : others) {
      RedistributionPlan plan = *this;
      plan.Choose(std::move(other));
      if (const Price price = PriceOf(plan, options); price < least) {
        least = price;
        *this = std::move(plan);
      }
    }
  }
  if (options.in_place) ReduceInPlace();
  if (options.max_extra_bytes < 0) return absl::OkStatus();
  const int64_t extra = ExtraBytes();
  if (extra <= options.max_extra_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("redistribute ", Describe(from_, to_, shape_, dtype_), ": a rank's result has ",
                   extra, " bytes, and max_extra_bytes is ", options.max_extra_bytes,
                   "; allow as much, or shard the result over more axes",
                   transition_ != nullptr && transition_->may_have_owners() && !in_place_
                       ? ", or reduce in place"
                       : ""));
}

std::vector<int> RedistributionPlan::Ranks() const {
  if (transfer_ != nullptr) return transfer_->ranks();
  std::vector<int> ranks(from_.mesh().size());
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = from_.mesh().RankOf(static_cast<int>(i));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<Transfer> RedistributionPlan::Receives(int s, int rank) const {
  const bool gathers = s < static_cast<int>(steps_.size()) && !steps_[s].from_source;
  if (transfer_ != nullptr) {
    return gathers ? transfer_->GatherBoxes(rank) : transfer_->ExchangeBoxes(rank);
  }
  if (gathers) return GatherBoxes(*transition_, rank, steps_[s].stage);
  return ExchangeBoxes(*transition_, rank);
}

std::string RedistributionPlan::ToString() const {
  const auto format = [this](std::string* out, const RedistributionStep& step) {
    const int64_t busiest = Bytes(static_cast<int>(&step - steps_.data())).busiest;
    // Axes are those of both meshes, or of the target's in G.
    absl::StrAppend(out, dtensor::ToString(step.kind), "(",
                    step.across ? "across" : to_.mesh().AxisNames(step.axes), ") ", busiest, " B");
  };
  const std::string local = fills_identity_ ? "fill" : is_view_ ? "view" : "copy";
  const bool converts = result_dtype_ != dtype_;
  return absl::StrCat(Describe(from_, to_, shape_, dtype_), converts ? " as " : "",
                      converts ? dtensor::ToString(result_dtype_) : "", ": ",
                      steps_.empty() ? local : absl::StrJoin(steps_, ", ", format));
}

}  // namespace dtensor
