// Sums over rows for each column: the gradients of operands that all rows share.
//
// Rows are split into parts. Within a part they are added in ascending order, in blocks of
// kColumnBlock rows; parts are added by a tree. The order depends only on the number of rows, of
// columns and of sums, and on the type: whichever kernel adds up a part, the sums have the same
// bits.
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

inline constexpr int64_t kColumnBlock = 64;  // rows of one chain of additions

// N sums for each of n columns, beside each other.
template <typename T, int N>
struct ColumnOutputs {
  T* at[N];
};
// The terms of one row, or the sums of several, for the columns of a pack.
template <typename T, int N>
struct ColumnTerms {
  Compute<T> at[N][kPack<T>];

  __device__ void Add(const ColumnTerms& other) {
    for (int k = 0; k < N; ++k) {
      for (int v = 0; v < kPack<T>; ++v) at[k][v] += other.at[k][v];
    }
  }
};

// Which rows belong to which part: part p has those from p * part on; the last part may have fewer.
struct ColumnParts {
  int64_t rows, part, parts;  // no parts if there are no rows
};

// As many parts as keep a GPU busy, and at most as many as scratch has room for. `n` > 0.
template <typename T, int N>
ColumnParts ColumnPartsOf(int64_t rows, int64_t n) {
  constexpr int64_t kLeast = 16;  // rows of a part, so that its sums are few beside them
  constexpr int64_t kOfAllColumns = 1 << 20, kFewest = 256, kMost = 8192;
  const int64_t wanted = std::clamp(kOfAllColumns / n, kFewest, kMost);
  const int64_t room = kCudaScratchBytes / static_cast<int64_t>(sizeof(Compute<T>)) / (N * n);
  const int64_t most = std::max<int64_t>(std::min(wanted, room), 1);
  const int64_t part = std::max((rows + most - 1) / most, kLeast);
  return {rows, part, (rows + part - 1) / part};
}

// On the GPU: calls fn(begin, end) for the blocks of rows of part p, in ascending order.
template <typename Fn>
__device__ void ForEachColumnBlock(const ColumnParts& parts, int64_t p, Fn fn) {
  const int64_t end = Lesser((p + 1) * parts.part, parts.rows);
  for (int64_t begin = p * parts.part; begin < end; begin += kColumnBlock) {
    fn(begin, Lesser(begin + kColumnBlock, end));
  }
}

namespace internal {

// A thread for each part of a pack of columns. With one part, it writes results; with several,
// partial[(p * N + k) * n + column].
template <typename T, int N, typename Term>
__global__ void PartColumnsKernel(const __grid_constant__ Term term, ColumnParts parts, int64_t n,
                                  Compute<T>* partial, ColumnOutputs<T, N> out) {
  constexpr int V = kPack<T>;
  const int64_t packs = (n + V - 1) / V;
  ForEachPiece<int64_t>(parts.parts * packs, [&](int64_t piece) {
    const int64_t p = piece / packs, column = piece % packs * V;
    ColumnTerms<T, N> total = {};
    ForEachColumnBlock(parts, p, [&](int64_t begin, int64_t end) {
      ColumnTerms<T, N> sums = {};
      for (int64_t r = begin; r < end; ++r) term(r, column, sums);
      total.Add(sums);
    });
    for (int k = 0; k < N; ++k) {
      for (int v = 0; v < V && column + v < n; ++v) {
        if (parts.parts == 1) {
          out.at[k][column + v] = Round<T>(total.at[k][v]);
        } else {
          partial[(p * N + k) * n + column + v] = total.at[k][v];
        }
      }
    }
  });
}

// A block of kWarp warps for kWarp adjacent sums: warp w adds the parts p with p % kWarp = w in
// ascending order, and a tree adds the sums of the warps.
template <typename T, int N>
__global__ void AllColumnsKernel(const Compute<T>* partial, int64_t parts, int64_t n,
                                 const __grid_constant__ ColumnOutputs<T, N> out) {
  constexpr int kRow = kWarp + 1;  // so that a column of them is in as many banks
  DT_SHARED(Compute<T>, of_warps, kWarp * kRow);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp, columns = N * n;
  Compute<T> sum = 0;
  if (first + lane < columns) {
    for (int64_t p = warp; p < parts; p += kWarp) sum += partial[p * columns + first + lane];
  }
  of_warps[lane * kRow + warp] = sum;
  __syncthreads();
  sum = SumLanes<kWarp>(of_warps[warp * kRow + lane]);
  const int64_t column = first + warp;
  if (lane == 0 && column < columns) out.at[column / n][column % n] = Round<T>(sum);
}

}  // namespace internal

// out = the sums of all parts, each of which has left its own in scratch:
// partial[(p * N + k) * n + column].
template <typename T, int N>
absl::Status AddColumnParts(Device& device, const char* name, int64_t parts, int64_t n,
                            const ColumnOutputs<T, N>& out) {
  const auto* const partial = static_cast<const Compute<T>*>(CudaScratchOf(device));
  const auto blocks = static_cast<unsigned>((N * n + kWarp - 1) / kWarp);
  return Launch(device, name, blocks, kWarp * kWarp, internal::AllColumnsKernel<T, N>, partial,
                parts, n, out);
}

// out.at[k][column + v] = the sum over rows, in the order described above, of what term(row,
// column, sums) adds to sums.at[k][v]. `term` is a plain value, and is called for whole packs of
// columns; what it adds for columns beyond n is ignored.
template <typename T, int N, typename Term>
absl::Status SumColumns(Device& device, const char* name, int64_t rows, int64_t n, const Term& term,
                        const ColumnOutputs<T, N>& out) {
  if (n == 0) return device.failure();
  const ColumnParts parts = ColumnPartsOf<T, N>(rows, n);
  if (parts.parts > 0) {
    const int64_t packs = (n + kPack<T> - 1) / kPack<T>;
    auto* const partial = static_cast<Compute<T>*>(CudaScratchOf(device));
    DT_RETURN_IF_ERROR(Launch(device, name, BlocksFor(parts.parts * packs), kThreads,
                              internal::PartColumnsKernel<T, N, Term>, term, parts, n, partial,
                              out));
    if (parts.parts == 1) return absl::OkStatus();
  }
  return AddColumnParts<T, N>(device, name, parts.parts, n, out);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_COLUMN_SUMS_INL_H_
