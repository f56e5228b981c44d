// What a redistribution must cost, counted element by element from regions alone: an oracle for
// plans.
#ifndef DTENSOR_TESTING_REDISTRIBUTION_ORACLE_H_
#define DTENSOR_TESTING_REDISTRIBUTION_ORACLE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"

namespace dtensor {

// A layout with, for each element of a tensor in row-major order, the ranks that hold it, as bits.
struct HeldLayout {
  HeldLayout(const Layout& layout, absl::Span<const int64_t> shape) : layout(layout) {
    std::vector<Region> regions;
    for (int rank = 0; rank < layout.mesh().size(); ++rank) {
      regions.push_back(Regions(layout, shape, layout.mesh().Coordinate(rank)));
    }
    Dims index(shape.size(), 0);
    for (int64_t left = NumElements(shape); left > 0; --left) {
      uint32_t ranks = 0;
      for (size_t rank = 0; rank < regions.size(); ++rank) {
        bool holds = true;
        for (size_t d = 0; d < shape.size(); ++d) holds &= regions[rank][d].Contains(index[d]);
        ranks |= uint32_t{holds} << rank;
      }
      holders.push_back(ranks);
      for (size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
    }
  }

  Layout layout;
  std::vector<uint32_t> holders;
};

// The least number of elements that ranks must receive from others, in total. Requires: at most 32
// ranks. For each element, and each coordinate on the axes that stay partial: p terms for w ranks
// take (p - 1) + (w - 1) messages, and one more if no rank in need holds a term; without terms to
// reduce, each rank in need that lacks the element takes one. Of ranks that differ only on axes
// that become partial, any one may be the rank in need.
inline int64_t LeastMessages(const HeldLayout& from, const HeldLayout& to) {
  const DeviceMesh& mesh = from.layout.mesh();
  AxisList reduced, kept, created;
  int64_t terms = 1;
  for (int axis : from.layout.partial_axes()) {
    const bool stays = to.layout.use(axis) == Layout::AxisUse::kPartial;
    (stays ? kept : reduced).push_back(axis);
    if (!stays) terms *= mesh.axis_size(axis);
  }
  for (int axis : to.layout.partial_axes()) {
    // Terms of an average are the value itself: all ranks are in need.
    const bool average = to.layout.partial_op(axis) == ReduceOp::kAvg;
    if (!average && from.layout.use(axis) != Layout::AxisUse::kPartial) created.push_back(axis);
  }
  const auto groups_over =
      [&mesh](const AxisList& axes) {  // as bits; one group for each rest coordinate
        std::vector<uint32_t> groups;
        uint32_t seen = 0;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          if (seen >> rank & 1) continue;
          uint32_t group = 0;
          for (int other : mesh.Group(rank, axes)) group |= uint32_t{1} << other;
          seen |= group;
          groups.push_back(group);
        }
        return groups;
      };
  AxisList not_kept;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (std::find(kept.begin(), kept.end(), axis) == kept.end()) not_kept.push_back(axis);
  }
  const std::vector<uint32_t> problems = groups_over(not_kept), choices = groups_over(created);

  int64_t messages = 0;
  for (size_t e = 0; e < from.holders.size(); ++e) {
    for (uint32_t problem : problems) {
      int64_t in_need = 0, lacking = 0;
      for (uint32_t choice : choices) {
        const uint32_t ranks = to.holders[e] & problem & choice;
        in_need += ranks != 0;
        lacking += ranks != 0 && (ranks & from.holders[e]) == 0;
      }
      messages += reduced.empty() ? lacking : (terms - 1) + (in_need - 1) + (lacking == in_need);
    }
  }
  return messages;
}

}  // namespace dtensor

#endif  // DTENSOR_TESTING_REDISTRIBUTION_ORACLE_H_
