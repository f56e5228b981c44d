#include "dtensor/mesh_transfer.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "dtensor/box_parts.h"
#include "dtensor/region_share.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/transition.h"

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

MeshTransfer::MeshTransfer(const Layout& from, const Layout& to, absl::Span<const int64_t> shape)
    : source_(AtLeastOneDim(from)),
      target_(AtLeastOneDim(to)),
      shape_(shape.begin(), shape.end()),
      is_scalar_(shape.empty()),
      ranks_(RanksOfBoth(from.mesh(), to.mesh())) {
  if (is_scalar_) shape_.push_back(1);
  elements_ = NumElements(shape_);
  for (int axis = 0; axis < source_.mesh().rank_of_axes(); ++axis) {
    if (source_.use(axis) == Layout::AxisUse::kPartial) reduced_.push_back(axis);
    if (source_.use(axis) == Layout::AxisUse::kReplicate) replicas_.push_back(axis);
  }
  for (int axis = 0; axis < target_.mesh().rank_of_axes(); ++axis) {
    if (target_.use(axis) == Layout::AxisUse::kShard) continue;
    const bool created = target_.use(axis) == Layout::AxisUse::kPartial;
    (created && target_.partial_op() != ReduceOp::kAvg ? created_ : replicated_).push_back(axis);
  }
  terms_ = SizeOf(source_.mesh(), reduced_);
  needers_ = SizeOf(target_.mesh(), replicated_);
  const bool disjoint =
      static_cast<int>(ranks_.size()) == source_.mesh().size() + target_.mesh().size();
  pivot_ = needers_ > 1 && elements_ > 0 && (disjoint || terms_ > 1);
  FindMoves();
}

void MeshTransfer::FindMoves() {
  if (elements_ == 0) return;
  moves_ = terms_ > 1;
  is_view_ = created_.empty();
  for (size_t i = 0; i < ranks_.size() && !moves_; ++i) {
    const std::vector<Transfer> boxes = ExchangeBoxes(ranks_[i]);
    moves_ = absl::c_any_of(boxes, [&](const Transfer& b) { return b.peers[0] != ranks_[i]; });
    const auto strided = [](const Piece& piece) { return piece.count > 1; };
    is_view_ &= boxes.size() <= 1 && (boxes.empty() || absl::c_none_of(boxes[0].dims, strided));
  }
  is_view_ &= !moves_;
}

Region MeshTransfer::HeldBy(int rank) const {
  return Regions(source_, shape_, source_.mesh().Coordinate(rank));
}

Region MeshTransfer::ResultOf(int rank) const {
  return Regions(target_, shape_, target_.mesh().Coordinate(rank));
}

std::vector<Region> MeshTransfer::Needed(int rank) const {
  if (!target_.mesh().Contains(rank)) return {};
  const Coordinate coordinate = target_.mesh().Coordinate(rank);
  if (absl::c_any_of(created_, [&](int axis) { return coordinate[axis] != 0; })) return {};
  return {ResultOf(rank)};
}

std::vector<Region> MeshTransfer::Owned(int rank) const {
  int64_t index = 0;
  if (target_.mesh().Contains(rank)) {
    const Coordinate coordinate = target_.mesh().Coordinate(rank);
    for (int a : replicated_) index = index * target_.mesh().axis_size(a) + coordinate[a];
  }
  return ShareOf(Needed(rank), needers_, index);
}

std::vector<Transfer> MeshTransfer::ExchangeBoxes(int rank) const {
  std::vector<Transfer> boxes;
  for (const Region& region : pivot_ ? Owned(rank) : Needed(rank)) AppendFrom(rank, region, boxes);
  return boxes;
}

// The boxes of `region`, a part of the result, from those who hold it.
void MeshTransfer::AppendFrom(int rank, const Region& region, std::vector<Transfer>& boxes) const {
  const DeviceMesh& mesh = source_.mesh();
  const Region result = ResultOf(rank);
  std::vector<std::vector<BoxPart>> dims(region.size());
  for (int d = 0; d < static_cast<int>(region.size()); ++d) {
    const AxisList axes = AxesOf(source_.dim(d));
    Coordinate holder(mesh.rank_of_axes(), 0);
    ForEachCoordinate(mesh, axes, absl::MakeSpan(holder), [&] {
      const IndexSet held = DimRegion(source_, d, shape_[d], holder);
      if (held.empty()) return true;
      AddParts(MatchPart(held, result[d], region[d]), mesh.PositionOf(mesh.RankAt(holder)),
               dims[d]);
      return true;
    });
    if (dims[d].empty()) return;
    dims[d] = Sorted(std::move(dims[d]));
  }
  const size_t before = boxes.size();
  AppendBoxes(dims, 0, {0}, is_scalar_, boxes);
  for (size_t i = before; i < boxes.size(); ++i) {
    const std::vector<int> terms = TermRanks(boxes[i].peers[0], rank);
    boxes[i].peers.assign(terms.begin(), terms.end());
  }
}

// The ranks with the terms of what is held at `position`, whose coordinate is 0 on the axes that do
// not shard: of replicas `rank` itself, or else one by its place in the target, to share the load.
std::vector<int> MeshTransfer::TermRanks(int position, int rank) const {
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

std::vector<Transfer> MeshTransfer::GatherBoxes(int rank) const {
  std::vector<Transfer> boxes;
  if (Needed(rank).empty()) return boxes;
  const Region result = ResultOf(rank);
  for (int peer : target_.mesh().Group(rank, replicated_)) {
    if (peer == rank) continue;
    for (const Region& region : Owned(peer)) {
      std::vector<std::vector<BoxPart>> dims(region.size());
      for (size_t d = 0; d < region.size(); ++d) {
        AddParts(Locate(result[d], result[d], region[d]), 0, dims[d]);
      }
      AppendBoxes(dims, peer, {0}, is_scalar_, boxes);
    }
  }
  return boxes;
}

int64_t MeshTransfer::NeededElements(int rank) const { return NumElements(Needed(rank)); }

int64_t MeshTransfer::HeldElements(int rank) const {
  if (!source_.mesh().Contains(rank)) return 0;
  int64_t held = 0;
  for (const Region& region : Needed(rank)) held += NumElements(Intersect(region, HeldBy(rank)));
  return held;
}

int64_t MeshTransfer::LeastMessages() const {
  if (terms_ > 1) return elements_ * (terms_ + needers_ - 1) - ElementsInPlace();
  int64_t messages = 0;
  for (int rank : ranks_) messages += NeededElements(rank) - HeldElements(rank);
  return messages;
}

// Elements of which some rank in need holds a term. For each shard of the target and each of the
// source: what they have in common, if a rank has both.
int64_t MeshTransfer::ElementsInPlace() const {
  const DeviceMesh &from = source_.mesh(), &to = target_.mesh();
  AxisList not_sharding = reduced_;
  not_sharding.insert(not_sharding.end(), replicas_.begin(), replicas_.end());
  int64_t elements = 0;
  for (int i = 0; i < to.size(); ++i) {
    const int first = to.RankOf(i);  // of those in need
    const Coordinate coordinate = to.Coordinate(first);
    if (Needed(first).empty()) continue;
    if (absl::c_any_of(replicated_, [&](int axis) { return coordinate[axis] != 0; })) continue;
    std::vector<int> counted;  // one rank for each shard of the source
    for (int rank : to.Group(first, replicated_)) {
      if (!from.Contains(rank)) continue;
      const int holder = from.Group(rank, not_sharding)[0];
      if (absl::c_linear_search(counted, holder)) continue;
      counted.push_back(holder);
      elements += HeldElements(rank);
    }
  }
  return elements;
}

}  // namespace dtensor
