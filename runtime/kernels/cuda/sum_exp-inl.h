// The largest element of a row, and the sum of exp(x - max): of softmax and of cross-entropy.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_

#include <cstdint>
#include <limits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

template <typename C>
constexpr C kLowest = -std::numeric_limits<C>::infinity();

// exp(x - max) added up over what was seen so far, and the sum of x.
template <typename C>
struct RunningStats {
  C max = kLowest<C>, sum_exp = 0, sum = 0;

  // What is subtracted: exp(-inf) is 0, whatever the largest is, but for -inf - -inf.
  static __device__ C Base(C max) { return max == kLowest<C> ? C{0} : max; }
  __device__ void Rescale(C larger) {
    if (larger != max) sum_exp *= exp(max - Base(larger));
    max = larger;
  }
};

// NaN is passed over.
template <typename C>
__device__ C LargerNumber(C a, C b) {
  return b > a ? b : a;
}

// Of a lane's part of a row. Which elements these are, and their order, do not depend on strides
// and addresses: the same row gives the same bits.
template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsOfLane(const T* row, int64_t stride, int64_t n, int lane) {
  using C = Compute<T>;
  constexpr int V = 16 / sizeof(T);
  const T lowest = Round<T>(kLowest<C>);
  const bool fits = FitsPacks<V>(row, stride);
  RunningStats<C> stats;
  for (int64_t i = int64_t{lane} * V; i < n; i += int64_t{kLanes} * V) {
    const Pack<T, V> pack = LoadPack<V>(row, stride, fits, i, n, lowest);
    C larger = stats.max;
    for (int v = 0; v < V; ++v) larger = LargerNumber(larger, Widen(pack.at[v]));
    stats.Rescale(larger);
    const C base = stats.Base(larger);
    for (int v = 0; v < V; ++v) {
      const C x = Widen(pack.at[v]);
      stats.sum_exp += exp(x - base);
      if (i + v < n) stats.sum += x;
    }
  }
  return stats;
}

// Complete in each lane.
template <int kLanes, typename C>
__device__ void MergeLanes(bool with_sum, RunningStats<C>& stats) {
  const auto add = [](C a, C b) { return a + b; };
  stats.Rescale(FoldLanes<kLanes>(stats.max, [](C a, C b) { return LargerNumber(a, b); }));
  stats.sum_exp = FoldLanes<kLanes>(stats.sum_exp, add);
  if (with_sum) stats.sum = FoldLanes<kLanes>(stats.sum, add);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_
