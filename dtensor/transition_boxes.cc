// Which boxes a rank receives: for each dimension the pieces of each peer, then their product.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/chunks.h"
#include "dtensor/region_share.h"
#include "dtensor/transition.h"

namespace dtensor {
namespace {

// Walks the runs of a set, upwards, and tells at which position an index stands.
class Locator {
 public:
  explicit Locator(const IndexSet& set) : runs_(set.runs()) {}

  // Requires: the set has `index`, which is not below the last one asked for.
  int64_t Position(int64_t index) {
    while (runs_[run_].end() <= index) base_ += runs_[run_++].size();
    const Run& run = runs_[run_];
    const int64_t offset = index - run.begin;
    if (run.count == 1) return base_ + offset;
    return base_ + offset / run.stride * run.length + offset % run.stride;
  }

  // Whether equal steps from `index` to `last` are equal steps in positions. After Position(index).
  bool IsRegular(int64_t last, int64_t step) const {
    const Run& run = runs_[run_];
    return last < run.end() && (run.count == 1 || step % run.stride == 0);
  }

 private:
  absl::Span<const Run> runs_;
  size_t run_ = 0;
  int64_t base_ = 0;
};

// Positions in `src` and `dst` of the indices in `common`, which both of them have.
std::vector<Piece> Locate(const IndexSet& src, const IndexSet& dst, const IndexSet& common) {
  std::vector<Piece> pieces;
  Locator in_src(src), in_dst(dst);
  for (const Run& run : common.runs()) {
    const int64_t last = run.begin + (run.count - 1) * run.stride;
    Piece piece{in_src.Position(run.begin), in_dst.Position(run.begin), run.length};
    if (run.count > 1 && in_src.IsRegular(last, run.stride) && in_dst.IsRegular(last, run.stride)) {
      piece.count = run.count;
      piece.src_stride = in_src.Position(run.begin + run.stride) - piece.src;
      piece.dst_stride = in_dst.Position(run.begin + run.stride) - piece.dst;
      pieces.push_back(piece);
      continue;
    }
    pieces.push_back(piece);
    for (int64_t index = run.begin + run.stride; index <= last && run.count > 1;
         index += run.stride) {
      pieces.push_back({in_src.Position(index), in_dst.Position(index), run.length});
    }
  }
  return pieces;
}

// As Match, of the indices that `part`, a subset of `dst`, has too.
std::vector<Piece> MatchPart(const IndexSet& src, const IndexSet& dst, const IndexSet& part) {
  if (part.size() == dst.size()) return Match(src, dst);
  return Locate(src, dst, src.Intersect(part));
}

// A piece of one dimension, from a peer whose rank is this one's plus `delta` as far as this
// dimension decides.
struct Part {
  Piece piece;
  int delta = 0;
};

class Boxes {
 public:
  Boxes(const Transition& transition, int rank)
      : t_(transition),
        mesh_(t_.source().mesh()),
        rank_(rank),
        mine_(mesh_.Coordinate(rank)),
        peer_(mine_) {
    rank_step_.resize(mine_.size());
    int step = 1;
    for (int axis = static_cast<int>(mine_.size()) - 1; axis >= 0; --axis) {
      rank_step_[axis] = step;
      step *= mesh_.axis_size(axis);
    }
  }

  std::vector<Transfer> Exchange() {
    results_ = ResultRegion();
    const bool reduces = !t_.reduced().empty();
    for (const Region& region : !t_.pivot() ? t_.Needed(mine_)
                                : reduces   ? t_.Owned(mine_)
                                            : t_.OwnedTogether(mine_)) {  // what it has already
      ExchangeRegion(region);
    }
    return std::move(boxes_);
  }

  // From each owner among the ranks that need the same result what it has of it; in a stage, from
  // the peer that has it by then.
  std::vector<Transfer> Gather(int stage) {
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
        if (PeerOf(owner, stage)) GatherShare(ShareOf(together, shares, share));
        return true;
      });
      return true;
    });
    return std::move(boxes_);
  }

 private:
  using CoordinateVector = absl::InlinedVector<int, 4>;

  Region ResultRegion() const {
    Region region;
    for (int d = 0; d < static_cast<int>(t_.shape().size()); ++d) {
      region.push_back(t_.Result(d, mine_));
    }
    return region;
  }

  // The pieces of `needed`, a part of the result, that each peer holds.
  void ExchangeRegion(const Region& needed) {
    std::vector<std::vector<Part>> dims;
    for (int d = 0; d < static_cast<int>(needed.size()); ++d) {
      dims.push_back(ExchangeParts(d, needed[d]));
      if (dims.back().empty()) return;
    }
    Product(dims, Terms());
  }

  void GatherShare(const std::vector<Region>& share) {
    const int delta = Delta(t_.owner_axes());
    for (const Region& region : share) {
      std::vector<std::vector<Part>> dims(region.size());
      for (size_t d = 0; d < region.size(); ++d) {
        // The peer's result is this rank's: the same place in both.
        AddParts(Locate(results_[d], results_[d], region[d]), d == 0 ? delta : 0, dims[d]);
      }
      Product(dims, {0});
    }
  }

  // Where nothing is reduced, a rank has copied what it holds.
  bool HoldsAlready(absl::Span<const int> owner) const {
    return t_.reduced().empty() &&
           absl::c_all_of(t_.gathered(), [&](int axis) { return owner[axis] == mine_[axis]; });
  }

  // Sets peer_ to the rank from which this one gets in round `stage` what `owner` had at first: on
  // the axes of the stage it is where the owner is; on those of earlier stages it is here, and has
  // received it; on those of later ones the owner is here too. False if it comes in another round.
  bool PeerOf(absl::Span<const int> owner, int stage) {
    peer_ = mine_;
    bool here = true;
    const auto same = [&](int axis) { return owner[axis] == mine_[axis]; };
    if (t_.stages().empty()) {
      for (int axis : t_.owner_axes()) peer_[axis] = owner[axis];
      return !absl::c_all_of(t_.owner_axes(), same);
    }
    for (size_t s = stage + 1; s < t_.stages().size(); ++s) {
      here &= absl::c_all_of(t_.stages()[s], same);
    }
    for (int axis : t_.stages()[stage]) peer_[axis] = owner[axis];
    return here && !absl::c_all_of(t_.stages()[stage], same);
  }

  // Of `needed` in dimension d, the pieces that each peer holds. The peers differ from this rank on
  // the axes along which this dimension is redistributed.
  std::vector<Part> ExchangeParts(int d, const IndexSet& needed) {
    if (needed.empty()) return {};
    const AxisList axes = AxesOf(t_.source().dim(d));
    std::vector<Part> parts;
    ForEachHolder(d, axes, 1, needed, [&] {
      AddParts(MatchPart(t_.Held(d, peer_), results_[d], needed), Delta(axes), parts);
    });
    return Sorted(std::move(parts));
  }

  // Calls fn() with peer_ running over the coordinates on `axes`, from the depth-th on, that may
  // hold some of `needed`: all of it is held by ranks with peer_'s coordinate on the axes before.
  template <typename Fn>
  void ForEachHolder(int d, absl::Span<const int> axes, size_t depth, const IndexSet& needed,
                     const Fn& fn) {
    while (depth <= axes.size() && !t_.SendsAlong(axes[depth - 1])) ++depth;
    if (depth > axes.size()) return fn();
    const int axis = axes[depth - 1];
    const Chunk range = HolderRange(d, axes.first(depth), needed);
    for (int64_t i = range.begin; i < range.end; ++i) {
      peer_[axis] = static_cast<int>(i);
      const IndexSet part =
          depth < axes.size() ? HeldOver(d, axes.first(depth)).Intersect(needed) : needed;
      if (!part.empty()) ForEachHolder(d, axes, depth + 1, part, fn);
    }
    peer_[axis] = mine_[axis];
  }

  IndexSet HeldOver(int d, absl::Span<const int> axes) const {
    return DimRegionOverAxes(t_.source(), d, t_.shape()[d], peer_, axes);
  }

  // The coordinates on the last of `axes` that may hold some of `needed`. Where shards ascend with
  // the coordinate, found by halving: an axis may have thousands of ranks.
  Chunk HolderRange(int d, absl::Span<const int> axes, const IndexSet& needed) {
    const int axis = axes.back(), size = mesh_.axis_size(axis);
    if (size <= 8 || !t_.AscendsAlong(axis)) return {0, size};
    const int64_t first = needed.runs().front().begin, last = needed.runs().back().end() - 1;
    const auto first_that = [&](auto holds) {
      Chunk in = {0, size};
      while (in.size() > 0) {
        peer_[axis] = static_cast<int>(in.begin + in.size() / 2);
        const IndexSet held = HeldOver(d, axes);  // empty only at the end
        if (held.empty() || holds(held.runs())) {
          in.end = peer_[axis];
        } else {
          in.begin = peer_[axis] + 1;
        }
      }
      return in.begin;
    };
    return {first_that([=](absl::Span<const Run> held) { return held.back().end() > first; }),
            first_that([=](absl::Span<const Run> held) { return held.front().begin > last; })};
  }

  static void AddParts(const std::vector<Piece>& pieces, int delta, std::vector<Part>& parts) {
    for (const Piece& piece : pieces) parts.push_back({piece, delta});
  }

  static std::vector<Part> Sorted(std::vector<Part> parts) {
    const auto before = [](const Part& a, const Part& b) { return a.piece.dst < b.piece.dst; };
    if (!std::is_sorted(parts.begin(), parts.end(), before))
      std::sort(parts.begin(), parts.end(), before);
    return parts;
  }

  // How much further in rank order peer_ is than this rank, as far as `axes` go.
  int Delta(absl::Span<const int> axes) const {
    int delta = 0;
    for (int axis : axes) delta += (peer_[axis] - mine_[axis]) * rank_step_[axis];
    return delta;
  }

  // The ranks that hold the terms of an element, ascending, relative to this one.
  std::vector<int> Terms() {
    std::vector<int> terms;
    ForEachCoordinate(mesh_, t_.reduced(), absl::MakeSpan(peer_), [&] {
      terms.push_back(Delta(t_.reduced()));
      return true;
    });
    return terms;
  }

  void Product(absl::Span<const std::vector<Part>> dims, absl::Span<const int> terms) {
    size_t count = 1;
    for (const std::vector<Part>& parts : dims) count *= parts.size();
    if (boxes_.empty()) boxes_.reserve(count);
    absl::InlinedVector<size_t, 4> index(dims.size(), 0);
    for (; count > 0; --count) {
      Transfer& box = boxes_.emplace_back();
      int peer = rank_;
      for (size_t d = 0; d < dims.size(); ++d) {
        const Part& part = dims[d][index[d]];
        peer += part.delta;
        if (!t_.is_scalar()) box.dims.push_back(part.piece);
      }
      for (int term : terms) box.peers.push_back(peer + term);
      for (size_t d = dims.size(); d-- > 0 && ++index[d] == dims[d].size();) index[d] = 0;
    }
  }

  const Transition& t_;
  const DeviceMesh& mesh_;
  const int rank_;
  const absl::InlinedVector<int, 4> mine_;
  absl::InlinedVector<int, 4> peer_;       // mine_, but for the axes being walked
  absl::InlinedVector<int, 4> rank_step_;  // by axis
  Region results_;                         // of this rank
  std::vector<Transfer> boxes_;
};

}  // namespace

std::vector<Transfer> ExchangeBoxes(const Transition& transition, int rank) {
  return Boxes(transition, rank).Exchange();
}

std::vector<Transfer> GatherBoxes(const Transition& transition, int rank, int stage) {
  return Boxes(transition, rank).Gather(stage);
}

}  // namespace dtensor
