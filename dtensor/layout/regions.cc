#include "dtensor/layout/regions.h"

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The row-major product: outer * inner_size + inner. Requires: `inner` lies in [0, inner_size).
IndexSet Product(const IndexSet& outer, const IndexSet& inner, int64_t inner_size) {
  if (inner.empty()) return inner;
  const bool whole = inner.size() == inner_size;
  absl::InlinedVector<IndexRun, 4> runs;
  for (const IndexRun& run : outer.runs()) {
    const int64_t begin = run.begin * inner_size, stride = run.stride * inner_size;
    if (whole) {
      runs.push_back({begin, run.length * inner_size, stride, run.count});
      continue;
    }
    // `inner` again for each index of the run: in one strided run where `inner` is an interval.
    const bool interval = inner.runs().size() == 1 && inner.runs()[0].count == 1;
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t copies = interval ? run.length : 1;
      for (int64_t j = 0; j < run.length; j += copies) {
        for (IndexRun copy : inner.runs()) {
          copy.begin += begin + i * stride + j * inner_size;
          if (interval) copy.stride = inner_size, copy.count = copies;
          runs.push_back(copy);
        }
      }
    }
  }
  return IndexSet::FromIntervals(runs);
}

// Which positions of one factor are held by the ranks that have `coordinate` on `axes`.
class FactorPositions {
 public:
  FactorPositions(const DeviceMesh& mesh, const LayoutFactor& factor,
                  absl::Span<const int> coordinate, absl::Span<const int> axes)
      : mesh_(mesh), splits_(factor.splits), coordinate_(coordinate), axes_(axes) {
    // A split over axes of which every coordinate counts takes nothing away.
    while (!splits_.empty() && !Listed(splits_.back())) splits_.remove_suffix(1);
  }

  IndexSet Of(int64_t size) const { return After(IndexSet::Interval(0, size), 0); }

 private:
  bool Listed(const AxisSplit& split) const { return absl::c_linear_search(axes_, split.axis); }

  // Of `positions`, which the splits before the k-th left.
  IndexSet After(const IndexSet& positions, size_t k) const {
    if (k == splits_.size()) return positions;
    const AxisSplit& split = splits_[k];
    if (Listed(split)) return After(ShareOf(positions, split, coordinate_[split.axis]), k + 1);
    IndexSet all;
    for (int i = 0; i < mesh_.axis_size(split.axis); ++i) {
      all = all.Union(After(ShareOf(positions, split, i), k + 1));
    }
    return all;
  }

  IndexSet ShareOf(const IndexSet& positions, const AxisSplit& split, int index) const {
    const Share share = ShareAt(positions.size(), mesh_.axis_size(split.axis), split.zigzag, index);
    const IndexSet low = positions.Slice(share.low.begin, share.low.end);
    if (share.high.size() == 0) return low;
    return low.Union(positions.Slice(share.high.begin, share.high.end));
  }

  const DeviceMesh& mesh_;
  absl::Span<const AxisSplit> splits_;
  const absl::Span<const int> coordinate_, axes_;
};

}  // namespace

IndexSet DimRegionOverAxes(const Layout& layout, int d, int64_t n, absl::Span<const int> coordinate,
                           absl::Span<const int> axes) {
  const DimLayout& dim = layout.dim(d);
  if (dim.empty()) return IndexSet::Interval(0, n);
  IndexSet held = IndexSet::Interval(0, 1);  // of the factors from the i-th on
  int64_t size = 1;
  for (size_t i = dim.size(); i-- > 0;) {
    const int64_t factor_size = i == 0 ? CeilDiv(n, size) : dim[i].size;
    const FactorPositions positions(layout.mesh(), dim[i], coordinate, axes);
    held = Product(positions.Of(factor_size), held, size);
    size *= factor_size;
  }
  return size == n ? held : held.Intersect(IndexSet::Interval(0, n));
}

IndexSet DimRegion(const Layout& layout, int d, int64_t n, absl::Span<const int> coordinate) {
  return DimRegionOverAxes(layout, d, n, coordinate, AxesOf(layout.dim(d)));
}

Region Regions(const Layout& layout, absl::Span<const int64_t> shape,
               absl::Span<const int> coordinate) {
  DT_CHECK(static_cast<int>(shape.size()) == layout.ndim());
  Region region;
  for (int d = 0; d < layout.ndim(); ++d) {
    region.push_back(DimRegion(layout, d, shape[d], coordinate));
  }
  return region;
}

int64_t NumElements(const Region& region) {
  int64_t count = 1;
  for (const IndexSet& set : region) count *= set.size();
  return count;
}

Region IntersectRegions(const Region& a, const Region& b) {
  DT_CHECK(a.size() == b.size());
  Region common;
  for (size_t d = 0; d < a.size(); ++d) common.push_back(a[d].Intersect(b[d]));
  return common;
}

std::string ToString(const Region& region) {
  if (region.empty()) return "scalar";
  return absl::StrJoin(region, " x ",
                       [](std::string* out, const IndexSet& set) { out->append(set.ToString()); });
}

}  // namespace dtensor
