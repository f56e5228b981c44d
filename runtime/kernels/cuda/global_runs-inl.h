// The global indices of a shard's elements, on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_GLOBAL_RUNS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_GLOBAL_RUNS_INL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/global_runs.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"

namespace dtensor::kernels::cuda {

// A global row-major index, and how many elements of the shard, including this one, have
// consecutive indices from there on.
struct GlobalPlace {
  int64_t index, consecutive;
};

// GlobalRuns as a flat kernel argument.
struct GlobalElements {
  static constexpr int kMaxDims = 32, kNear = 8;

  // The place of the shard's i-th element, row-major.
  __device__ GlobalPlace At(int64_t i) const {
    if (ndim == 0) return {i, whole - i};
    const int64_t outermost = Divide(i, whole), within = i - outermost * whole;
    int64_t rest = outermost, global = 0, scale = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? Divide(rest, size[d]) : 0, position = rest - outer * size[d];
      int64_t r = first[d];
      while (r + 1 < first[d + 1] && runs[r + 1].position <= position) ++r;
      global += runs[r].At(position) * scale;
      scale *= global_size[d];
      rest = outer;
    }
    return {global * whole + within, whole - within};
  }

  List<PlacedRun, kNear> runs;  // dimension d has those from first[d] to first[d + 1]
  int ndim;
  int first[kMaxDims + 1];
  int64_t size[kMaxDims], global_size[kMaxDims];  // here; of the whole tensor
  int64_t whole;                                  // of the dimensions that are complete here
};

// Calls launch(elements), which launches a kernel that reads them. Errors: as WithList.
template <typename Fn>
absl::Status WithGlobalElements(Device& device, const char* name, const GlobalRuns& shard,
                                Fn launch) {
  GlobalElements elements = {};
  std::vector<PlacedRun> runs;
  for (const IndexSet& indices : shard.region()) {
    const IndexLookup lookup(indices);
    elements.size[elements.ndim] = indices.size();
    elements.global_size[elements.ndim] = shard.shape()[elements.ndim];
    runs.insert(runs.end(), lookup.runs().begin(), lookup.runs().end());
    elements.first[++elements.ndim] = static_cast<int>(runs.size());
  }
  elements.whole = shard.whole();
  return WithList<GlobalElements::kNear>(device, name, absl::MakeConstSpan(runs),
                                         [&](const auto& list) {
                                           elements.runs = list;
                                           return launch(elements);
                                         });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_GLOBAL_RUNS_INL_H_
