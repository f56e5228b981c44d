// Finds the position of a global index in an IndexSet.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor::kernels {

// A run of a set, with the position at which it begins: a flat value, for code on any device.
struct PlacedRun {
  int64_t begin, end, length, stride;  // as IndexRun's
  int64_t position;

  // The position of `index` in the set, or -1 if it is not in this run.
  constexpr int64_t PositionOf(int64_t index) const {
    if (index < begin || index >= end) return -1;
    const int64_t offset = index - begin;
    if (stride == 0) return position + offset;  // an interval
    const int64_t j = offset / stride, i = offset % stride;
    return i < length ? position + j * length + i : -1;
  }
  // The index at position `place` of the set. Requires: it is in this run.
  constexpr int64_t At(int64_t place) const {
    const int64_t k = place - position;
    if (stride == 0) return begin + k;  // without a division
    return begin + k / length * stride + k % length;
  }
};

// The runs of a set, each with the position at which it begins. Look-ups are linear in the runs, of
// which there are few.
class IndexLookup {
 public:
  explicit IndexLookup(const IndexSet& set) {
    int64_t position = 0;
    for (const IndexRun& run : set.runs()) {
      runs_.push_back({run.begin, run.end(), run.length, run.stride, position});
      position += run.size();
    }
  }

  absl::Span<const PlacedRun> runs() const { return runs_; }  // ascending

  // The position of `index`, or -1 if it is not in the set.
  int64_t Position(int64_t index) const {
    for (const PlacedRun& run : runs_) {
      if (index < run.end) return run.PositionOf(index);
    }
    return -1;
  }

 private:
  absl::InlinedVector<PlacedRun, 2> runs_;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_
