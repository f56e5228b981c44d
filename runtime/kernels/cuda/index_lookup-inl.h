// Index sets on a GPU, as lists of their runs.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_INDEX_LOOKUP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_INDEX_LOOKUP_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"

namespace dtensor::kernels::cuda {

// A kernel argument.
struct IndexRuns {
  static constexpr int kNear = 4;
  List<PlacedRun, kNear> runs;  // ascending

  // The position of `index`, or -1 if it is not in the set.
  __device__ int64_t PositionOf(int64_t index) const {
    for (int64_t r = 0; r < runs.size; ++r) {
      const int64_t position = runs[r].PositionOf(index);
      if (position >= 0) return position;
    }
    return -1;
  }
  // Requires: the set has that many.
  __device__ int64_t At(int64_t position) const {
    int64_t r = 0;
    while (r + 1 < runs.size && runs[r + 1].position <= position) ++r;
    return runs[r].At(position);
  }
};

// Calls launch(runs), which launches a kernel that reads them. Errors: as WithList.
template <typename Fn>
absl::Status WithIndexRuns(Device& device, const char* name, const IndexLookup& lookup, Fn launch) {
  return WithList<IndexRuns::kNear>(device, name, lookup.runs(),
                                    [&](const auto& runs) { return launch(IndexRuns{runs}); });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_INDEX_LOOKUP_INL_H_
