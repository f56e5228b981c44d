// The boxes that a rank receives: for each dimension the pieces of each peer, then their product.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/layout/even_share.h"
#include "dtensor/redistribution/box_parts.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {
namespace {

class Boxes {
 public:
  Boxes(const SameMeshTransition& transition, int rank)
      : t_(transition),
        roles_(t_.roles()),
        mesh_(roles_.source().mesh()),
        position_(mesh_.PositionOf(rank)),
        mine_(mesh_.Coordinate(rank)),
        peer_(mine_) {
    step_.resize(mine_.size());
    int step = 1;
    for (int axis = static_cast<int>(mine_.size()) - 1; axis >= 0; --axis) {
      step_[axis] = step;
      step *= mesh_.axis_size(axis);
    }
  }

  std::vector<ReceiveBox> Exchange() {
    results_ = ResultRegion();
    const bool reduces = !roles_.reduced().empty();
    for (const Region& region : !t_.pivot() ? t_.Needed(mine_)
                                : reduces   ? t_.Owned(mine_)
                                            : t_.OwnedTogether(mine_)) {  // copied locally
      ExchangeRegion(region);
    }
    return Boxed();
  }

  // Receives from each owner, among the ranks that need the same result, what that owns; in one of
  // several rounds, from the peer that has it by then.
  std::vector<ReceiveBox> Gather(int round) {
    results_ = ResultRegion();
    const AxisList holders = t_.holder_axes(), sharing = t_.sharing_axes();
    int64_t shares = 1;
    for (int axis : sharing) shares *= mesh_.axis_size(axis);
    CoordinateVector owner = mine_;
    ForEachCoordinate(mesh_, holders, absl::MakeSpan(owner), [&] {
      if (HoldsAlready(owner)) return true;
      const std::vector<Region> together = t_.OwnedTogether(owner);
      int64_t index = 0;
      ForEachCoordinate(mesh_, sharing, absl::MakeSpan(owner), [&] {
        const int64_t share = index++;
        if (PeerOf(owner, round)) GatherShare(ShareOf(together, shares, share));
        return true;
      });
      return true;
    });
    return Boxed();
  }

 private:
  using CoordinateVector = absl::InlinedVector<int, 4>;

  Region ResultRegion() const {
    Region region;
    for (int d = 0; d < static_cast<int>(roles_.shape().size()); ++d) {
      region.push_back(roles_.Result(d, mine_));
    }
    return region;
  }

  // Replaces positions by ranks.
  std::vector<ReceiveBox> Boxed() {
    for (ReceiveBox& box : boxes_) {
      for (int& peer : box.peers) peer = mesh_.RankOf(peer);
    }
    return std::move(boxes_);
  }

  // Appends boxes for the pieces of `needed`, a part of the result, that each peer holds.
  void ExchangeRegion(const Region& needed) {
    std::vector<std::vector<BoxPart>> dims;
    for (int d = 0; d < static_cast<int>(needed.size()); ++d) {
      dims.push_back(ExchangeParts(d, needed[d]));
      if (dims.back().empty()) return;
    }
    Product(dims, Terms());
  }

  void GatherShare(const std::vector<Region>& share) {
    const int delta = Delta(t_.owner_axes());
    for (const Region& region : share) {
      std::vector<std::vector<BoxPart>> dims(region.size());
      for (size_t d = 0; d < region.size(); ++d) {
        // The peer has the same result region, so positions are the same in both.
        AddParts(Locate(results_[d], results_[d], region[d]), d == 0 ? delta : 0, dims[d]);
      }
      Product(dims, {0});
    }
  }

  // If nothing is reduced, this rank has already copied what it holds itself.
  bool HoldsAlready(absl::Span<const int> owner) const {
    return roles_.reduced().empty() &&
           absl::c_all_of(roles_.gathered(), [&](int axis) { return owner[axis] == mine_[axis]; });
  }

  // Sets peer_ to the rank from which this one receives in round `round` what `owner` had at first.
  // On the axes of this round, the peer has the owner's coordinate. On those of earlier rounds it
  // has this rank's coordinate, and has received the elements by then. On those of later rounds the
  // owner has this rank's coordinate too. Returns false if they arrive in another round.
  bool PeerOf(absl::Span<const int> owner, int round) {
    peer_ = mine_;
    bool here = true;
    const auto same = [&](int axis) { return owner[axis] == mine_[axis]; };
    if (t_.choice().rounds.empty()) {
      for (int axis : t_.owner_axes()) peer_[axis] = owner[axis];
      return !absl::c_all_of(t_.owner_axes(), same);
    }
    for (size_t s = round + 1; s < t_.choice().rounds.size(); ++s) {
      here &= absl::c_all_of(t_.choice().rounds[s], same);
    }
    for (int axis : t_.choice().rounds[round]) peer_[axis] = owner[axis];
    return here && !absl::c_all_of(t_.choice().rounds[round], same);
  }

  // The pieces of `needed` in dimension d that each peer holds. The peers differ from this rank on
  // the axes along which this dimension is redistributed.
  std::vector<BoxPart> ExchangeParts(int d, const IndexSet& needed) {
    if (needed.empty()) return {};
    const AxisList axes = AxesOf(roles_.source().dim(d));
    std::vector<BoxPart> parts;
    ForEachHolder(d, axes, 1, {needed}, [&] {
      AddParts(MatchPart(roles_.Held(d, peer_), results_[d], needed), Delta(axes), parts);
    });
    return SortedParts(std::move(parts));
  }

  // Calls fn() with peer_ set to each coordinate on `axes`, from the depth-th on, that may hold
  // some of `needed`. All of `needed` is held by ranks with peer_'s coordinate on the axes before.
  template <typename Fn>
  void ForEachHolder(int d, absl::Span<const int> axes, size_t depth,
                     const std::vector<IndexSet>& needed, const Fn& fn) {
    while (depth <= axes.size() && !t_.SendsAlong(axes[depth - 1])) ++depth;
    if (depth > axes.size()) return fn();
    const int axis = axes[depth - 1];
    const Chunk range = HolderRange(d, axes.first(depth), needed);
    for (int64_t i = range.begin; i < range.end; ++i) {
      peer_[axis] = static_cast<int>(i);
      if (depth == axes.size()) {
        fn();
        continue;
      }
      const IndexSet held = HeldOver(d, axes.first(depth));
      std::vector<IndexSet> parts;
      for (const IndexSet& set : needed) {
        for (IndexSet& part : held.IntersectInParts(set)) parts.push_back(std::move(part));
      }
      if (!parts.empty()) ForEachHolder(d, axes, depth + 1, parts, fn);
    }
    peer_[axis] = mine_[axis];
  }

  IndexSet HeldOver(int d, absl::Span<const int> axes) const {
    return roles_.HeldOver(d, peer_, AxisList(axes.begin(), axes.end()));
  }

  // The coordinates on the last of `axes` that may hold some of `needed`. If shards ascend with the
  // coordinate, it is found by binary search, since an axis may have thousands of ranks.
  Chunk HolderRange(int d, absl::Span<const int> axes, const std::vector<IndexSet>& needed) {
    const int axis = axes.back(), size = mesh_.axis_size(axis);
    if (size <= 8 || !roles_.AscendsAlong(axis)) return {0, size};
    int64_t first = needed[0].runs().front().begin, last = 0;
    for (const IndexSet& set : needed) {
      first = std::min(first, set.runs().front().begin);
      last = std::max(last, set.runs().back().end() - 1);
    }
    const auto first_that = [&](auto holds) {
      Chunk in = {0, size};
      while (in.size() > 0) {
        peer_[axis] = static_cast<int>(in.begin + in.size() / 2);
        const IndexSet held = HeldOver(d, axes);  // only the last ones may be empty
        if (held.empty() || holds(held.runs())) {
          in.end = peer_[axis];
        } else {
          in.begin = peer_[axis] + 1;
        }
      }
      return in.begin;
    };
    return {first_that([=](absl::Span<const IndexRun> held) { return held.back().end() > first; }),
            first_that([=](absl::Span<const IndexRun> held) { return held.front().begin > last; })};
  }

  // The difference between the positions of peer_ and this rank that is due to `axes`.
  int Delta(absl::Span<const int> axes) const {
    int delta = 0;
    for (int axis : axes) delta += (peer_[axis] - mine_[axis]) * step_[axis];
    return delta;
  }

  // The positions of the ranks that hold the terms of an element, relative to this rank, ascending.
  std::vector<int> Terms() {
    std::vector<int> terms;
    ForEachCoordinate(mesh_, roles_.reduced(), absl::MakeSpan(peer_), [&] {
      terms.push_back(Delta(roles_.reduced()));
      return true;
    });
    return terms;
  }

  void Product(absl::Span<const std::vector<BoxPart>> dims, absl::Span<const int> terms) {
    AppendBoxes(dims, position_, terms, roles_.is_scalar(), boxes_);
  }

  const SameMeshTransition& t_;
  const AxisRoles& roles_;
  const DeviceMesh& mesh_;
  const int position_;
  const absl::InlinedVector<int, 4> mine_;
  absl::InlinedVector<int, 4> peer_;  // mine_, except on the axes being enumerated
  absl::InlinedVector<int, 4> step_;  // by axis: what one coordinate adds to the position
  Region results_;                    // of this rank
  std::vector<ReceiveBox> boxes_;
};

}  // namespace

std::vector<ReceiveBox> ExchangeBoxes(const SameMeshTransition& transition, int rank) {
  return Boxes(transition, rank).Exchange();
}

std::vector<ReceiveBox> GatherBoxes(const SameMeshTransition& transition, int rank, int round) {
  return Boxes(transition, rank).Gather(round);
}

}  // namespace dtensor
