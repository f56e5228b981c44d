#include "dtensor/layout/even_share.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtensor/layout/chunks.h"

namespace dtensor {
namespace {

// Cut() appends the elements at positions [range.begin, range.end) of the part of `region` that has
// one fixed index (`prefix`) in each dimension before d.
class Cutter {
 public:
  Cutter(const Region& region, std::vector<Region>& out) : region_(region), out_(out) {}

  void Cut(size_t d, Region prefix, Chunk range) {
    if (range.begin >= range.end) return;
    const int64_t row = Row(d);
    if (d + 1 >= region_.size() || (range.begin % row == 0 && range.end % row == 0)) {
      return Whole(d, std::move(prefix), {range.begin / row, range.end / row});
    }
    // The range is a part of one row, whole rows, and a part of another row.
    const int64_t first = CeilDiv(range.begin, row), last = range.end / row;
    if (range.begin % row != 0) {
      const int64_t at = range.begin / row * row;
      Cut(d + 1, With(prefix, d, {range.begin / row, first}),
          {range.begin - at, std::min(range.end - at, row)});
    }
    if (first < last) Whole(d, prefix, {first, last});
    if (range.end % row != 0 && last >= first) {
      Cut(d + 1, With(prefix, d, {last, last + 1}), {0, range.end - last * row});
    }
  }

 private:
  // Elements for each index of dimension d.
  int64_t Row(size_t d) const {
    int64_t row = 1;
    for (size_t e = d + 1; e < region_.size(); ++e) row *= region_[e].size();
    return row;
  }

  Region With(Region prefix, size_t d, Chunk positions) const {
    prefix.push_back(region_[d].Slice(positions.begin, positions.end));
    return prefix;
  }

  void Whole(size_t d, Region prefix, Chunk positions) {
    prefix = With(std::move(prefix), d, positions);
    for (size_t e = d + 1; e < region_.size(); ++e) prefix.push_back(region_[e]);
    out_.push_back(std::move(prefix));
  }

  const Region& region_;
  std::vector<Region>& out_;
};

// The elements at positions [mine.begin, mine.end), counted through all regions.
std::vector<Region> Cut(absl::Span<const Region> regions, Chunk mine) {
  std::vector<Region> share;
  int64_t before = 0;
  for (const Region& region : regions) {
    const int64_t size = NumElements(region);
    const Chunk part = {std::max<int64_t>(mine.begin - before, 0),
                        std::min(mine.end - before, size)};
    if (size > 0) Cutter(region, share).Cut(0, {}, part);
    before += size;
  }
  return share;
}

}  // namespace

std::vector<Region> ShareOf(absl::Span<const Region> regions, int64_t parts, int64_t index) {
  return Cut(regions, ChunkAt(NumElements(regions), parts, index));
}

std::vector<Region> ShareOf(absl::Span<const Region> regions, absl::Span<const int64_t> weights,
                            int64_t index) {
  const int64_t elements = NumElements(regions);
  const int64_t all = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  const int64_t before = std::accumulate(weights.begin(), weights.begin() + index, int64_t{0});
  // elements * weight / all, without overflow.
  const auto at = [&](int64_t weight) {
    return elements / all * weight + elements % all * weight / all;
  };
  return Cut(regions, {at(before), at(before + weights[index])});
}

}  // namespace dtensor
