#include "dtensor/redistribution/redistribution_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/layout_digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/cross_mesh_transition.h"
#include "dtensor/redistribution/plan_alternatives.h"
#include "dtensor/redistribution/plan_rounds.h"
#include "dtensor/redistribution/same_mesh_transition.h"
#include "dtensor/runtime/core/status.h"

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

// Checks that Partial terms of type `dtype` can be combined by the layout's op.
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
  const size_t ndim = shape.size();
  if (from.ndim() != ndim || to.ndim() != ndim) {
    return InvalidArgument({"the layouts have ", absl::StrCat(from.ndim()), " and ",
                            absl::StrCat(to.ndim()), " dimensions, the shape has ",
                            absl::StrCat(ndim)});
  }
  DT_RETURN_IF_ERROR(CheckedNumElements("plan", shape).status());
  DT_RETURN_IF_ERROR(CheckRegions(from, shape));
  return CheckRegions(to, shape);
}

// An axis that stays partial keeps its terms, so its op must stay the same. Only sum and avg may
// become each other, by scaling the terms.
absl::Status CheckOpsAgree(const Layout& from, const Layout& to) {
  if (from.term_op() == to.term_op() || from.mesh() != to.mesh()) return absl::OkStatus();
  for (int axis : from.partial_axes()) {
    if (to.use(axis) != Layout::AxisUse::kPartial) continue;
    return InvalidArgument({"on axis \"", from.mesh().axis_name(axis), "\" P(",
                            ToString(from.partial_op(axis)), ") cannot become P(",
                            ToString(to.partial_op(axis)),
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

void Add(const DeviceMesh& mesh, Digest& digest) {
  digest.Add(mesh.num_axes());
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
  AddLayout(plan.from(), digest);
  AddLayout(plan.to(), digest);
  for (int64_t n : plan.shape()) digest.Add(n);
  digest.Add(static_cast<int64_t>(plan.dtype()));
  digest.Add(static_cast<int64_t>(plan.result_dtype()));
  return digest;
}

uint64_t DigestOf(const RedistributionPlan& plan, const OwnerChoice& chosen) {
  Digest digest = DigestOf(plan);
  digest.Add(static_cast<int64_t>(chosen.owners) + 8 * chosen.shares_terms);
  for (const AxisList& round : chosen.rounds) {
    digest.Add(static_cast<int64_t>(round.size()));
    for (int axis : round) digest.Add(axis);
  }
  for (const RedistributionRound& round : plan.rounds()) {
    if (round.sums_in_any_order) digest.Add("in any order");
  }
  return digest.value();
}

}  // namespace

namespace {

// Compared lexicographically. If all links are equal, the busiest rank's bytes stand for the time.
using Price = std::array<double, 3>;

Price PriceOf(const RedistributionPlan& plan, const RedistributionOptions& options) {
  const RedistributionBytes bytes = plan.Bytes();
  const double total = static_cast<double>(bytes.total);
  const double busiest = static_cast<double>(bytes.busiest);
  const bool timed =
      options.objective == RedistributionObjective::kLatency || !options.links.uniform();
  const double seconds = timed ? plan.PredictedSeconds(options.links) : busiest;
  switch (options.objective) {
    case RedistributionObjective::kTotal:
      return {total, seconds, busiest};
    case RedistributionObjective::kBusiest:
      return {busiest, total, seconds};
    case RedistributionObjective::kLatency:
      return {seconds, total, busiest};
  }
  return {};
}

}  // namespace

absl::string_view ToString(RedistributionObjective objective) {
  switch (objective) {
    case RedistributionObjective::kTotal:
      return "total";
    case RedistributionObjective::kBusiest:
      return "busiest";
    case RedistributionObjective::kLatency:
      return "latency";
  }
  return "";
}

absl::StatusOr<RedistributionObjective> ParseRedistributionObjective(absl::string_view text) {
  for (RedistributionObjective o :
       {RedistributionObjective::kTotal, RedistributionObjective::kBusiest,
        RedistributionObjective::kLatency}) {
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
  DT_RETURN_IF_ERROR(options.links.Check());
  RedistributionPlan plan;
  plan.from_ = from;
  plan.to_ = to;
  plan.shape_.assign(shape.begin(), shape.end());
  plan.dtype_ = dtype;
  plan.result_dtype_ = options.dtype.value_or(dtype);
  plan.allows_any_order_ = options.sums_in_any_order;
  if (!ConvertsOnTheWay(dtype, plan.result_dtype_)) {
    return InvalidArgument({"redistribute ", Describe(from, to, shape, dtype), ": ",
                            dtensor::ToString(dtype), " does not become ",
                            dtensor::ToString(plan.result_dtype_), " on the way; Cast it first"});
  }
  if (from.mesh() == to.mesh()) {
    plan.Choose(SameMeshTransition(AxisRoles(from, to, shape)));
  } else {
    plan.Choose(CrossMeshTransition(from, to, shape));
  }
  DT_RETURN_IF_ERROR(plan.CheckTotal());
  DT_RETURN_IF_ERROR(plan.Improve(options));
  return plan;
}

void RedistributionPlan::Choose(SameMeshTransition transition) {
  same_mesh_ = std::make_shared<const SameMeshTransition>(std::move(transition));
  const SameMeshTransition& t = *same_mesh_;
  rounds_ = RoundsOf(t);
  SetScale();
  const bool adds = IsFloat(dtype_) && (op_ == ReduceOp::kSum || op_ == ReduceOp::kAvg);
  for (RedistributionRound& round : rounds_) {
    const bool scales = scale_ != 1 && round.from_source && !round.reduces;
    round.native = dtype_ == result_dtype_ && !scales && MayBeNative(t, round);
    // If several ranks computed the same sum, each in its own order, their results would differ.
    const bool once = round.pivot || round.kind == CollectiveKind::kReduceScatter;
    round.sums_in_any_order = allows_any_order_ && round.native && round.reduces && once && adds;
  }
  is_view_ = rounds_.empty() && dtype_ == result_dtype_ && scale_ == 1 && t.roles().IsView();
  fills_identity_ = !t.roles().created().empty();
  digest_ = DigestOf(*this, t.choice());
}

// A sum over n terms is n times their average. So reduced elements are divided by the number of
// terms on axes that average, and terms of an axis that stays partial are converted to the other
// op.
void RedistributionPlan::SetScale() {
  double times = 1, over = 1;
  const bool one_mesh = from_.mesh() == to_.mesh();
  op_ = ReduceOp::kSum;
  for (int axis : from_.partial_axes()) {
    const ReduceOp op = from_.partial_op(axis);
    const bool stays = one_mesh && to_.use(axis) == Layout::AxisUse::kPartial;
    if (!stays && op_ != ReduceOp::kAvg) op_ = op;
    const bool was_average = op == ReduceOp::kAvg;
    const bool is_average = stays && to_.partial_op(axis) == ReduceOp::kAvg;
    if (was_average && !is_average) over *= from_.mesh().axis_size(axis);
    if (is_average && !was_average) times *= from_.mesh().axis_size(axis);
  }
  scale_ = times / over;
}

void RedistributionPlan::Choose(CrossMeshTransition transition) {
  cross_mesh_ = std::make_shared<const CrossMeshTransition>(std::move(transition));
  const CrossMeshTransition& t = *cross_mesh_;
  if (t.moves()) {
    RedistributionRound& x = rounds_.emplace_back();
    x.across = true;
    x.pivot = t.pivot();
    x.reduces = t.terms() > 1;
  }
  if (t.moves() && t.pivot()) {
    RedistributionRound& g = rounds_.emplace_back();
    g.kind = CollectiveKind::kAllGather;
    g.axes = t.owner_axes();
    g.from_source = false;
  }
  SetScale();
  is_view_ = t.is_view() && dtype_ == result_dtype_ && scale_ == 1;
  fills_identity_ = t.fills_identity();
  digest_ = DigestOf(*this).value();
}

// For each coordinate on the axes that stay partial, an element takes fewer messages than it has
// terms and ranks that need it, of at most 8 bytes each. So only the largest plans have to be
// counted exactly.
absl::Status RedistributionPlan::CheckTotal() const {
  const int64_t terms = same_mesh_ ? same_mesh_->roles().terms() : cross_mesh_->terms();
  const int64_t needers = same_mesh_ ? same_mesh_->roles().needers() : cross_mesh_->needers();
  const double messages = static_cast<double>(NumElements(shape_)) * (terms + needers);
  if (messages * KeptTerms() < 0x1p60) return absl::OkStatus();
  const absl::int128 least = LeastBytes();
  if (least <= std::numeric_limits<int64_t>::max()) return absl::OkStatus();
  return InvalidArgument({"redistribute ", Describe(from_, to_, shape_, dtype_), ": ranks would ",
                          "receive ", absl::StrCat(static_cast<double>(least)),
                          " bytes together, of which an int64 counts 2^63 - 1; shard the result ",
                          "over more axes"});
}

int64_t RedistributionPlan::KeptTerms() const {
  int64_t terms = 1;
  if (from_.mesh() != to_.mesh()) return terms;
  for (int axis : from_.partial_axes()) {
    if (to_.use(axis) == Layout::AxisUse::kPartial) terms *= from_.mesh().axis_size(axis);
  }
  return terms;
}

// With owners, an all-reduce may overwrite the source: each element is written by its owner alone,
// and no other rank reads it there before all have finished. Every rank's region must stay the
// same.
void RedistributionPlan::ReduceInPlace() {
  if (same_mesh_ == nullptr || dtype_ != result_dtype_ || !same_mesh_->roles().KeepsRegions())
    return;
  if (!MayHaveOwners(same_mesh_->roles())) return;
  if (same_mesh_->choice().owners == Owners::kNeeders) {
    Choose(same_mesh_->With({.owners = Owners::kHolders}));
  }
  in_place_ = true;
}

// The present plan moves the least in total. Alternatives for the same transition are compared with
// it by the objective; among equal ones the first wins.
absl::Status RedistributionPlan::Improve(const RedistributionOptions& options) {
  const bool may_choose =
      options.objective != RedistributionObjective::kTotal || !options.links.uniform();
  if (same_mesh_ != nullptr && may_choose) {
    std::vector<SameMeshTransition> others =
        OtherTransitions(*same_mesh_, options.links.On(from_.mesh()));
    Price least = others.empty() ? Price() : PriceOf(*this, options);
    for (SameMeshTransition& other : others) {
      RedistributionPlan plan = *this;
      plan.Choose(std::move(other));
      if (const Price price = PriceOf(plan, options); price < least) {
        least = price;
        *this = std::move(plan);
      }
    }
  }
  if (options.in_place) ReduceInPlace();
  if (!moves_nothing()) staging_bytes_ = options.staging_bytes;
  if (options.max_extra_bytes < 0) return absl::OkStatus();
  const int64_t extra = ExtraBytes();
  if (extra <= options.max_extra_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("redistribute ", Describe(from_, to_, shape_, dtype_), ": a rank's result has ",
                   extra - staging_bytes_, " bytes",
                   staging_bytes_ > 0 ? absl::StrCat(", the transport's staging ", staging_bytes_)
                                      : std::string(),
                   ", and max_extra_bytes is ", options.max_extra_bytes,
                   "; allow as much, or shard the result over more axes",
                   same_mesh_ != nullptr && MayHaveOwners(same_mesh_->roles()) && !in_place_
                       ? ", or reduce in place"
                       : ""));
}

std::vector<int> RedistributionPlan::Ranks() const {
  if (cross_mesh_ != nullptr) return cross_mesh_->ranks();
  std::vector<int> ranks(from_.mesh().size());
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = from_.mesh().RankOf(static_cast<int>(i));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<ReceiveBox> RedistributionPlan::Receives(int s, int rank) const {
  const bool gathers = s < static_cast<int>(rounds_.size()) && !rounds_[s].from_source;
  if (!from_.mesh().Contains(rank) && !to_.mesh().Contains(rank)) return {};
  if (cross_mesh_ != nullptr) {
    return gathers ? cross_mesh_->GatherBoxes(rank) : cross_mesh_->ExchangeBoxes(rank);
  }
  if (gathers) return GatherBoxes(*same_mesh_, rank, rounds_[s].index);
  return ExchangeBoxes(*same_mesh_, rank);
}

std::string RedistributionPlan::ToString() const {
  const auto format = [this](std::string* out, const RedistributionRound& round) {
    const int64_t busiest = Bytes(static_cast<int>(&round - rounds_.data())).busiest;
    // The axes are those of the common mesh or, in G between two meshes, of the target's.
    absl::StrAppend(out, dtensor::ToString(round.kind), "(",
                    round.across ? "across" : to_.mesh().AxisNames(round.axes), ") ", busiest,
                    " B");
  };
  const std::string local = fills_identity_ ? "fill" : is_view_ ? "view" : "copy";
  const bool converts = result_dtype_ != dtype_;
  return absl::StrCat(Describe(from_, to_, shape_, dtype_), converts ? " as " : "",
                      converts ? dtensor::ToString(result_dtype_) : "", ": ",
                      rounds_.empty() ? local : absl::StrJoin(rounds_, ", ", format));
}

}  // namespace dtensor
