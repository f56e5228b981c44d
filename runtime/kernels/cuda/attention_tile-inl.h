// Products of tiles, of which attention's kernels are made.
//
// A block has kRows rows of its own (queries forward and for dq, keys for dk and dv), kRowsOfWarp
// of them in each warp, and meets tiles of kColumns others, one for each lane of a warp. Rows come
// into shared memory in chunks of kChunk features, so that heads may have any size.
//
//   ScoreTile    scores[r] of a lane: its column times row r of its warp
//   GatherTile   sums[r] of a lane: weights of row r times all columns, for the features that the
//                lane has: lane, lane + 32, ...
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_TILE_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_TILE_INL_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

inline constexpr int kTileThreads = 128, kRowsOfWarp = 4, kColumns = kWarp, kChunk = 64;
inline constexpr int kRows = kTileThreads / kWarp * kRowsOfWarp;
inline constexpr int kColumnStride = kChunk + 1;  // in shared memory: no two lanes meet in a bank

// A block's shared memory; T is what is computed in.
template <typename T>
struct TileMemory {
  T* rows;     // [kRows, kChunk]
  T* columns;  // [kColumns, kColumnStride]
  T* weights;  // [kRows, kColumns]: of all columns, by the warp that has the row
};
#define DT_TILE_MEMORY(T, memory)                          \
  DT_SHARED(T, memory##_rows, kRows* kChunk);              \
  DT_SHARED(T, memory##_columns, kColumns* kColumnStride); \
  DT_SHARED(T, memory##_weights, kRows* kColumns);         \
  const TileMemory<T> memory = {memory##_rows, memory##_columns, memory##_weights}

// Rows [first, first + count) of one head of an operand.
template <typename In>
struct TileRows {
  __device__ TileRows(const AttentionOperand& x, int64_t batch, int64_t head, int64_t first,
                      int64_t count)
      : data(static_cast<const In*>(x.data) + batch * x.batch_stride + head * x.head_stride +
             first * x.row_stride),
        stride(x.row_stride),
        count(count) {}
  const In* data;
  int64_t stride, count;
};

// Their features [begin, begin + kChunk) as kN rows of `to`; zeros beyond what there is.
template <int kN, typename T, typename In>
__device__ void LoadChunk(const TileRows<In>& from, int64_t begin, int64_t dim, T* to, int stride) {
  for (int i = threadIdx.x; i < kN * kChunk; i += kTileThreads) {
    const int row = i / kChunk, feature = i % kChunk;
    const bool is_there = row < from.count && begin + feature < dim;
    to[row * stride + feature] =
        is_there ? T(Widen(from.data[row * from.stride + begin + feature])) : T{0};
  }
}

__device__ inline int LaneOf() { return threadIdx.x % kWarp; }
// The first row of this thread's warp.
__device__ inline int WarpRow() { return threadIdx.x / kWarp * kRowsOfWarp; }

// All threads of the block call it.
template <typename T, typename In>
__device__ void ScoreTile(const TileMemory<T>& memory, const TileRows<In>& rows,
                          const TileRows<In>& columns, int64_t dim, T (&scores)[kRowsOfWarp]) {
  for (T& score : scores) score = 0;
  const T* const a = memory.rows + WarpRow() * kChunk;
  const T* const b = memory.columns + LaneOf() * kColumnStride;
  for (int64_t begin = 0; begin < dim; begin += kChunk) {
    __syncthreads();
    LoadChunk<kRows>(rows, begin, dim, memory.rows, kChunk);
    LoadChunk<kColumns>(columns, begin, dim, memory.columns, kColumnStride);
    __syncthreads();
    for (int f = 0; f < kChunk; ++f) {
      for (int r = 0; r < kRowsOfWarp; ++r) scores[r] = fma(a[r * kChunk + f], b[f], scores[r]);
    }
  }
}

// The features of a window of kWindow chunks that a lane has.
template <typename T, int kWindow>
struct TileSums {
  static constexpr int kEach = kChunk / kWarp;  // of a chunk
  T at[kRowsOfWarp][kWindow * kEach];

  // Calls fn(sum, r, feature) for each, where `feature` is of the head, at most `dim`.
  template <typename Fn>
  __device__ void ForEach(int64_t window, int64_t dim, Fn fn) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
      for (int e = 0; e < kWindow * kEach; ++e) {
        const int64_t feature = window + e * kWarp + LaneOf();
        if (feature < dim) fn(at[r][e], r, feature);
      }
    }
  }
};

// Adds to the sums. `weights` of this warp's rows are in shared memory. All threads of the block
// call it.
template <typename T, typename In, int kWindow>
__device__ void GatherTile(const TileMemory<T>& memory, const T* weights,
                           const TileRows<In>& columns, int64_t window, int64_t dim,
                           TileSums<T, kWindow>& sums) {
  const T* const w = weights + WarpRow() * kColumns;
#pragma unroll
  for (int c = 0; c < kWindow; ++c) {
    const int64_t begin = window + c * kChunk;
    if (begin >= dim) break;
    __syncthreads();
    LoadChunk<kColumns>(columns, begin, dim, memory.columns, kColumnStride);
    __syncthreads();
    for (int j = 0; j < kColumns; ++j) {
      const T* const b = memory.columns + j * kColumnStride + LaneOf();
#pragma unroll
      for (int e = 0; e < TileSums<T, kWindow>::kEach; ++e) {
        for (int r = 0; r < kRowsOfWarp; ++r) {
          T& sum = sums.at[r][c * TileSums<T, kWindow>::kEach + e];
          sum = fma(w[r * kColumns + j], b[e * kWarp], sum);
        }
      }
    }
  }
}

// Calls launch(window) with the chunks of features that a block gathers at once, as a constant:
// heads of more features take several windows.
template <typename Fn>
absl::Status WithWindow(int64_t dim, Fn launch) {
  if (dim <= kChunk) return launch(std::integral_constant<int, 1>());
  if (dim <= 2 * kChunk) return launch(std::integral_constant<int, 2>());
  return launch(std::integral_constant<int, 4>());
}

// Blocks for all tiles of kRows of `rows` rows, and along y for `others`, which may be any number.
inline dim3 TileBlocks(int64_t rows, int64_t others) {
  return dim3(static_cast<unsigned>((rows + kRows - 1) / kRows),
              static_cast<unsigned>(std::min<int64_t>(others, 65535)));
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_TILE_INL_H_
