#include "dtensor/parallel_plans/styles.h"

#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// No wishes for parameters, and one edge.
StyleWishes OneEdge(const StyleSite& site, std::optional<Placement> input,
                    std::optional<Placement> output) {
  StyleWishes wishes;
  wishes.edges = {site.Edge(input, output)};
  return wishes;
}

}  // namespace

absl::StatusOr<StyleWishes> Colwise::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, Replicate(), std::nullopt);
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kOutput}));
  return wishes;
}

absl::StatusOr<StyleWishes> Rowwise::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, std::nullopt, output);
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kInput, DimRole::kRow}));
  return wishes;
}

absl::StatusOr<StyleWishes> SequenceParallel::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, Shard(1), Shard(1));
  wishes.parameters = ReplicateAll(site.module);
  return wishes;
}

absl::StatusOr<StyleWishes> DataParallel::WishesAt(const StyleSite& site) const {
  return OneEdge(site, Shard(0), std::nullopt);
}

absl::StatusOr<StyleWishes> Edges::WishesAt(const StyleSite& site) const {
  return OneEdge(site, input, output);
}

}  // namespace dtensor
