#include "dtensor/redistribution/same_mesh_transition.h"

#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "dtensor/layout/even_share.h"

namespace dtensor {
namespace {

using CoordinateVector = absl::InlinedVector<int, 4>;

AxisList Joined(const AxisList& a, const AxisList& b) {
  AxisList axes = a;
  axes.insert(axes.end(), b.begin(), b.end());
  absl::c_sort(axes);
  return axes;
}

}  // namespace

AxisList SameMeshTransition::owner_axes() const {
  return Joined(roles_->gathered(), roles_->helpers());
}

AxisList SameMeshTransition::sharing_axes() const {
  return choice_.owners == Owners::kAnyNeeder ? owner_axes() : roles_->helpers();
}

AxisList SameMeshTransition::holder_axes() const {
  return choice_.owners == Owners::kHolders ? roles_->gathered() : AxisList();
}

AxisList SameMeshTransition::possible_keeper_axes() const {
  return Joined(roles_->moves() ? roles_->created_from_replicas() : AxisList(),
                MayShareTerms(*roles_) ? roles_->created_from_shards() : AxisList());
}

AxisList SameMeshTransition::keeper_axes() const {
  if (choice_.shares_terms) return possible_keeper_axes();
  return roles_->moves() ? roles_->created_from_replicas() : AxisList();
}

bool SameMeshTransition::SendsAlong(int axis) const {
  const auto is_one_of = [axis](const AxisList& axes) { return absl::c_linear_search(axes, axis); };
  if (is_one_of(roles_->moved())) return true;
  if (choice_.shares_terms && is_one_of(roles_->created_from_shards())) return true;
  return choice_.owners != Owners::kHolders && is_one_of(roles_->gathered());
}

// The part of these regions that is held by ranks with the coordinates of `holder` on `axes`, which
// shard the source.
std::vector<Region> SameMeshTransition::HeldPart(std::vector<Region> regions,
                                                 absl::Span<const int> holder,
                                                 const AxisList& axes) const {
  if (axes.empty()) return regions;
  Region held;
  for (int d = 0; d < static_cast<int>(roles_->shape().size()); ++d) {
    AxisList of_dim;
    for (int axis : axes) {
      if (roles_->source_dim(axis) == d) of_dim.push_back(axis);
    }
    held.push_back(of_dim.empty() ? IndexSet::Interval(0, roles_->shape()[d])
                                  : roles_->HeldOver(d, holder, of_dim));
  }
  std::vector<Region> parts;
  for (const Region& region : regions) {
    for (Region& part : IntersectRegions(region, held)) parts.push_back(std::move(part));
  }
  return parts;
}

// What ranks that differ only on created_from_replicas() must together have of the result.
std::vector<Region> SameMeshTransition::NeededTogether(absl::Span<const int> coordinate) const {
  Region region;
  for (int d = 0; d < static_cast<int>(roles_->shape().size()); ++d) {
    region.push_back(roles_->Result(d, coordinate));
  }
  if (choice_.shares_terms) return {std::move(region)};
  return HeldPart({std::move(region)}, coordinate, roles_->created_from_shards());
}

// The part of these regions, all held at `holder`, that the rank at `coordinate` keeps. A rank that
// holds a term itself receives one term less per element, so it takes more elements.
std::vector<Region> SameMeshTransition::KeeperShare(std::vector<Region> regions,
                                                    absl::Span<const int> holder,
                                                    absl::Span<const int> coordinate) const {
  if (!roles_->moves()) {
    if (roles_->IndexOn(roles_->created_from_replicas(), coordinate) > 0) regions.clear();
    return regions;
  }
  const AxisList axes = keeper_axes();
  if (!choice_.shares_terms)
    return ShareOf(regions, roles_->SizeOf(axes), roles_->IndexOn(axes, coordinate));
  std::vector<int64_t> weights;
  CoordinateVector keeper(coordinate.begin(), coordinate.end());
  ForEachCoordinate(roles_->source().mesh(), axes, absl::MakeSpan(keeper), [&] {
    const bool holds = absl::c_all_of(roles_->created_from_shards(),
                                      [&](int axis) { return keeper[axis] == holder[axis]; });
    weights.push_back(holds ? roles_->terms() : roles_->terms() - 1);
    return true;
  });
  return ShareOf(regions, weights, roles_->IndexOn(axes, coordinate));
}

std::vector<Region> SameMeshTransition::Needed(absl::Span<const int> coordinate) const {
  const std::vector<Region> together = NeededTogether(coordinate);
  if (roles_->created_from_replicas().empty() && !choice_.shares_terms) return together;
  // Divides separately what each holder has, so that what ranks hold and what they lack are both
  // shared evenly.
  AxisList axes = Joined(roles_->gathered(), roles_->moved());
  if (choice_.shares_terms) axes = Joined(axes, roles_->created_from_shards());
  std::vector<Region> needed;
  CoordinateVector holder(coordinate.begin(), coordinate.end());
  ForEachCoordinate(roles_->source().mesh(), axes, absl::MakeSpan(holder), [&] {
    for (Region& share : KeeperShare(HeldPart(together, holder, axes), holder, coordinate)) {
      needed.push_back(std::move(share));
    }
    return true;
  });
  return needed;
}

std::vector<Region> SameMeshTransition::OwnedTogether(absl::Span<const int> coordinate) const {
  if (choice_.owners == Owners::kAnyNeeder) return Needed(coordinate);
  return HeldPart(Needed(coordinate), coordinate, roles_->gathered());
}

std::vector<Region> SameMeshTransition::Owned(absl::Span<const int> coordinate) const {
  const AxisList sharing = sharing_axes();
  return ShareOf(OwnedTogether(coordinate), roles_->SizeOf(sharing),
                 roles_->IndexOn(sharing, coordinate));
}

}  // namespace dtensor
