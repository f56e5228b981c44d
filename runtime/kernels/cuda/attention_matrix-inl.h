// Tiles whose products tensor cores make (matrix-inl.h), of BFloat16 or Float16: see
// attention_tile-inl.h. Products are summed in f32. Weights meet other columns in the operands'
// type: rounded, or, for results in f32, as a sum of two.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/matrix-inl.h"

namespace dtensor::kernels::cuda {

// A warp has 16 rows. Of each 8 columns, or features, a lane has two neighbours, in rows g and
// g + 8, as matrix-inl.h says of c.
template <typename In_>
struct MatrixTiles {
  using In = In_;
  using T = float;
  static constexpr int kRowsOfLane = 2, kLanesOfRow = 4, kColumnsOfLane = kColumns / kLanesOfRow;
  static constexpr int kRowsOfWarp = 16, kRows = kTileWarps * kRowsOfWarp, kMostWindow = 2;
  static constexpr int kChunk = kMostWindow * kFeatures;
  // 16 bytes more than a multiple of 128: eight rows, from each 16 bytes, meet in no bank.
  static constexpr int kStride = kChunk + 8;

  template <int kSlots>
  struct alignas(16) Memory {
    In rows[kSlots][kRows * kStride];
    In columns[kColumns * kStride];
  };
  struct Scores {
    float at[kRowsOfLane][kColumnsOfLane];
  };
  template <int kWindow>
  struct Sums {
    float at[kRowsOfLane][kWindow * kFeatures / kLanesOfRow];
    static __device__ int FeatureOf(int e) { return ColumnOf(e); }
  };

  template <int kSlots>
  explicit __device__ MatrixTiles(Memory<kSlots>& memory) : columns_(memory.columns) {
    static_assert(kSlots <= 2 && sizeof(memory) <= 48 << 10);
    for (int slot = 0; slot < kSlots; ++slot) rows_[slot] = memory.rows[slot];
  }

  static __device__ int RowOf(int r) { return WarpOf() * kRowsOfWarp + LaneOf() / 4 + 8 * r; }
  static __device__ int ColumnOf(int c) { return c / 2 * 8 + LaneOf() % 4 * 2 + c % 2; }

  template <int kSlot>
  __device__ void Score(const TileRows<In>& rows, const TileRows<In>& columns, int64_t dim,
                        Scores& scores) {
    scores = {};
    const int lane = LaneOf();
    const In* const a_row =
        rows_[kSlot] + (WarpOf() * kRowsOfWarp + lane % 16) * kStride + lane / 16 * 8;
    const In* const b_row = columns_ + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
    for (int64_t begin = 0; begin < dim; begin += kChunk) {
      Bring<kSlot>(&rows, columns, begin, dim);
      const int features = static_cast<int>(Lesser(dim - begin, kChunk));
      for (int f = 0; f < features; f += 16) {
        const MatrixPart a = LoadMatrices(a_row + f);
#pragma unroll
        for (int n = 0; n < kColumns; n += 16) {
          const MatrixPart b = LoadMatrices(b_row + n * kStride + f);
          Multiply(a, b, scores.at, n);
        }
      }
    }
  }

  template <int kWindow>
  __device__ void Gather(const Scores& weights, const TileRows<In>& columns, int64_t window,
                         int64_t dim, bool precise, Sums<kWindow>& sums) {
    Bring<0>(nullptr, columns, window, dim);
    Scores left;
    AddProducts(Rounded(weights, left), window, dim, sums);
    if (precise) AddProducts(Rounded(left, left), window, dim, sums);
  }

 private:
  // Weights as the left operand of products.
  struct Left {
    MatrixPart at[kColumns / 16];
  };
  // `left` is what rounding has lost, and may be `weights`.
  static __device__ Left Rounded(const Scores& weights, Scores& left) {
    Left parts;
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i % 2, column = 4 * n + i / 2 * 2;
        const In first = Round<In>(weights.at[row][column]);
        const In second = Round<In>(weights.at[row][column + 1]);
        left.at[row][column] = weights.at[row][column] - Widen(first);
        left.at[row][column + 1] = weights.at[row][column + 1] - Widen(second);
        parts.at[n].at[i] = PackPair(first, second);
      }
    }
    return parts;
  }

  template <int kWindow>
  __device__ void AddProducts(const Left& weights, int64_t window, int64_t dim,
                              Sums<kWindow>& sums) const {
    const int lane = LaneOf();
    const In* const b_row = columns_ + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
    for (int f = 0; f < kWindow * kFeatures; f += 16) {
      if (window + f >= dim) break;
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        Multiply(weights.at[n], LoadTransposed(b_row + n * 16 * kStride + f), sums.at, f);
      }
    }
  }

  // c[:, at : at + 16] += a b, of the two b in a part.
  template <int kN>
  static __device__ void Multiply(const MatrixPart& a, const MatrixPart& b,
                                  float (&c)[kRowsOfLane][kN], int at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = at / 4 + 2 * i;
      MultiplyAdd<In>(a, b.at[2 * i], b.at[2 * i + 1], c[0][e], c[0][e + 1], c[1][e], c[1][e + 1]);
    }
  }

  // A chunk of features from `begin` on, of rows (unless null) and of columns, but for what is
  // there already: it is known by where it comes from.
  template <int kSlot>
  __device__ void Bring(const TileRows<In>* rows, const TileRows<In>& columns, int64_t begin,
                        int64_t dim) {
    const bool needs_rows = rows != nullptr && rows_from_[kSlot] != rows->data + begin;
    const bool needs_columns =
        columns_from_ != columns.data + begin || columns_stride_ != columns.stride;
    if (!needs_rows && !needs_columns) return;
    __syncthreads();
    if (needs_rows) {
      Load<kRows>(*rows, begin, dim, rows_[kSlot]);
      rows_from_[kSlot] = rows->data + begin;
    }
    if (needs_columns) {
      Load<kColumns>(columns, begin, dim, columns_);
      columns_from_ = columns.data + begin;
      columns_stride_ = columns.stride;
    }
    __syncthreads();
  }

  // kN rows of `to`, in packs; zeros beyond what there is, up to a multiple of 16 features.
  template <int kN>
  static __device__ void Load(const TileRows<In>& from, int64_t begin, int64_t dim, In* to) {
    constexpr int kPacks = kChunk / kPack<In>;
    const int64_t n = Lesser(dim - begin, kChunk);
    const bool fits = FitsPacks<kPack<In>>(from.data + begin, 1) && from.stride % kPack<In> == 0;
    for (int i = threadIdx.x; i < kN * kPacks; i += kTileThreads) {
      const int row = i / kPacks, feature = i % kPacks * kPack<In>;
      if (feature >= (n + 15) / 16 * 16) continue;
      const In* const source = from.data + row * from.stride + begin;
      *reinterpret_cast<Pack<In, kPack<In>>*>(to + row * kStride + feature) =
          LoadPack<kPack<In>>(source, 1, fits, feature, row < from.count ? n : 0, In{});
    }
  }

  In *rows_[2], *columns_;
  const In *rows_from_[2] = {}, *columns_from_ = nullptr;
  int64_t columns_stride_ = 0;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MATRIX_INL_H_
