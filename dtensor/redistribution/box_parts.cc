#include "dtensor/redistribution/box_parts.h"

#include <algorithm>

namespace dtensor {
namespace {

// Finds the positions of ascending indices in a set.
class Locator {
 public:
  explicit Locator(const IndexSet& set) : runs_(set.runs()) {}

  // Requires: the set contains `index`, which is not below that of the previous call.
  int64_t Position(int64_t index) {
    while (runs_[run_].end() <= index) base_ += runs_[run_++].size();
    const IndexRun& run = runs_[run_];
    const int64_t offset = index - run.begin;
    if (run.count == 1) return base_ + offset;
    return base_ + offset / run.stride * run.length + offset % run.stride;
  }

  // Beginning at `index`, that of the previous call: how many indices that are `step` apart have
  // positions that are equally far apart.
  int64_t RegularSteps(int64_t index, int64_t step) const {
    const IndexRun& run = runs_[run_];
    const bool in_one_interval = run.count > 1 && step % run.stride != 0;
    const int64_t last =
        in_one_interval ? index - (index - run.begin) % run.stride + run.length : run.end();
    return (last - 1 - index) / step + 1;
  }

 private:
  absl::Span<const IndexRun> runs_;
  size_t run_ = 0;
  int64_t base_ = 0;
};

}  // namespace

std::vector<MatchedRun> Locate(const IndexSet& src, const IndexSet& dst, const IndexSet& common) {
  std::vector<MatchedRun> pieces;
  Locator in_src(src), in_dst(dst);
  for (const IndexRun& run : common.runs()) {
    for (int64_t j = 0; j < run.count;) {
      const int64_t index = run.begin + j * run.stride;
      MatchedRun piece{in_src.Position(index), in_dst.Position(index), run.length};
      if (run.count > 1) {
        piece.count = std::min({run.count - j, in_src.RegularSteps(index, run.stride),
                                in_dst.RegularSteps(index, run.stride)});
      }
      if (piece.count > 1) {
        piece.src_stride = in_src.Position(index + run.stride) - piece.src;
        piece.dst_stride = in_dst.Position(index + run.stride) - piece.dst;
      }
      pieces.push_back(piece);
      j += piece.count;
    }
  }
  return pieces;
}

std::vector<MatchedRun> MatchPart(const IndexSet& src, const IndexSet& dst, const IndexSet& part) {
  if (part.size() == dst.size()) return MatchIndexSets(src, dst);
  std::vector<MatchedRun> pieces;
  for (const IndexSet& common : src.IntersectInParts(part)) {
    const std::vector<MatchedRun> located = Locate(src, dst, common);
    pieces.insert(pieces.end(), located.begin(), located.end());
  }
  return pieces;
}

void AddParts(const std::vector<MatchedRun>& pieces, int delta, std::vector<BoxPart>& parts) {
  for (const MatchedRun& piece : pieces) parts.push_back({piece, delta});
}

std::vector<BoxPart> SortedParts(std::vector<BoxPart> parts) {
  const auto before = [](const BoxPart& a, const BoxPart& b) { return a.piece.dst < b.piece.dst; };
  if (!std::is_sorted(parts.begin(), parts.end(), before))
    std::sort(parts.begin(), parts.end(), before);
  return parts;
}

void AppendBoxes(absl::Span<const std::vector<BoxPart>> dims, int base, absl::Span<const int> terms,
                 bool is_scalar, std::vector<ReceiveBox>& boxes) {
  size_t count = 1;
  for (const std::vector<BoxPart>& parts : dims) count *= parts.size();
  if (boxes.empty()) boxes.reserve(count);
  absl::InlinedVector<size_t, 4> index(dims.size(), 0);
  for (; count > 0; --count) {
    ReceiveBox& box = boxes.emplace_back();
    int peer = base;
    for (size_t d = 0; d < dims.size(); ++d) {
      const BoxPart& part = dims[d][index[d]];
      peer += part.delta;
      if (!is_scalar) box.dims.push_back(part.piece);
    }
    for (int term : terms) box.peers.push_back(peer + term);
    for (size_t d = dims.size(); d-- > 0 && ++index[d] == dims[d].size();) index[d] = 0;
  }
}

}  // namespace dtensor
