// Tiles whose products are computed by tensor cores (matrix-inl.h), for BFloat16 or Float16: see
// attention_tile-inl.h. Products are summed in f32. Weights are multiplied with other columns in
// the operands' type: rounded, or, for results in f32, as a sum of two.
//
// Shared memory is divided into packs of 8 features. Row r stores pack p at p ^ r % 8, so that
// packs at one p of eight rows are in different banks.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/async_copy-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/matrix-inl.h"

namespace dtensor::kernels::cuda {

// The position of a row's pack in shared memory, relative to the first row's first element. A pack
// that is an even number of packs further on is at this ^ the number of features between.
template <typename In, int kRowSize>
__device__ int PackAt(int row, int pack) {
  return row * kRowSize + (pack ^ row % 8) * kPack<In>;
}

// c[:, at : at + 16] += a b of a group of 16 rows, of the two b in a part. c has what a lane has of
// a warp's rows.
template <typename In, int kRows, int kN>
__device__ void MultiplyGroup(const MatrixPart& a, const MatrixPart& b, int group, int at,
                              float (&c)[kRows][kN]) {
  float(&low)[kN] = c[2 * group], (&high)[kN] = c[2 * group + 1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int e = at / 4 + 2 * i;
    MultiplyAdd<In>(a, b.at[2 * i], b.at[2 * i + 1], low[e], low[e + 1], high[e], high[e + 1]);
  }
}

// Weights of kGroups times 16 rows as the left operand of products: rounded, and, with two parts,
// also the rounding error.
template <int kParts, int kGroups, int kColumns>
struct LeftWeights {
  MatrixPart at[kParts][kGroups][kColumns / 16];
};
template <typename In, int kParts, int kRows, int kN>
__device__ LeftWeights<kParts, kRows / 2, 4 * kN> LeftOf(const float (&weights)[kRows][kN]) {
  constexpr int kGroups = kRows / 2, kColumns = 4 * kN;
  LeftWeights<kParts, kGroups, kColumns> left;
#pragma unroll
  for (int e = 0; e < kGroups * kColumns / 4; ++e) {
    const int i = e % 4, g = e / 4 % kGroups, n = e / 4 / kGroups;
    float first = weights[2 * g + i % 2][4 * n + i / 2 * 2];
    float second = weights[2 * g + i % 2][4 * n + i / 2 * 2 + 1];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t pair = RoundPair<In>(first, second);
      left.at[part][g][n].at[i] = pair;
      if (part + 1 == kParts) break;
      first -= ElementOf<In>(pair, 0);
      second -= ElementOf<In>(pair, 1);
    }
  }
  return left;
}

// A warp has kGroups times 16 rows. Of each 8 columns, or features, a lane has two neighbours, in
// rows g and g + 8 of each group, as matrix-inl.h says of c.
template <typename In_, int kGroups, int kColumns_, int kWindow_>
struct MatrixTiles {
  using In = In_;
  using T = float;
  static constexpr int kColumns = kColumns_, kWindow = kWindow_, kMostWindow = 2;
  static constexpr int kRowsOfLane = 2 * kGroups, kLanesOfRow = 4;
  static constexpr int kColumnsOfLane = kColumns / kLanesOfRow;
  static constexpr int kRowsOfWarp = 16 * kGroups, kRows = kTileWarps * kRowsOfWarp;
  static constexpr int kChunk = kWindow * kFeatures, kPacks = kChunk / kPack<In>;

  template <int kSlots>
  struct alignas(16) Memory {
    In rows[kSlots][kRows * kChunk];
    In columns[2][kColumns * kChunk];
  };
  struct Scores {
    float at[kRowsOfLane][kColumnsOfLane];
  };
  struct Sums {
    float at[kRowsOfLane][kChunk / kLanesOfRow];
    static __device__ int FeatureOf(int e) { return ColumnOf(e); }
  };

  template <int kSlots>
  explicit __device__ MatrixTiles(Memory<kSlots>& memory) {
    static_assert(kSlots <= 2 && sizeof(memory) <= 48 << 10);
    for (int slot = 0; slot < kSlots; ++slot) rows_[slot] = memory.rows[slot];
    for (int slot = 0; slot < 2; ++slot) columns_[slot] = memory.columns[slot];
  }

  static __device__ int RowOf(int r) { return WarpOf() * kRowsOfWarp + LaneOf() / 4 + 8 * r; }
  static __device__ int ColumnOf(int c) { return c / 2 * 8 + LaneOf() % 4 * 2 + c % 2; }

  template <int kSlot>
  __device__ void Score(const TileRows<In>& rows, const TileRows<In>& columns, int64_t dim,
                        const TileRows<In>& next, Scores& scores) {
    Clear(scores.at);
    const int lane = LaneOf();
    const In* const a = rows_[kSlot] + WarpOf() * kRowsOfWarp * kChunk;
    const int a_at = At(lane % 16, lane / 16);
    const int b_at = At(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    for (int64_t begin = 0; begin < dim; begin += kChunk) {
      Bring<kSlot>(&rows, columns, begin, dim, next);
#pragma unroll 1
      for (int half = 0; half < kChunk && begin + half < dim; half += kFeatures) {
        ForEachPart(dim - begin - half, [&](int f) {
          MatrixPart left[kGroups];
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            left[g] = LoadMatrices(a + g * 16 * kChunk + half + (a_at ^ f));
          }
          const In* const b = columns_[kSlot] + half + (b_at ^ f);
#pragma unroll
          for (int n = 0; n < kColumns; n += 16) {
            const MatrixPart right = LoadMatrices(b + n * kChunk);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) MultiplyGroup<In>(left[g], right, g, n, scores.at);
          }
        });
      }
    }
  }

  template <int kSlot>
  __device__ void Gather(const Scores& weights, const TileRows<In>& columns, int64_t window,
                         int64_t dim, bool precise, const TileRows<In>& next, Sums& sums) {
    Bring<kSlot>(nullptr, columns, window, dim, next);
    __syncwarp();  // lanes that took different branches for weights join again
    if (precise) {
      AddProducts<kSlot, 2>(weights, dim - window, sums);
    } else {
      AddProducts<kSlot, 1>(weights, dim - window, sums);
    }
  }

 private:
  template <int kSlot, int kParts>
  __device__ void AddProducts(const Scores& weights, int64_t features, Sums& sums) const {
    const auto left = LeftOf<In, kParts>(weights.at);
    const int lane = LaneOf(), b_at = At(lane % 16, lane / 16);
#pragma unroll
    for (int half = 0; half < kChunk; half += kFeatures) {
      ForEachPart(features - half, [&](int f) {
        const In* const b = columns_[kSlot] + half + (b_at ^ f);
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          const MatrixPart right = LoadTransposed(b + n * 16 * kChunk);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
              MultiplyGroup<In>(left.at[part][g][n], right, g, half + f, sums.at);
            }
          }
        }
      });
    }
  }

  static __device__ int At(int row, int pack) { return PackAt<In, kChunk>(row, pack); }

  // Calls fn(f) for each part of 16 features, among kFeatures, that exists in `features`.
  template <typename Fn>
  static __device__ void ForEachPart(int64_t features, Fn fn) {
    if (features >= kFeatures) {  // without branches in between
#pragma unroll
      for (int f = 0; f < kFeatures; f += 16) fn(f);
    } else {
#pragma unroll
      for (int f = 0; f < kFeatures; f += 16) {
        if (f < features) fn(f);
      }
    }
  }

  // Brings a chunk of features from `begin` on, of rows (unless null) and of columns, into the
  // slot, except what is already there (known by its address). Then, if heads have one chunk,
  // begins to bring `next` to the other slot's columns, which no thread reads any more.
  template <int kSlot>
  __device__ void Bring(const TileRows<In>* rows, const TileRows<In>& columns, int64_t begin,
                        int64_t dim, const TileRows<In>& next) {
    const bool needs_rows = rows != nullptr && rows_from_[kSlot] != rows->data + begin;
    const bool needs_columns = columns_from_[kSlot] != columns.data + begin;
    if (needs_rows || needs_columns) {
      copies_.Wait();
      __syncthreads();
    }
    if (needs_rows) Begin<kSlot, kRows>(*rows, begin, dim, rows_[kSlot], rows_from_[kSlot]);
    if (needs_columns) BeginColumns<kSlot>(columns, begin, dim);
    const bool has_next = next.count > 0 && dim <= kChunk;
    if (is_there_[kSlot] && !has_next) return;
    copies_.Wait();
    __syncthreads();
    is_there_[0] = is_there_[1] = true;
    if (has_next) BeginColumns<1 - kSlot>(next, 0, dim);
  }

  template <int kSlot>
  __device__ void BeginColumns(const TileRows<In>& columns, int64_t begin, int64_t dim) {
    Begin<kSlot, kColumns>(columns, begin, dim, columns_[kSlot], columns_from_[kSlot]);
  }

  // kN rows of `to`, in packs; zeros beyond the end, up to a multiple of 16 features.
  template <int kSlot, int kN>
  __device__ void Begin(const TileRows<In>& from, int64_t begin, int64_t dim, In* to,
                        const In*& is_from) {
    is_from = from.data + begin;
    is_there_[kSlot] = false;
    const int feature = threadIdx.x % kPacks * kPack<In>;
    const int n = static_cast<int>(Lesser(dim - begin, kChunk));
    if (feature >= (n + 15) / 16 * 16) return;
    const int there = feature < n ? (n - feature < kPack<In> ? n - feature : kPack<In>) : 0;
    constexpr int kRowsAtOnce = kTileThreads / kPacks;
    static_assert(kN % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const int row = threadIdx.x / kPacks;
    const In* source = is_from + row * from.stride + feature;
    In* const pack = to + At(row, feature / kPack<In>);
    const int rows = static_cast<int>(from.count);
    const auto count_of = [&](int i) { return row + i * kRowsAtOnce < rows ? there : 0; };
    if (FitsPacks<kPack<In>>(is_from, 1) && from.stride % kPack<In> == 0) {
#pragma unroll
      for (int i = 0; i < kN / kRowsAtOnce; ++i, source += kRowsAtOnce * from.stride) {
        copies_.Begin(source, pack + i * kRowsAtOnce * kChunk, count_of(i) * sizeof(In));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kN / kRowsAtOnce; ++i, source += kRowsAtOnce * from.stride) {
        *reinterpret_cast<Pack<In, kPack<In>>*>(pack + i * kRowsAtOnce * kChunk) =
            LoadPack<kPack<In>>(source, 1, false, 0, count_of(i), In{});
      }
    }
  }

  In *rows_[2], *columns_[2];
  const In *rows_from_[2] = {}, *columns_from_[2] = {};
  // Whether what was begun for a slot is complete, for all threads.
  bool is_there_[2] = {true, true};
  AsyncCopies copies_;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_
