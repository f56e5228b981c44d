// Sums over rows for each column: the gradients of what rows share.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {

// N sums for each of n columns, beside each other.
template <typename T, int N>
struct ColumnOutputs {
  T* at[N];
};
template <typename C, int N>
struct ColumnTerms {
  C at[N];
};

namespace internal {

// Of each part of the rows: partial[(part * N + k) * n + column]; of one part, the results.
template <typename T, int N, typename Term>
__global__ void PartColumnsKernel(Term term, int64_t rows, int64_t part, int64_t parts, int64_t n,
                                  Compute<T>* partial, ColumnOutputs<T, N> out) {
  ForEachPiece<int64_t>(parts * n, [&](int64_t piece) {
    const int64_t p = piece / n, column = piece % n;
    ColumnTerms<Compute<T>, N> sums = {};
    for (int64_t r = p * part; r < Lesser((p + 1) * part, rows); ++r) {
      const ColumnTerms<Compute<T>, N> one = term(r, column);
      for (int k = 0; k < N; ++k) sums.at[k] += one.at[k];
    }
    for (int k = 0; k < N; ++k) {
      if (parts == 1) {
        out.at[k][column] = Round<T>(sums.at[k]);
      } else {
        partial[(p * N + k) * n + column] = sums.at[k];
      }
    }
  });
}

template <typename T, int N>
__global__ void AllColumnsKernel(const Compute<T>* partial, int64_t parts, int64_t n,
                                 ColumnOutputs<T, N> out) {
  ForEachPiece<int64_t>(N * n, [&](int64_t piece) {
    const int64_t k = piece / n, column = piece % n;
    Compute<T> sum = 0;
    for (int64_t p = 0; p < parts; ++p) sum += partial[(p * N + k) * n + column];
    out.at[k][column] = Round<T>(sum);
  });
}

}  // namespace internal

// out.at[k][column] = the sum of term(row, column).at[k] over rows, ascending in parts that depend
// on rows and n alone. `term` is a plain value.
template <typename T, int N, typename Term>
absl::Status SumColumns(Device& device, const char* name, int64_t rows, int64_t n, const Term& term,
                        const ColumnOutputs<T, N>& out) {
  constexpr int64_t kLeast = 64, kMost = 1 << 17;  // rows of a part; parts of all columns
  if (n == 0) return device.failure();
  const int64_t room = kCudaScratchBytes / static_cast<int64_t>(sizeof(Compute<T>)) / (N * n);
  const int64_t parts =
      std::max<int64_t>(std::min({(rows + kLeast - 1) / kLeast, kMost / n, room}), 1);
  const int64_t part = std::max<int64_t>((rows + parts - 1) / parts, 1);
  auto* const partial = static_cast<Compute<T>*>(CudaScratchOf(device));
  DT_RETURN_IF_ERROR(Launch(device, name, BlocksFor(parts * n), kThreads,
                            internal::PartColumnsKernel<T, N, Term>, term, rows, part, parts, n,
                            partial, out));
  if (parts == 1) return absl::OkStatus();
  return Launch(device, name, BlocksFor(N * n), kThreads, internal::AllColumnsKernel<T, N>,
                static_cast<const Compute<T>*>(partial), parts, n, out);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_
