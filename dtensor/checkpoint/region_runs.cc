#include "dtensor/checkpoint/region_runs.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Common runs in one dimension, as positions in both sets; ascending, and maximal.
std::vector<RegionRun> CommonOf(const IndexSet& src, const IndexSet& dst) {
  std::vector<RegionRun> all;
  for (const MatchedRun& match : MatchIndexSets(src, dst)) {
    for (int64_t i = 0; i < match.count; ++i) {
      all.push_back(
          {match.src + i * match.src_stride, match.dst + i * match.dst_stride, match.length});
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.src < b.src; });
  std::vector<RegionRun> joined;
  for (const RegionRun& run : all) {
    RegionRun* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->src + last->length == run.src &&
        last->dst + last->length == run.dst) {
      last->length += run.length;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

class Walk {
 public:
  Walk(const Region& src, const Region& dst,
       absl::FunctionRef<absl::Status(const RegionRun&)> visit)
      : visit_(visit) {
    for (size_t d = 0; d < src.size(); ++d) dims_.push_back(CommonOf(src[d], dst[d]));
    // Trailing dimensions that both regions have completely are part of the runs of the dimensions
    // before them.
    size_t end = src.size();
    while (end > 0 && IsWhole(dims_[end - 1], src[end - 1], dst[end - 1])) {
      unit_ *= src[--end].size();
    }
    dims_.resize(end);
    src_strides_.assign(end, unit_);
    dst_strides_.assign(end, unit_);
    for (size_t d = end; d-- > 1;) {
      src_strides_[d - 1] = src_strides_[d] * src[d].size();
      dst_strides_[d - 1] = dst_strides_[d] * dst[d].size();
    }
  }

  absl::Status Run() { return dims_.empty() ? visit_({0, 0, unit_}) : From(0, 0, 0); }

 private:
  static bool IsWhole(const std::vector<RegionRun>& runs, const IndexSet& src,
                      const IndexSet& dst) {
    return runs.size() == 1 && runs[0].length == src.size() && runs[0].length == dst.size();
  }

  absl::Status From(size_t d, int64_t src, int64_t dst) {
    for (const RegionRun& run : dims_[d]) {
      if (d + 1 == dims_.size()) {
        DT_RETURN_IF_ERROR(
            visit_({src + run.src * unit_, dst + run.dst * unit_, run.length * unit_}));
        continue;
      }
      for (int64_t i = 0; i < run.length; ++i) {
        DT_RETURN_IF_ERROR(From(d + 1, src + (run.src + i) * src_strides_[d],
                                dst + (run.dst + i) * dst_strides_[d]));
      }
    }
    return absl::OkStatus();
  }

  absl::FunctionRef<absl::Status(const RegionRun&)> visit_;
  std::vector<std::vector<RegionRun>> dims_;  // without the trailing complete dimensions
  std::vector<int64_t> src_strides_, dst_strides_;
  int64_t unit_ = 1;  // elements of these trailing dimensions
};

}  // namespace

absl::Status VisitCommonRuns(const Region& src, const Region& dst,
                             absl::FunctionRef<absl::Status(const RegionRun&)> visit) {
  for (size_t d = 0; d < src.size(); ++d) {
    if (src[d].CommonSize(dst[d]) == 0) return absl::OkStatus();
  }
  return Walk(src, dst, visit).Run();
}

}  // namespace dtensor
