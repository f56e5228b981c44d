// Sums in f64 of many terms that a function computes: a few numbers from all elements.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_TERM_SUMS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_TERM_SUMS_INL_H_

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// N sums.
template <int N>
struct Sums {
  double at[N];
};

namespace internal {

template <int N>
__device__ Sums<N> FoldSums(Sums<N> sums) {
  for (int k = 0; k < N; ++k) {
    sums.at[k] = FoldLanes<kThreads>(sums.at[k], [](double a, double b) { return a + b; });
  }
  return sums;
}

// A block for each part of the terms: partial[block] is its sums.
template <int N, typename Terms>
__global__ void PartSumsKernel(Terms terms, int64_t n, int64_t part, Sums<N>* partial) {
  Sums<N> sums = {};
  const int64_t begin = blockIdx.x * part, end = Lesser(begin + part, n);
  for (int64_t i = begin + int64_t{threadIdx.x} * Terms::kTerms; i < end;
       i += kThreads * Terms::kTerms) {
    const Sums<N> some = terms(i, end);
    for (int k = 0; k < N; ++k) sums.at[k] += some.at[k];
  }
  sums = FoldSums(sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

template <int N, typename Store>
__global__ void AllSumsKernel(const Sums<N>* partial, int parts, Store store) {
  Sums<N> sums = {};
  for (int p = threadIdx.x; p < parts; p += kThreads) {
    for (int k = 0; k < N; ++k) sums.at[k] += partial[p].at[k];
  }
  sums = FoldSums(sums);
  if (threadIdx.x == 0) store(sums);
}

}  // namespace internal

// On the GPU store(sums) is called once, by one thread, with the sums of n terms. terms(i, end)
// returns the Sums<N> of Terms::kTerms terms from i on, a multiple of that, up to `end`. Both are
// plain values. The order of additions depends on n and Terms::kTerms alone.
template <int N, typename Terms, typename Store>
absl::Status SumTerms(Device& device, const char* name, int64_t n, const Terms& terms,
                      const Store& store) {
  constexpr int64_t kLeast = 16 * kThreads, kMost = 1024;  // terms of a part; parts
  const int64_t parts = std::clamp<int64_t>((n + kLeast - 1) / kLeast, 1, kMost);
  const int64_t part = std::max<int64_t>(PartOf(n, parts, Terms::kTerms), 1);
  auto* const partial = static_cast<Sums<N>*>(CudaScratchOf(device));
  static_assert(kMost * sizeof(Sums<N>) <= kCudaScratchBytes);
  DT_RETURN_IF_ERROR(Launch(device, name, static_cast<unsigned>(parts), kThreads,
                            internal::PartSumsKernel<N, Terms>, terms, n, part, partial));
  return Launch(device, name, 1, kThreads, internal::AllSumsKernel<N, Store>,
                static_cast<const Sums<N>*>(partial), static_cast<int>(parts), store);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_TERM_SUMS_INL_H_
