#include "dtensor/redistribution_steps.h"

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
bool IsAllToAll(const Transition& t) {
  const int from = t.source_dim(t.moved()[0]), to = t.target_dim(t.moved()[0]);
  return from != to && absl::c_all_of(t.moved(), [&](int axis) {
           return t.source_dim(axis) == from && t.target_dim(axis) == to;
         });
}

// The name of an exchange that reduces nothing. A pattern is one only if no dimension along which
// elements move is sliced over other axes as well: then peers do not all have something for each
// other.
CollectiveKind KindOfExchange(const Transition& t, const AxisList& axes) {
  if (absl::c_none_of(axes, [&](int axis) { return t.SlicesDimOf(axis); })) {
    if (t.moved().empty()) return CollectiveKind::kAllGather;
    if (t.gathered().empty() && IsAllToAll(t)) return CollectiveKind::kAllToAll;
  }
  return t.IsRelabelling() ? CollectiveKind::kPermute : CollectiveKind::kExchange;
}

}  // namespace

std::vector<RedistributionStep> StepsOf(const Transition& t) {
  if (t.elements() == 0) return {};
  RedistributionStep x;
  x.axes = Ascending(t.reduced(), t.moved(), t.pivot() ? AxisList() : t.gathered());
  x.pivot = t.pivot();
  x.reduces = !t.reduced().empty();
  if (x.axes.empty()) return {};
  if (!x.reduces) {
    x.kind = KindOfExchange(t, x.axes);
    return {x};
  }
  // Where X alone serves several ranks in need, one axis is reduced (RedistributionPlan).
  const bool scatters = t.target_dim(t.reduced()[0]) >= 0;
  x.kind =
      t.needers() == 1 || scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  if (!t.pivot()) return {x};

  RedistributionStep g;
  g.axes = Ascending(t.gathered(), t.helpers());
  g.from_source = false;
  g.continues = g.axes == x.axes;
  g.kind = g.continues ? CollectiveKind::kAllReduce : CollectiveKind::kAllGather;
  x.kind = g.continues ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
  return {x, g};
}

}  // namespace dtensor
