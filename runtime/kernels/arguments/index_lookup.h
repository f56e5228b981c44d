// From a global index to its position in an IndexSet.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor::kernels {

// The runs of a set beside the position where each begins. Linear in the runs, of which there are
// few.
class IndexLookup {
 public:
  explicit IndexLookup(const IndexSet& set) {
    int64_t position = 0;
    for (const IndexRun& run : set.runs()) {
      entries_.push_back({run, position});
      position += run.size();
    }
  }

  // The position of `index`, or -1 where the set lacks it.
  int64_t Position(int64_t index) const {
    for (const auto& [run, position] : entries_) {
      if (index < run.begin) return -1;
      if (index >= run.end()) continue;
      const int64_t offset = index - run.begin;
      if (run.count == 1) return position + offset;
      const int64_t j = offset / run.stride, i = offset % run.stride;
      return i < run.length ? position + j * run.length + i : -1;
    }
    return -1;
  }

 private:
  struct Entry {
    IndexRun run;
    int64_t position;
  };
  absl::InlinedVector<Entry, 2> entries_;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEX_LOOKUP_H_
