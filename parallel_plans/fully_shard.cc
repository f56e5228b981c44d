#include "dtensor/parallel_plans/fully_shard.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

absl::StatusOr<StyleWishes> FullyShard::WishesAt(const StyleSite& site) const {
  if (level < 1 || level > 3) {
    return InvalidArgument({"there is no level ", absl::StrCat(level),
                            "; choose 1 (optimizer states are sharded), 2 (and gradients) or 3 "
                            "(and parameters)"});
  }
  StyleWishes wishes;
  wishes.unit = static_cast<ShardLevel>(level);
  if (site.path.empty()) wishes.edges = {site.Edge(Shard(0), std::nullopt)};
  return wishes;
}

std::string FullyShard::ToString() const {
  StyleText text{"FullyShard", axis, {}};
  if (level != 3) text.arguments.emplace_back("", level);
  return text.ToString();
}

absl::StatusOr<FullyShard> FullyShard::Read(const StyleText& text) {
  ArgumentReader arguments(text);
  FullyShard style(text.axis, arguments.TakeNumber("").value_or(3));
  DT_RETURN_IF_ERROR(arguments.Done());
  return style;
}

namespace {

// The number of elements on the first rank, which holds the most.
int64_t LargestShard(const Layout& layout, absl::Span<const int64_t> shape) {
  const absl::Span<const int> listed = layout.mesh().listed_ranks();
  return NumElements(layout.LocalShape(shape, listed.empty() ? 0 : listed[0]));
}

}  // namespace

absl::StatusOr<Layout> ShardBetweenUses(const Layout& used, absl::Span<const int64_t> shape,
                                        const AxisList& axes) {
  for (int axis : axes) {
    if (used.use(axis) == Layout::AxisUse::kReplicate) continue;
    return InvalidArgument({"it is split by \"", used.mesh().axis_name(axis), "\" already (",
                            used.ToString(), "); shard over an axis that no other line splits"});
  }
  // Prefer the fewest elements, then a dimension that is not sharded yet, then the first one.
  std::optional<std::tuple<int64_t, bool, int>> best;
  Layout chosen = used;
  absl::Status refused;
  for (int d = 0; d < used.ndim(); ++d) {
    const absl::StatusOr<Layout> layout = used.WithAxes(axes, Shard(d));
    if (!layout.ok()) {  // another line shards it in a way that no split can be added to
      refused = layout.status();
      continue;
    }
    const std::tuple<int64_t, bool, int> one(LargestShard(*layout, shape), IsSplit(used.dim(d)), d);
    if (best && *best <= one) continue;
    best = one;
    chosen = *layout;
  }
  return best || refused.ok() ? absl::StatusOr<Layout>(chosen) : refused;
}

}  // namespace dtensor
