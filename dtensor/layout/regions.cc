#include "dtensor/layout/regions.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The set of all outer * inner_size + inner. Requires: `inner` is within [0, inner_size).
IndexSet Product(const IndexSet& outer, const IndexSet& inner, int64_t inner_size) {
  if (inner.empty()) return inner;
  const bool whole = inner.size() == inner_size;
  // Whether copies of `inner` join to a single run, evenly spaced.
  const IndexRun first = inner.runs()[0];
  const bool even =
      inner.runs().size() == 1 && (first.count == 1 || first.count * first.stride == inner_size);
  absl::InlinedVector<IndexRun, 4> runs;
  for (const IndexRun& run : outer.runs()) {
    const int64_t begin = run.begin * inner_size, stride = run.stride * inner_size;
    if (whole) {
      runs.push_back({begin, run.length * inner_size, stride, run.count});
      continue;
    }
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t copies = even ? run.length : 1;
      for (int64_t j = 0; j < run.length; j += copies) {
        for (IndexRun copy : inner.runs()) {
          copy.begin += begin + i * stride + j * inner_size;
          if (even) {
            if (copy.count == 1) copy.stride = inner_size;
            copy.count *= copies;
          }
          runs.push_back(copy);
        }
      }
    }
  }
  return IndexSet::FromIntervals(runs);
}

// An upper bound for the number of runs that Product() makes for one dimension, on any rank. Runs
// are repeated for each group only if a rank holds several parts of a group, or a run that does not
// continue evenly in the next group.
int64_t MostRuns(const DeviceMesh& mesh, const DimLayout& dim, int64_t n) {
  enum { kWhole, kInterval, kEven, kOther } inner = kWhole;  // what a rank holds of a group
  int64_t runs = 1, size = 1;
  for (size_t i = dim.size(); i-- > 0;) {
    const LayoutFactor& factor = dim[i];
    const int64_t factor_size = i == 0 ? CeilDiv(n, size) : factor.size;
    int64_t parts = 1, ranks = 1;
    for (const AxisSplit& split : factor.splits) {
      if (split.zigzag) parts *= 2;
      ranks *= mesh.axis_size(split.axis);
    }
    parts = std::min(parts, factor_size);
    const bool split = !factor.splits.empty();
    if (inner == kOther) {
      runs = NumElements({factor_size, runs});
    } else if (inner == kWhole) {
      runs = parts;
      if (split) inner = parts == 1 ? kInterval : kOther;
    } else if (!split) {
      inner = kEven;
    } else if (inner == kEven || parts > 1 || factor_size > ranks) {
      runs = parts;
      inner = kOther;
    }
    size *= factor_size;
  }
  return runs;
}

// The positions of one factor that ranks with `coordinate` on `axes` hold together.
class FactorPositions {
 public:
  FactorPositions(const DeviceMesh& mesh, const LayoutFactor& factor,
                  absl::Span<const int> coordinate, absl::Span<const int> axes)
      : mesh_(mesh), splits_(factor.splits), coordinate_(coordinate), axes_(axes) {
    // The last splits can be left out if their axes are not listed: all coordinates together hold
    // everything.
    while (!splits_.empty() && !Listed(splits_.back())) splits_.remove_suffix(1);
  }

  IndexSet Of(int64_t size) const { return After(IndexSet::Interval(0, size), 0); }

 private:
  bool Listed(const AxisSplit& split) const { return absl::c_linear_search(axes_, split.axis); }

  // What the splits from the k-th on leave of `positions`.
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
  IndexSet held = IndexSet::Interval(0, 1);  // in the factors from the i-th on
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

absl::Status CheckRegions(const Layout& layout, absl::Span<const int64_t> shape) {
  DT_CHECK(static_cast<int>(shape.size()) == layout.ndim());
  for (int d = 0; d < layout.ndim(); ++d) {
    if (MostRuns(layout.mesh(), layout.dim(d), shape[d]) <= kMaxRegionRuns) continue;
    return InvalidArgument({"layout ", layout.ToString(), " of shape ", DimsToString(shape),
                            ": what ranks hold of dimension ", absl::StrCat(d), " is a pattern of ",
                            "more than ", absl::StrCat(kMaxRegionRuns), " runs of indices; shard ",
                            "outer parts of it, in contiguous order, or another dimension"});
  }
  return absl::OkStatus();
}

int64_t NumElements(const Region& region) {
  int64_t count = 1;
  for (const IndexSet& set : region) count *= set.size();
  return count;
}

int64_t NumElements(absl::Span<const Region> disjoint) {
  int64_t count = 0;
  for (const Region& region : disjoint) count += NumElements(region);
  return count;
}

std::vector<Region> IntersectRegions(const Region& a, const Region& b) {
  DT_CHECK(a.size() == b.size());
  std::vector<Region> common = {Region()};  // in the dimensions so far
  for (size_t d = 0; d < a.size(); ++d) {
    const std::vector<IndexSet> sets = a[d].IntersectInParts(b[d]);
    std::vector<Region> longer;
    for (const Region& region : common) {
      for (const IndexSet& set : sets) longer.emplace_back(region).push_back(set);
    }
    common = std::move(longer);
  }
  return common;
}

std::string ToString(const Region& region) {
  if (region.empty()) return "scalar";
  return absl::StrJoin(region, " x ",
                       [](std::string* out, const IndexSet& set) { out->append(set.ToString()); });
}

}  // namespace dtensor
