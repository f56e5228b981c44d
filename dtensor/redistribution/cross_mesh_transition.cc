#include "dtensor/redistribution/cross_mesh_transition.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "dtensor/layout/even_share.h"
#include "dtensor/redistribution/axis_roles.h"
#include "dtensor/redistribution/box_parts.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t SizeOf(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t size = 1;
  for (int axis : axes) size *= mesh.axis_size(axis);
  return size;
}

std::vector<int> RanksOfBoth(const DeviceMesh& a, const DeviceMesh& b) {
  std::vector<int> ranks;
  for (const DeviceMesh* mesh : {&a, &b}) {
    for (int i = 0; i < mesh->size(); ++i) ranks.push_back(mesh->RankOf(i));
  }
  absl::c_sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

CrossMeshTransition::CrossMeshTransition(const Layout& from, const Layout& to,
                                         absl::Span<const int64_t> shape)
    : source_(AtLeastOneDim(from)),
      target_(AtLeastOneDim(to)),
      shape_(shape.begin(), shape.end()),
      is_scalar_(shape.empty()),
      ranks_(RanksOfBoth(from.mesh(), to.mesh())) {
  if (is_scalar_) shape_.push_back(1);
  elements_ = NumElements(shape_);
  for (int axis = 0; axis < source_.mesh().num_axes(); ++axis) {
    if (source_.use(axis) == Layout::AxisUse::kPartial) reduced_.push_back(axis);
    if (source_.use(axis) == Layout::AxisUse::kReplicate) replicas_.push_back(axis);
    if (source_.use(axis) == Layout::AxisUse::kShard) sharding_.push_back(axis);
  }
  for (int axis = 0; axis < target_.mesh().num_axes(); ++axis) {
    if (target_.use(axis) == Layout::AxisUse::kShard) continue;
    const bool created = target_.use(axis) == Layout::AxisUse::kPartial;
    // P(avg) counts as replicated: the average of equal terms is the term.
    const bool filled = created && target_.partial_op(axis) != ReduceOp::kAvg;
    (filled ? created_ : replicated_).push_back(axis);
  }
  terms_ = SizeOf(source_.mesh(), reduced_);
  needers_ = SizeOf(target_.mesh(), replicated_);
  const bool disjoint =
      static_cast<int>(ranks_.size()) == source_.mesh().size() + target_.mesh().size();
  pivot_ = needers_ > 1 && elements_ > 0 && (disjoint || terms_ > 1);
  FindMoves();
}

void CrossMeshTransition::FindMoves() {
  if (elements_ == 0) return;
  moves_ = terms_ > 1;
  is_view_ = created_.empty();
  for (size_t i = 0; i < ranks_.size() && !moves_; ++i) {
    const std::vector<ReceiveBox> boxes = ExchangeBoxes(ranks_[i]);
    moves_ = absl::c_any_of(boxes, [&](const ReceiveBox& b) { return b.peers[0] != ranks_[i]; });
    const auto strided = [](const MatchedRun& piece) { return piece.count > 1; };
    is_view_ &= boxes.size() <= 1 && (boxes.empty() || absl::c_none_of(boxes[0].dims, strided));
  }
  is_view_ &= !moves_;
}

Region CrossMeshTransition::HeldBy(int rank) const {
  return Regions(source_, shape_, source_.mesh().Coordinate(rank));
}

Region CrossMeshTransition::ResultOf(int rank) const {
  return Regions(target_, shape_, target_.mesh().Coordinate(rank));
}

std::vector<Region> CrossMeshTransition::Needed(int rank) const {
  if (!target_.mesh().Contains(rank)) return {};
  const Coordinate coordinate = target_.mesh().Coordinate(rank);
  if (absl::c_any_of(created_, [&](int axis) { return coordinate[axis] != 0; })) return {};
  return {ResultOf(rank)};
}

// Identifies the source's shard that `rank` has, by the position of the first rank that has it.
int CrossMeshTransition::ShardOf(int rank) const {
  const DeviceMesh& mesh = source_.mesh();
  Coordinate first = mesh.Coordinate(rank);
  for (int axis : reduced_) first[axis] = 0;
  for (int axis : replicas_) first[axis] = 0;
  return mesh.PositionOf(mesh.RankAt(first));
}

std::vector<Region> CrossMeshTransition::Pool::ShareAt(size_t i) const {
  return ShareOf(regions, static_cast<int64_t>(ranks.size()), static_cast<int64_t>(i));
}

// Divides what `rank` and the ranks of its group need. For each shard of the source that some of
// them have, these ranks hold a term of its elements, and share owning them. Elements of which none
// holds a term are shared by all.
std::vector<CrossMeshTransition::Pool> CrossMeshTransition::PoolsOf(int rank) const {
  const std::vector<Region> needed = Needed(rank);
  if (needed.empty()) return {};
  const std::vector<int> group = target_.mesh().Group(rank, replicated_);
  std::vector<Pool> pools;
  std::vector<int> shards;  // by pool
  int64_t left = NumElements(needed);
  for (int member : group) {
    if (!source_.mesh().Contains(member)) continue;
    const int shard = ShardOf(member);
    const size_t pool = absl::c_find(shards, shard) - shards.begin();
    if (pool == pools.size()) {
      shards.push_back(shard);
      pools.push_back({IntersectRegions(needed[0], HeldBy(member)), {}});
      left -= NumElements(pools.back().regions);
    }
    pools[pool].ranks.push_back(member);
  }
  if (left > 0) pools.push_back({pools.empty() ? needed : UnheldParts(needed[0], shards), group});
  return pools;
}

// The parts of `needed` that are in other shards of the source than `shards`.
std::vector<Region> CrossMeshTransition::UnheldParts(const Region& needed,
                                                     const std::vector<int>& shards) const {
  const DeviceMesh& mesh = source_.mesh();
  std::vector<Region> parts;
  Coordinate holder(mesh.num_axes(), 0);
  ForEachCoordinate(mesh, sharding_, absl::MakeSpan(holder), [&] {
    if (absl::c_linear_search(shards, mesh.PositionOf(mesh.RankAt(holder)))) return true;
    for (Region& part : IntersectRegions(needed, Regions(source_, shape_, holder))) {
      parts.push_back(std::move(part));
    }
    return true;
  });
  return parts;
}

std::vector<Region> CrossMeshTransition::Owned(int rank) const {
  std::vector<Region> owned;
  for (const Pool& pool : PoolsOf(rank)) {
    const auto me = absl::c_find(pool.ranks, rank);
    if (me == pool.ranks.end()) continue;
    for (Region& region : pool.ShareAt(me - pool.ranks.begin())) owned.push_back(std::move(region));
  }
  return owned;
}

std::vector<ReceiveBox> CrossMeshTransition::ExchangeBoxes(int rank) const {
  std::vector<ReceiveBox> boxes;
  for (const Region& region : pivot_ ? Owned(rank) : Needed(rank)) AppendFrom(rank, region, boxes);
  return boxes;
}

// Appends the boxes of `region`, a part of the result, from the ranks that hold it.
void CrossMeshTransition::AppendFrom(int rank, const Region& region,
                                     std::vector<ReceiveBox>& boxes) const {
  const DeviceMesh& mesh = source_.mesh();
  const Region result = ResultOf(rank);
  const bool holds = mesh.Contains(rank);
  const Coordinate mine = holds ? mesh.Coordinate(rank) : Coordinate(mesh.num_axes(), 0);
  std::vector<std::vector<BoxPart>> dims(region.size());
  for (int d = 0; d < static_cast<int>(region.size()); ++d) {
    const AxisList axes = AxesOf(source_.dim(d));
    Coordinate holder(mesh.num_axes(), 0);
    const auto add = [&] {
      const IndexSet held = DimRegion(source_, d, shape_[d], holder);
      if (held.empty()) return true;
      AddParts(MatchPart(held, result[d], region[d]), mesh.PositionOf(mesh.RankAt(holder)),
               dims[d]);
      return true;
    };
    // Shards do not overlap: what is in the shard of `rank` is in no other.
    const bool is_here =
        holds && DimRegion(source_, d, shape_[d], mine).CommonSize(region[d]) == region[d].size();
    if (is_here) {
      for (const int axis : axes) holder[axis] = mine[axis];
      add();
    } else {
      ForEachCoordinate(mesh, axes, absl::MakeSpan(holder), add);
    }
    if (dims[d].empty()) return;
    dims[d] = SortedParts(std::move(dims[d]));
  }
  const size_t before = boxes.size();
  AppendBoxes(dims, 0, {0}, is_scalar_, boxes);
  for (size_t i = before; i < boxes.size(); ++i) {
    const std::vector<int> terms = TermRanks(boxes[i].peers[0], rank);
    boxes[i].peers.assign(terms.begin(), terms.end());
  }
}

// The ranks that hold the terms of the shard at `position`, whose coordinate is 0 on all axes that
// do not shard the source. Among replicas it chooses the one of `rank`, if that has the shard; else
// one by the position of `rank` in the target, to spread the load.
std::vector<int> CrossMeshTransition::TermRanks(int position, int rank) const {
  const DeviceMesh& mesh = source_.mesh();
  Coordinate coordinate = mesh.Coordinate(mesh.RankOf(position));
  int64_t replica = target_.mesh().PositionOf(rank) % SizeOf(mesh, replicas_);
  for (size_t i = replicas_.size(); i-- > 0;) {
    coordinate[replicas_[i]] = static_cast<int>(replica % mesh.axis_size(replicas_[i]));
    replica /= mesh.axis_size(replicas_[i]);
  }
  if (mesh.Contains(rank)) {
    const Coordinate mine = mesh.Coordinate(rank);
    Coordinate here = coordinate;
    for (int axis : replicas_) here[axis] = mine[axis];
    for (int axis : reduced_) here[axis] = mine[axis];
    if (here == mine) {
      for (int axis : replicas_) coordinate[axis] = mine[axis];
    }
  }
  return mesh.Group(mesh.RankAt(coordinate), reduced_);
}

std::vector<ReceiveBox> CrossMeshTransition::GatherBoxes(int rank) const {
  std::vector<ReceiveBox> boxes;
  if (Needed(rank).empty()) return boxes;
  const Region result = ResultOf(rank);
  for (const Pool& pool : PoolsOf(rank)) {
    for (size_t i = 0; i < pool.ranks.size(); ++i) {
      if (pool.ranks[i] == rank) continue;
      for (const Region& region : pool.ShareAt(i)) {
        std::vector<std::vector<BoxPart>> dims(region.size());
        for (size_t d = 0; d < region.size(); ++d) {
          AddParts(Locate(result[d], result[d], region[d]), 0, dims[d]);
        }
        AppendBoxes(dims, pool.ranks[i], {0}, is_scalar_, boxes);
      }
    }
  }
  return boxes;
}

int64_t CrossMeshTransition::NeededElements(int rank) const { return NumElements(Needed(rank)); }

int64_t CrossMeshTransition::HeldElements(int rank) const {
  if (!source_.mesh().Contains(rank)) return 0;
  int64_t held = 0;
  for (const Region& region : Needed(rank))
    held += NumElements(IntersectRegions(region, HeldBy(rank)));
  return held;
}

CrossMeshTransition::Messages CrossMeshTransition::LeastMessages() const {
  const absl::int128 elements = elements_;
  if (terms_ > 1) return {elements * terms_ - ElementsInPlace(), elements * (needers_ - 1)};
  Messages messages;
  for (int rank : ranks_) messages.elements += NeededElements(rank) - HeldElements(rank);
  return messages;
}

// The number of elements of which some rank that needs them holds a term: summed over pairs of a
// target shard and a source shard, the elements that are in both, if some rank has both.
int64_t CrossMeshTransition::ElementsInPlace() const {
  const DeviceMesh &from = source_.mesh(), &to = target_.mesh();
  int64_t elements = 0;
  for (int i = 0; i < to.size(); ++i) {
    const int first = to.RankOf(i);  // the first of the ranks that need the same
    const Coordinate coordinate = to.Coordinate(first);
    if (Needed(first).empty()) continue;
    if (absl::c_any_of(replicated_, [&](int axis) { return coordinate[axis] != 0; })) continue;
    std::vector<int> counted;  // source shards counted so far
    for (int rank : to.Group(first, replicated_)) {
      if (!from.Contains(rank)) continue;
      const int shard = ShardOf(rank);
      if (absl::c_linear_search(counted, shard)) continue;
      counted.push_back(shard);
      elements += HeldElements(rank);
    }
  }
  return elements;
}

}  // namespace dtensor
