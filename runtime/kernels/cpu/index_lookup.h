// From a global index to its position in an IndexSet, and ids of either integer type.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_INDEX_LOOKUP_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_INDEX_LOOKUP_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
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

// Row-major ids, i32 or i64.
class Ids {
 public:
  Ids(const void* data, DType dtype) : data_(data), wide_(dtype == DType::kI64) {}
  int64_t operator[](int64_t i) const {
    return wide_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }

 private:
  const void* data_;
  bool wide_;
};

inline absl::Status IdOutOfRange(absl::string_view kernel, absl::string_view what, int64_t id,
                                 int64_t t, int64_t limit) {
  return absl::OutOfRangeError(absl::StrCat(kernel, ": ", what, " ", id, " at position ", t,
                                            " is outside [0, ", limit, ")"));
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_INDEX_LOOKUP_H_
