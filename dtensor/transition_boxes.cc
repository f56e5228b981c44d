// Which boxes a rank receives: for each dimension the pieces of each peer, then their product.
#include <algorithm>

#include "dtensor/chunks.h"
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
    std::vector<std::vector<Part>> dims;
    for (int d = 0; d < static_cast<int>(t_.shape().size()); ++d) {
      dims.push_back(ExchangeParts(d));
      if (dims.back().empty()) return {};
    }
    return Product(dims, Terms());
  }

  std::vector<Transfer> Gather() {
    std::vector<std::vector<Part>> dims;
    for (int d = 0; d < static_cast<int>(t_.shape().size()); ++d) {
      dims.push_back(GatherParts(d));
      if (dims.back().empty()) return {};
    }
    std::vector<Transfer> boxes = Product(dims, {0});
    // What it owns lies in its place already.
    boxes.erase(std::remove_if(boxes.begin(), boxes.end(),
                               [this](const Transfer& box) { return box.peers[0] == rank_; }),
                boxes.end());
    return boxes;
  }

 private:
  // Of what this rank needs (or owns, if there is a pivot), the pieces that each peer holds. The
  // peers differ from this rank on the axes along which this dimension is redistributed.
  std::vector<Part> ExchangeParts(int d) {
    const IndexSet result = t_.Result(d, mine_);
    const IndexSet needed = t_.pivot() ? t_.Owned(d, mine_) : t_.Needed(d, mine_);
    if (needed.empty()) return {};
    const AxisList axes = AxesOf(t_.source().dim(d));
    std::vector<Part> parts;
    ForEachHolder(d, axes, 1, needed, [&] {
      AddParts(MatchPart(t_.Held(d, peer_), result, needed), Delta(axes), parts);
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

  // What each owner among the ranks that need the same result has of it.
  std::vector<Part> GatherParts(int d) {
    const IndexSet result = t_.Result(d, mine_);
    std::vector<Part> parts;
    const AxisList& axes = t_.gathered_in(d);
    ForEachCoordinate(mesh_, axes, absl::MakeSpan(peer_), [&] {
      const IndexSet owned = t_.OwnedByHelpers(d, peer_);
      if (d != t_.split_dim()) {
        AddParts(Locate(result, result, owned), Delta(axes), parts);
        return true;
      }
      int64_t index = 0;
      ForEachCoordinate(mesh_, t_.helpers(), absl::MakeSpan(peer_), [&] {
        const Chunk chunk = ChunkAt(owned.size(), t_.helper_count(), index++);
        const IndexSet part = owned.Slice(chunk.begin, chunk.end);
        AddParts(Locate(result, result, part), Delta(axes) + Delta(t_.helpers()), parts);
        return chunk.end < owned.size();  // the rest own nothing
      });
      return true;
    });
    return Sorted(std::move(parts));
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

  std::vector<Transfer> Product(absl::Span<const std::vector<Part>> dims,
                                absl::Span<const int> terms) const {
    size_t count = 1;
    for (const std::vector<Part>& parts : dims) count *= parts.size();
    std::vector<Transfer> boxes;
    boxes.reserve(count);
    absl::InlinedVector<size_t, 4> index(dims.size(), 0);
    while (boxes.size() < count) {
      Transfer& box = boxes.emplace_back();
      int peer = rank_;
      for (size_t d = 0; d < dims.size(); ++d) {
        const Part& part = dims[d][index[d]];
        peer += part.delta;
        if (!t_.is_scalar()) box.dims.push_back(part.piece);
      }
      for (int term : terms) box.peers.push_back(peer + term);
      for (size_t d = dims.size(); d-- > 0 && ++index[d] == dims[d].size();) index[d] = 0;
    }
    return boxes;
  }

  const Transition& t_;
  const DeviceMesh& mesh_;
  const int rank_;
  const absl::InlinedVector<int, 4> mine_;
  absl::InlinedVector<int, 4> peer_;       // mine_, but for the axes being walked
  absl::InlinedVector<int, 4> rank_step_;  // by axis
};

}  // namespace

std::vector<Transfer> ExchangeBoxes(const Transition& transition, int rank) {
  return Boxes(transition, rank).Exchange();
}

std::vector<Transfer> GatherBoxes(const Transition& transition, int rank) {
  return Boxes(transition, rank).Gather();
}

}  // namespace dtensor
