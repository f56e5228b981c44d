// Sums over rows for each column: the gradients of what rows share.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// N sums for each of n columns, beside each other.
template <typename T, int N>
struct ColumnOutputs {
  T* at[N];
};
// Of a row, for the columns of a pack.
template <typename T, int N>
struct ColumnTerms {
  Compute<T> at[N][kPack<T>];
};

namespace internal {

// Of each part of the rows: partial[(part * N + k) * n + column]; of one part, the results. A
// thread for each part of a pack of columns.
template <typename T, int N, typename Term>
__global__ void PartColumnsKernel(Term term, int64_t rows, int64_t part, int64_t parts, int64_t n,
                                  Compute<T>* partial, ColumnOutputs<T, N> out) {
  constexpr int V = kPack<T>;
  const int64_t packs = (n + V - 1) / V;
  ForEachPiece<int64_t>(parts * packs, [&](int64_t piece) {
    const int64_t p = piece / packs, column = piece % packs * V;
    ColumnTerms<T, N> sums = {};
    for (int64_t r = p * part; r < Lesser((p + 1) * part, rows); ++r) {
      const ColumnTerms<T, N> one = term(r, column);
      for (int k = 0; k < N; ++k) {
        for (int v = 0; v < V; ++v) sums.at[k][v] += one.at[k][v];
      }
    }
    for (int k = 0; k < N; ++k) {
      for (int v = 0; v < V && column + v < n; ++v) {
        if (parts == 1) {
          out.at[k][column + v] = Round<T>(sums.at[k][v]);
        } else {
          partial[(p * N + k) * n + column + v] = sums.at[k][v];
        }
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

// out.at[k][column + v] = the sum of term(row, column).at[k][v] over rows, ascending in parts that
// depend on rows, n and T alone. `term` is a plain value, and is asked for whole packs of columns;
// what it gives for those beyond n does not matter.
template <typename T, int N, typename Term>
absl::Status SumColumns(Device& device, const char* name, int64_t rows, int64_t n, const Term& term,
                        const ColumnOutputs<T, N>& out) {
  constexpr int64_t kLeast = 64, kMost = 1 << 19;  // rows of a part; parts of all columns
  if (n == 0) return device.failure();
  const int64_t room = kCudaScratchBytes / static_cast<int64_t>(sizeof(Compute<T>)) / (N * n);
  const int64_t parts =
      std::max<int64_t>(std::min({(rows + kLeast - 1) / kLeast, kMost / n, room}), 1);
  const int64_t part = std::max<int64_t>((rows + parts - 1) / parts, 1);
  const int64_t packs = (n + kPack<T> - 1) / kPack<T>;
  auto* const partial = static_cast<Compute<T>*>(CudaScratchOf(device));
  DT_RETURN_IF_ERROR(Launch(device, name, BlocksFor(parts * packs), kThreads,
                            internal::PartColumnsKernel<T, N, Term>, term, rows, part, parts, n,
                            partial, out));
  if (parts == 1) return absl::OkStatus();
  return Launch(device, name, BlocksFor(N * n), kThreads, internal::AllColumnsKernel<T, N>,
                static_cast<const Compute<T>*>(partial), parts, n, out);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_
