// Products of tiles, from which attention's kernels are built.
//
// A block has kRows rows of its own (queries for forward and dq, keys for dk and dv), some for each
// warp, and processes tiles of kColumns other rows. Rows are brought to shared memory in chunks of
// features, so heads may have any size. There are two kinds of tiles, which differ in the elements
// that a lane holds: ScalarTiles, here, and MatrixTiles (attention_matrix-inl.h). Each defines:
//
//   kRowsOfLane, kColumnsOfLane   what a lane has of [kRows, kColumns]: Scores
//   RowOf(r), ColumnOf(c)         the places of its row r and its column c in the tile
//   kLanesOfRow                   adjacent lanes, which share rows
//   Sums                          what it has of [kRows, kWindow * kFeatures]
//   kHasPairs                     exists if sums 2 e and 2 e + 1 are of neighbouring features, and
//                                 the number of features is even
//   Memory<kSlots>                a block's shared memory, where Score is called with kSlots slots
//   Score<slot>                   rows times columns, over all features
//   Gather<slot>                  adds weights times columns to sums, for some features; `precise`:
//                                 with weights precise to 2^-18 at least, not in In's precision
//
// A slot has room for one operand's rows and one operand's columns. The columns that the other slot
// needs next may be brought meanwhile: `next`, with 0 rows for none. All threads of the block call
// Score and Gather.
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

inline constexpr int kTileThreads = 128, kTileWarps = kTileThreads / kWarp;
inline constexpr int kFeatures = 64;
// Blocks per SM at a time: so few that a thread has as many registers as it can address, 255.
inline constexpr int kTileBlocks = 2;

// Rows [first, first + count) of one head of an operand.
template <typename In>
struct TileRows {
  __device__ TileRows(const AttentionOperand& x, int64_t batch, int64_t head, int64_t first,
                      int64_t count)
      : data(static_cast<const In*>(x.data) + batch * x.batch_stride + head * x.head_stride +
             first * x.row_stride),
        stride(x.row_stride),
        count(count) {}
  __device__ TileRows() : data(nullptr), stride(0), count(0) {}
  const In* data;
  int64_t stride, count;
};

__device__ inline int LaneOf() { return threadIdx.x % kWarp; }
__device__ inline int WarpOf() { return threadIdx.x / kWarp; }

// Zeros, in registers: `= {}` for a long array may become a loop, which needs memory.
template <typename T, int kRows, int kN>
__device__ void Clear(T (&values)[kRows][kN]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kN; ++e) values[r][e] = 0;
  }
}

// A lane has one column, and all rows of its warp; for types without tensor cores of their
// precision.
template <typename In_, int kWindow_>
struct ScalarTiles {
  using In = In_;
  using T = Compute<In>;
  static constexpr int kColumns = kWarp, kWindow = kWindow_, kMostWindow = 4;
  static constexpr int kRowsOfLane = 4, kColumnsOfLane = 1, kLanesOfRow = kWarp;
  static constexpr int kRows = kTileWarps * kRowsOfLane;
  // In shared memory, without bank conflicts between lanes.
  static constexpr int kColumnStride = kFeatures + 1;

  template <int kSlots>
  struct Memory {
    T rows[kRows * kFeatures];
    T columns[kColumns * kColumnStride];
    T weights[kRows * kColumns];  // of all columns, by the warp that has the row
  };
  struct Scores {
    T at[kRowsOfLane][kColumnsOfLane];
  };
  // A lane has features `lane`, lane + 32, ...
  struct Sums {
    static constexpr int kEach = kFeatures / kWarp;  // of a chunk
    T at[kRowsOfLane][kWindow * kEach];
    static __device__ int FeatureOf(int e) { return e * kWarp + LaneOf(); }
  };

  template <int kSlots>
  explicit __device__ ScalarTiles(Memory<kSlots>& memory)
      : rows_(memory.rows), columns_(memory.columns), weights_(memory.weights) {}

  static __device__ int RowOf(int r) { return WarpOf() * kRowsOfLane + r; }
  static __device__ int ColumnOf(int) { return LaneOf(); }

  template <int kSlot>
  __device__ void Score(const TileRows<In>& rows, const TileRows<In>& columns, int64_t dim,
                        const TileRows<In>& /*next*/, Scores& scores) {
    Clear(scores.at);
    const T* const a = rows_ + RowOf(0) * kFeatures;
    const T* const b = columns_ + LaneOf() * kColumnStride;
    for (int64_t begin = 0; begin < dim; begin += kFeatures) {
      __syncthreads();
      Load<kRows>(rows, begin, dim, rows_, kFeatures);
      Load<kColumns>(columns, begin, dim, columns_, kColumnStride);
      __syncthreads();
      for (int f = 0; f < kFeatures; ++f) {
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r) {
          scores.at[r][0] = fma(a[r * kFeatures + f], b[f], scores.at[r][0]);
        }
      }
    }
  }

  template <int kSlot>
  __device__ void Gather(const Scores& weights, const TileRows<In>& columns, int64_t window,
                         int64_t dim, bool /*precise*/, const TileRows<In>& /*next*/, Sums& sums) {
    __syncwarp();  // what was gathered before is read
    for (int r = 0; r < kRowsOfLane; ++r) {
      weights_[RowOf(r) * kColumns + LaneOf()] = weights.at[r][0];
    }
    __syncwarp();
    const T* const w = weights_ + RowOf(0) * kColumns;
#pragma unroll
    for (int c = 0; c < kWindow; ++c) {
      const int64_t begin = window + c * kFeatures;
      if (begin >= dim) break;
      __syncthreads();
      Load<kColumns>(columns, begin, dim, columns_, kColumnStride);
      __syncthreads();
      for (int j = 0; j < kColumns; ++j) {
        const T* const b = columns_ + j * kColumnStride + LaneOf();
#pragma unroll
        for (int e = 0; e < Sums::kEach; ++e) {
#pragma unroll
          for (int r = 0; r < kRowsOfLane; ++r) {
            T& sum = sums.at[r][c * Sums::kEach + e];
            sum = fma(w[r * kColumns + j], b[e * kWarp], sum);
          }
        }
      }
    }
  }

 private:
  // Brings features [begin, begin + kFeatures) as kN rows of `to`; zeros beyond the end.
  template <int kN>
  static __device__ void Load(const TileRows<In>& from, int64_t begin, int64_t dim, T* to,
                              int stride) {
    for (int i = threadIdx.x; i < kN * kFeatures; i += kTileThreads) {
      const int row = i / kFeatures, feature = i % kFeatures;
      const bool is_there = row < from.count && begin + feature < dim;
      to[row * stride + feature] =
          is_there ? T(Widen(from.data[row * from.stride + begin + feature])) : T{0};
    }
  }

  T *rows_, *columns_, *weights_;
};

// Calls fn(sum, r, feature) for what a lane holds of the window; `feature` is its index in the
// head.
template <typename Sums, typename Fn>
__device__ void ForEachSum(Sums& sums, int64_t window, int64_t dim, Fn fn) {
#pragma unroll
  for (int r = 0; r < static_cast<int>(std::extent_v<decltype(Sums::at), 0>); ++r) {
#pragma unroll
    for (int e = 0; e < static_cast<int>(std::extent_v<decltype(Sums::at), 1>); ++e) {
      const int64_t feature = window + Sums::FeatureOf(e);
      if (feature < dim) fn(sums.at[r][e], r, feature);
    }
  }
}

// Writes what a lane holds of the window, times factor[r] for its row r, to row_of(r), the address
// of a row's first feature, or null; or adds it to what is there.
template <typename Tiles, typename RowOf,
          typename V = std::remove_pointer_t<std::invoke_result_t<RowOf, int>>>
__device__ void PutSums(const typename Tiles::Sums& sums, int64_t window, int64_t dim,
                        const typename Tiles::T (&factor)[Tiles::kRowsOfLane], bool adds,
                        RowOf row_of) {
  using T = typename Tiles::T;
  using Sums = typename Tiles::Sums;
  constexpr bool kHasPairs = requires { Tiles::kHasPairs; };
  constexpr int kStep = kHasPairs ? 2 : 1;
#pragma unroll
  for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
    V* const row = row_of(r);
    if (row == nullptr) continue;
    const bool fits = reinterpret_cast<uintptr_t>(row + window) % (kStep * sizeof(V)) == 0;
#pragma unroll
    for (int e = 0; e < static_cast<int>(std::extent_v<decltype(Sums::at), 1>); e += kStep) {
      const int64_t feature = window + Sums::FeatureOf(e);
      if (feature >= dim) continue;
      Pack<V, kStep> pack;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const T value = sums.at[r][e + i] * factor[r];
        pack.at[i] = Round<V>(adds ? T(Widen(row[feature + i])) + value : value);
      }
      StorePack<kStep>(pack, row, fits, feature, dim);
    }
  }
}

// Calls launch(window). As a constant, `window` is the number of chunks of kFeatures features, up
// to kMost, that a block gathers at once: heads of more features take several windows.
template <int kMost, typename Fn>
absl::Status WithWindow(int64_t dim, Fn launch) {
  if (dim <= kFeatures) return launch(std::integral_constant<int, 1>());
  if constexpr (kMost > 2) {
    if (dim > 2 * kFeatures) return launch(std::integral_constant<int, kMost>());
  }
  return launch(std::integral_constant<int, 2>());
}

// A batch entry and a query head, with the key head that it reads.
struct HeadPlace {
  __device__ HeadPlace(int64_t batch, int64_t head, int64_t kv_head)
      : batch(batch), head(head), kv_head(kv_head) {}
  // Query head `y`, counted over all batch entries.
  __device__ HeadPlace(const AttentionSizes& sizes, int64_t y)
      : batch(Divide(y, sizes.q_heads)),
        head(y - batch * sizes.q_heads),
        kv_head(Divide(head, Divide(sizes.q_heads, sizes.kv_heads))) {}
  int64_t batch, head, kv_head;
};

// A block's tile of rows, and its head, counted over all batch entries.
struct BlockPlace {
  int64_t tile, head;
};

// The order in which the blocks of a grid start, by their numbers. First come the longest tiles of
// all heads, then the next longest, and so on: what runs at the end is short, and no head's longest
// tile starts when the others are done. This is done for as many heads at a time as have their
// other operands in the L2 cache.
class TileOrder {
 public:
  // Tiles of queries: with a causal mask the last rows see most keys, and go first. Heads that
  // share keys are neighbours.
  static TileOrder OfQueries(const AttentionSizes& sizes, int rows) {
    return {sizes.q_rows,
            rows,
            sizes.batch * sizes.q_heads,
            sizes.keys * BytesOfRow(sizes),
            sizes.q_heads / sizes.kv_heads,
            true};
  }
  // Tiles of keys: most rows see the first ones.
  static TileOrder OfKeys(const AttentionSizes& sizes, int rows) {
    const int64_t queries = sizes.q_rows * (sizes.q_heads / sizes.kv_heads);
    return {sizes.keys, rows, sizes.batch * sizes.kv_heads, queries * BytesOfRow(sizes), 1, false};
  }

  dim3 blocks() const { return dim3(static_cast<unsigned>(tiles_ * heads_)); }
  __device__ BlockPlace At(int64_t block) const {
    const int64_t first = Divide(block, at_once_ * tiles_) * at_once_;
    const int64_t rest = block - first * tiles_;
    const int64_t width = Lesser(at_once_, heads_ - first), n = Divide(rest, width);
    return {last_first_ ? tiles_ - 1 - n : n, first + rest - n * width};
  }

 private:
  // `sharing` neighbours read the same `bytes` of other operands.
  TileOrder(int64_t rows, int rows_of_tile, int64_t heads, int64_t bytes, int64_t sharing,
            bool last_first)
      : tiles_((rows + rows_of_tile - 1) / rows_of_tile),
        heads_(heads),
        at_once_(std::max<int64_t>(kHeldBytes / std::max<int64_t>(bytes, 1), 1) * sharing),
        last_first_(last_first) {}

  static constexpr int64_t kHeldBytes = 32 << 20;  // an A100's L2 has 40 MiB, an H200's 50
  static int64_t BytesOfRow(const AttentionSizes& sizes) {
    return 2 * sizes.dim * SizeOf(sizes.dtype);
  }

  int64_t tiles_, heads_, at_once_;
  bool last_first_;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_TILE_INL_H_
