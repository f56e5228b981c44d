#include "dtensor/redistribution/plan_rounds.h"

#include <vector>

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

// Whether all moved axes go from one dimension to one other.
bool IsAllToAll(const SameMeshTransition& t) {
  const int from = t.roles().source_dim(t.roles().moved()[0]),
            to = t.roles().target_dim(t.roles().moved()[0]);
  return from != to && absl::c_all_of(t.roles().moved(), [&](int axis) {
           return t.roles().source_dim(axis) == from && t.roles().target_dim(axis) == to;
         });
}

// The kind of an exchange that reduces nothing. It is an all-gather or all-to-all only if no
// dimension along which elements move is also sliced over other axes; if one is, some peers have
// nothing for each other.
CollectiveKind KindOfExchange(const SameMeshTransition& t, const AxisList& axes) {
  if (absl::c_none_of(axes, [&](int axis) { return t.roles().SlicesDimOf(axis); })) {
    if (t.roles().moved().empty()) return CollectiveKind::kAllGather;
    if (t.roles().gathered().empty() && IsAllToAll(t)) return CollectiveKind::kAllToAll;
  }
  return t.roles().IsRelabelling() ? CollectiveKind::kPermute : CollectiveKind::kExchange;
}

// The kind of X in a transition that reduces. If X alone serves several ranks that need the result,
// only one axis is reduced (RedistributionPlan).
CollectiveKind KindOfReduction(const SameMeshTransition& t) {
  if (t.choice().owners == Owners::kAnyNeeder && !t.roles().gathered().empty())
    return CollectiveKind::kExchange;
  if (t.choice().shares_terms) return CollectiveKind::kExchange;
  const bool scatters = t.roles().target_dim(t.roles().reduced()[0]) >= 0;
  if (t.pivot() || t.roles().needers() == 1 || scatters) return CollectiveKind::kReduceScatter;
  return CollectiveKind::kAllReduce;
}

RedistributionRound FirstRound(const SameMeshTransition& t) {
  const bool owners_gather = t.choice().owners != Owners::kHolders;
  RedistributionRound x;
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

RedistributionRound GatherRound(const AxisList& axes, int index) {
  RedistributionRound g;
  g.kind = CollectiveKind::kAllGather;
  g.axes = axes;
  g.from_source = false;
  g.index = index;
  return g;
}

// Whether the layout splits n indices of dimension d into chunks of equal size.
bool IsEven(const Layout& layout, int d, int64_t n) {
  const DimLayout& dim = layout.dim(d);
  int64_t inner = 1;
  for (size_t f = dim.size(); f-- > 0;) {
    int64_t chunks = 1;
    for (const AxisSplit& split : dim[f].splits) {
      chunks *= layout.mesh().axis_size(split.axis) * (split.zigzag ? 2 : 1);
    }
    const bool is_outermost = f == 0;
    if (is_outermost && n % inner != 0) return false;
    const int64_t size = is_outermost ? n / inner : dim[f].size;
    if (size % chunks != 0) return false;
    inner *= size;
  }
  return true;
}

// Whether the round does only what its kind says, on all of its axes.
bool IsPure(const SameMeshTransition& t, const RedistributionRound& round) {
  if (round.kind == CollectiveKind::kPermute || round.kind == CollectiveKind::kExchange)
    return false;
  const AxisRoles& roles = t.roles();
  if (!roles.created().empty() || t.choice().shares_terms) return false;
  if (t.pivot()) {
    return roles.moved().empty() && roles.sliced().empty() &&
           absl::c_all_of(roles.reduced(), [&](int axis) {
             return roles.target_dim(axis) == AxisRoles::kReplicate;
           });
  }
  if (roles.reduced().empty()) return true;
  const auto scatters = [&](int axis) { return roles.target_dim(axis) >= 0; };
  const bool alike =
      absl::c_all_of(roles.reduced(), scatters) || absl::c_none_of(roles.reduced(), scatters);
  return alike && roles.moved().empty() && roles.gathered().empty();
}

}  // namespace

bool MayBeNative(const SameMeshTransition& t, const RedistributionRound& round) {
  if (!IsPure(t, round)) return false;
  const AxisRoles& roles = t.roles();
  for (int d = 0; d < static_cast<int>(roles.shape().size()); ++d) {
    const bool is_cut = absl::c_any_of(round.axes, [&](int axis) {
      return roles.source_dim(axis) == d || roles.target_dim(axis) == d;
    });
    if (!is_cut && !t.pivot()) continue;
    if (!IsEven(roles.source(), d, roles.shape()[d]) ||
        !IsEven(roles.target(), d, roles.shape()[d]))
      return false;
  }
  if (!t.pivot()) return true;
  const std::vector<int> first(roles.source().mesh().num_axes(), 0);
  return NumElements(t.OwnedTogether(first)) % roles.SizeOf(t.sharing_axes()) == 0;
}

std::vector<RedistributionRound> RoundsOf(const SameMeshTransition& t) {
  if (t.roles().elements() == 0) return {};
  RedistributionRound x = FirstRound(t);
  if (!t.pivot()) {
    if (x.axes.empty()) return {};
    return {x};
  }
  std::vector<RedistributionRound> rounds = {x};
  for (const AxisList& axes : t.choice().rounds) {
    rounds.push_back(GatherRound(axes, static_cast<int>(rounds.size()) - 1));
  }
  if (!t.choice().rounds.empty()) return rounds;
  RedistributionRound g = GatherRound(t.owner_axes(), 0);
  if (g.axes == x.axes && x.kind == CollectiveKind::kReduceScatter) {
    g.continues = true;
    g.kind = rounds[0].kind = CollectiveKind::kAllReduce;
  }
  rounds.push_back(g);
  return rounds;
}

}  // namespace dtensor
