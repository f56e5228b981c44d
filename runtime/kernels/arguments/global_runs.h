// The global indices of a shard's elements, by which random numbers are keyed.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_GLOBAL_RUNS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_GLOBAL_RUNS_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor::kernels {

// The elements of a shard in row-major order, as runs of consecutive global row-major indices.
class GlobalRuns {
 public:
  GlobalRuns(absl::Span<const IndexSet> region, absl::Span<const int64_t> shape)
      : region_(region.begin(), region.end()), shape_(shape.begin(), shape.end()) {
    // Trailing dimensions that are complete here make the runs longer.
    while (!region_.empty() && region_.back() == IndexSet::Interval(0, shape_.back())) {
      whole_ *= shape_.back();
      region_.pop_back();
      shape_.pop_back();
    }
  }

  int64_t size() const {  // elements of the shard
    int64_t n = whole_;
    for (const IndexSet& indices : region_) n *= indices.size();
    return n;
  }

  // The region and the shape without the trailing dimensions that are complete here, which have
  // whole() elements.
  absl::Span<const IndexSet> region() const { return region_; }
  const Dims& shape() const { return shape_; }
  int64_t whole() const { return whole_; }

  // Calls fn(begin, end) with global indices.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    Visit(0, 0, fn);
  }

 private:
  template <typename Fn>
  void Visit(size_t d, int64_t outer, Fn& fn) const {
    if (d == region_.size()) {
      fn(outer * whole_, (outer + 1) * whole_);
      return;
    }
    for (const IndexRun& run : region_[d].runs()) {
      for (int64_t j = 0; j < run.count; ++j) {
        const int64_t begin = outer * shape_[d] + run.begin + j * run.stride;
        if (d + 1 == region_.size()) {
          fn(begin * whole_, (begin + run.length) * whole_);
          continue;
        }
        for (int64_t i = 0; i < run.length; ++i) Visit(d + 1, begin + i, fn);
      }
    }
  }

  absl::InlinedVector<IndexSet, 4> region_;
  Dims shape_;
  int64_t whole_ = 1;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_GLOBAL_RUNS_H_
