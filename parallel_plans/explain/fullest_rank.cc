#include "dtensor/parallel_plans/explain/fullest_rank.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/hash_map.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kMostPlaces = 16;  // each needs a simulation

// A dimension of some tensor: how it is sharded, and its size.
using SplitDim = std::pair<Layout, int64_t>;  // a layout of one dimension

// The size of such a dimension on each rank; or the sizes of all such dimensions on one rank.
using Sizes = std::vector<int64_t>;

// The dimension's sizes on all ranks. Empty if they are all the same.
Sizes SizesOf(const SplitDim& dim, int world_size) {
  const auto& [layout, size] = dim;
  const AxisList axes = layout.sharding_axes();
  std::map<absl::InlinedVector<int, 4>, int64_t> known;  // by coordinates on these axes
  Sizes sizes(world_size, 0);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!layout.mesh().Contains(rank)) continue;
    const auto coordinate = layout.mesh().Coordinate(rank);
    absl::InlinedVector<int, 4> key;
    for (const int axis : axes) key.push_back(coordinate[axis]);
    const auto [it, fresh] = known.try_emplace(std::move(key), 0);
    if (fresh) it->second = layout.LocalShape({size}, rank)[0];
    sizes[rank] = it->second;
  }
  const bool even =
      std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
  return even ? Sizes() : sizes;
}

std::vector<Sizes> UnevenSizes(absl::Span<const SpecPtr> specs, int world_size) {
  HashSet<SplitDim> seen;
  std::vector<Sizes> uneven;
  for (const SpecPtr& spec : specs) {
    for (int d = 0; d < spec->ndim(); ++d) {
      const DimLayout& dim = spec->layout.dim(d);
      if (!IsSplit(dim)) continue;
      auto layout = Layout::Create(spec->mesh(), {dim});
      if (!layout.ok()) continue;
      SplitDim split(*std::move(layout), spec->shape[d]);
      if (!seen.insert(split).second) continue;
      Sizes sizes = SizesOf(split, world_size);
      if (!sizes.empty()) uneven.push_back(std::move(sizes));
    }
  }
  return uneven;
}

// Whether `a` is nowhere larger than `b`, and not the same.
bool IsBelow(const Sizes& a, const Sizes& b) {
  return a != b && std::equal(a.begin(), a.end(), b.begin(), std::less_equal<>());
}

// Whether this place in a ring is simulated. If there are many places, only some are: evenly
// spread, and including the first and the last.
bool IsLookedAt(absl::Span<const int> place, const DeviceMesh& mesh,
                absl::Span<const int> ring_axes) {
  int64_t number = 0, places = 1;
  for (size_t i = 0; i < place.size(); ++i) {
    const int size = mesh.axis_size(ring_axes[i]);
    number = number * size + place[i];
    places *= size;
  }
  if (places <= kMostPlaces) return true;
  // Place number i of those is i (places - 1) / (kMostPlaces - 1), rounded down.
  const int64_t i = (number * (kMostPlaces - 1) + places - 2) / (places - 1);  // rounded up
  return i * (places - 1) / (kMostPlaces - 1) == number;
}

}  // namespace

std::vector<int> FullestCandidates(absl::Span<const SpecPtr> specs, const DeviceMesh& mesh,
                                   absl::Span<const int> ring_axes, int stage_axis) {
  const std::vector<Sizes> uneven = UnevenSizes(specs, mesh.size());
  using Place = absl::InlinedVector<int, 4>;  // coordinates on ring_axes and stage_axis
  struct Class {
    int first, last;
  };
  HashMap<Place, HashMap<Sizes, Class>> places;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto coordinate = mesh.Coordinate(rank);
    Place place;
    for (const int axis : ring_axes) place.push_back(coordinate[axis]);
    if (!IsLookedAt(place, mesh, ring_axes)) continue;
    if (stage_axis >= 0) place.push_back(coordinate[stage_axis]);
    Sizes own;
    for (const Sizes& sizes : uneven) own.push_back(sizes[rank]);
    places[place].try_emplace(std::move(own), Class{rank, rank}).first->second.last = rank;
  }
  std::vector<int> candidates;
  for (const auto& [place, classes] : places) {
    for (const auto& [sizes, ranks] : classes) {
      const bool below =
          std::any_of(classes.begin(), classes.end(),
                      [&, &own = sizes](const auto& other) { return IsBelow(own, other.first); });
      if (below) continue;
      candidates.push_back(ranks.first);
      const bool one_place = ring_axes.empty() && stage_axis < 0;
      if (one_place && ranks.last != ranks.first) candidates.push_back(ranks.last);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

}  // namespace dtensor::internal
