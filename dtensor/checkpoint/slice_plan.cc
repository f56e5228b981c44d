#include "dtensor/checkpoint/slice_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "dtensor/layout/even_share.h"

namespace dtensor {
namespace {

// A part of a tensor, and the ranks that hold it; each of them holds all of it.
struct Part {
  size_t tensor = 0;
  Region region;
  int64_t elements = 0, element_bytes = 0;
  std::vector<int> holders;
};

// There is one part for each coordinate on the axes that shard.
void AddParts(const PlannedTensor& tensor, size_t index, std::vector<Part>& parts) {
  const DeviceMesh& mesh = tensor.layout.mesh();
  const AxisList axes = tensor.layout.sharding_axes();
  std::map<std::vector<int>, size_t> part_of;
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.RankOf(i);
    const auto coordinate = mesh.Coordinate(rank);
    std::vector<int> key;
    for (const int axis : axes) key.push_back(coordinate[axis]);
    const auto [at, is_new] = part_of.try_emplace(std::move(key), parts.size());
    if (is_new) {
      Part part = {
          index, Regions(tensor.layout, tensor.shape, coordinate), 0, SizeOf(tensor.dtype), {}};
      part.elements = NumElements(part.region);
      parts.push_back(std::move(part));
    }
    parts[at->second].holders.push_back(rank);
  }
}

// How many bytes each rank writes so far.
class Loads {
 public:
  Loads(int ranks, int64_t total) : bytes_(ranks, 0), grain_(total / ranks / kGrains) {}

  // Divides the part among its holders: the number of elements for each, in their order. The
  // largest total load becomes as small as possible, but a share is at least a grain if that much
  // is left, so that files do not consist of thousands of tiny slices.
  std::vector<int64_t> Share(const Part& part) {
    const int64_t unit = UnitOf(part);
    int64_t units = part.elements / unit;  // whole rows, or elements
    const int64_t unit_bytes = unit * part.element_bytes;
    std::vector<size_t> by_load(part.holders.size());
    for (size_t i = 0; i < by_load.size(); ++i) by_load[i] = i;
    std::stable_sort(by_load.begin(), by_load.end(), [&](size_t a, size_t b) {
      return bytes_[part.holders[a]] < bytes_[part.holders[b]];
    });
    const int64_t level = LevelOf(part, by_load);
    std::vector<int64_t> shares(part.holders.size(), 0);
    for (size_t i = 0; i < by_load.size() && units > 0; ++i) {
      int64_t& load = bytes_[part.holders[by_load[i]]];
      const int64_t wanted = std::max(level - load, grain_);
      // The last one takes the rest.
      const int64_t taken =
          i + 1 == by_load.size() ? units : std::min(units, (wanted + unit_bytes - 1) / unit_bytes);
      shares[by_load[i]] = taken * unit;
      load += taken * unit_bytes;
      units -= taken;
    }
    return shares;
  }

 private:
  static constexpr int64_t kGrains = 64;  // per mean load of a rank

  // A row of the part, if it is no larger than a grain; else one element.
  int64_t UnitOf(const Part& part) const {
    if (part.region.empty()) return 1;
    const int64_t row = part.elements / part.region[0].size();
    return row * part.element_bytes <= std::max<int64_t>(grain_, 1) ? row : 1;
  }

  // The level to which the part fills up the loads of its holders, like water.
  int64_t LevelOf(const Part& part, const std::vector<size_t>& by_load) const {
    const int64_t bytes = part.elements * part.element_bytes;
    int64_t below = 0, level = 0;  // the sum of the lowest loads
    for (size_t i = 0; i < by_load.size(); ++i) {
      below += bytes_[part.holders[by_load[i]]];
      const auto count = static_cast<int64_t>(i) + 1;
      level = (below + bytes + count - 1) / count;
      if (i + 1 == by_load.size() || level <= bytes_[part.holders[by_load[i + 1]]]) break;
    }
    return level;
  }

  std::vector<int64_t> bytes_;
  const int64_t grain_;
};

// The region that a holder takes of a part. A scalar has no dimension that could be cut.
std::vector<Region> Share(const Region& part, const std::vector<int64_t>& shares, int64_t index) {
  if (part.empty()) return {part};
  return ShareOf({&part, 1}, shares, index);
}

}  // namespace

std::vector<PlannedSlice> PlanSlices(absl::Span<const PlannedTensor> tensors, int ranks) {
  std::vector<Part> parts;
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) AddParts(tensors[i], i, parts);
  std::erase_if(parts, [](const Part& part) { return part.elements == 0; });
  for (const Part& part : parts) total += part.elements * part.element_bytes;
  // Parts with the fewest holders come first. Among equals, large parts come before small ones,
  // which then fill the gaps.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::pair(a.holders.size(), -a.elements * a.element_bytes) <
           std::pair(b.holders.size(), -b.elements * b.element_bytes);
  });
  Loads loads(ranks, total);
  std::vector<PlannedSlice> slices;
  for (const Part& part : parts) {
    const std::vector<int64_t> shares = loads.Share(part);
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) continue;
      for (Region& region : Share(part.region, shares, static_cast<int64_t>(i))) {
        slices.push_back({part.holders[i], part.tensor, std::move(region)});
      }
    }
  }
  std::stable_sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
    return std::pair(a.tensor, a.rank) < std::pair(b.tensor, b.rank);
  });
  return slices;
}

}  // namespace dtensor
