#include "dtensor/redistribution/plan_steps.h"

#include "absl/algorithm/container.h"

namespace dtensor {
namespace {

AxisList Ascending(absl::Span<const int> a, absl::Span<const int> b, absl::Span<const int> c = {}) {
  AxisList axes(a.begin(), a.end());
  axes.insert(axes.end(), b.begin(), b.end());
  axes.insert(axes.end(), c.begin(), c.end());
  absl::c_sort(axes);
  return axes;
}

// All axes leave one dimension for one other.
bool IsAllToAll(const SameMeshTransition& t) {
  const int from = t.roles().source_dim(t.roles().moved()[0]),
            to = t.roles().target_dim(t.roles().moved()[0]);
  return from != to && absl::c_all_of(t.roles().moved(), [&](int axis) {
           return t.roles().source_dim(axis) == from && t.roles().target_dim(axis) == to;
         });
}

// The name of an exchange that reduces nothing. A pattern is one only if no dimension along which
// elements move is sliced over other axes as well: then peers do not all have something for each
// other.
CollectiveKind KindOfExchange(const SameMeshTransition& t, const AxisList& axes) {
  if (absl::c_none_of(axes, [&](int axis) { return t.roles().SlicesDimOf(axis); })) {
    if (t.roles().moved().empty()) return CollectiveKind::kAllGather;
    if (t.roles().gathered().empty() && IsAllToAll(t)) return CollectiveKind::kAllToAll;
  }
  return t.roles().IsRelabelling() ? CollectiveKind::kPermute : CollectiveKind::kExchange;
}

// X of a transition that reduces. Where X alone serves several ranks in need, one axis is reduced
// (RedistributionPlan).
CollectiveKind KindOfReduction(const SameMeshTransition& t) {
  if (t.choice().owners == Owners::kAnyNeeder && !t.roles().gathered().empty())
    return CollectiveKind::kExchange;
  if (t.choice().shares_terms) return CollectiveKind::kExchange;
  const bool scatters = t.roles().target_dim(t.roles().reduced()[0]) >= 0;
  if (t.pivot() || t.roles().needers() == 1 || scatters) return CollectiveKind::kReduceScatter;
  return CollectiveKind::kAllReduce;
}

RedistributionStep FirstStep(const SameMeshTransition& t) {
  const bool owners_gather = t.choice().owners != Owners::kHolders;
  RedistributionStep x;
  x.axes = Ascending(t.roles().reduced(), t.roles().moved(),
                     owners_gather ? t.roles().gathered() : AxisList());
  if (t.choice().shares_terms) x.axes = Ascending(x.axes, t.roles().created_from_shards());
  x.pivot = t.pivot();
  x.reduces = !t.roles().reduced().empty();
  if (x.axes.empty()) {
    x.kind = CollectiveKind::kSlice;
  } else {
    x.kind = x.reduces ? KindOfReduction(t) : KindOfExchange(t, x.axes);
  }
  return x;
}

RedistributionStep GatherStep(const AxisList& axes, int round) {
  RedistributionStep g;
  g.kind = CollectiveKind::kAllGather;
  g.axes = axes;
  g.from_source = false;
  g.round = round;
  return g;
}

}  // namespace

std::vector<RedistributionStep> StepsOf(const SameMeshTransition& t) {
  if (t.roles().elements() == 0) return {};
  RedistributionStep x = FirstStep(t);
  if (!t.pivot()) {
    if (x.axes.empty()) return {};
    return {x};
  }
  std::vector<RedistributionStep> steps = {x};
  for (const AxisList& axes : t.choice().rounds) {
    steps.push_back(GatherStep(axes, static_cast<int>(steps.size()) - 1));
  }
  if (!t.choice().rounds.empty()) return steps;
  RedistributionStep g = GatherStep(t.owner_axes(), 0);
  if (g.axes == x.axes && x.kind == CollectiveKind::kReduceScatter) {
    g.continues = true;
    g.kind = steps[0].kind = CollectiveKind::kAllReduce;
  }
  steps.push_back(g);
  return steps;
}

}  // namespace dtensor
