// The parts of attention's kernels for common head sizes, in the manner of FlashAttention-2 (Dao,
// 2023): tensor core products of up to 128 features, for a whole tile at once. Shared memory stores
// rows in panels of 64 features (warpgroup-inl.h), one after the other.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_INL_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/async_copy-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_rows-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"
#include "dtensor/runtime/kernels/cuda/matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"
#include "dtensor/runtime/kernels/cuda/warpgroup-inl.h"

namespace dtensor::kernels::cuda {

// What a lane holds of a block's rows and of a tile of 64 other rows, laid out as in MatrixTiles. A
// warp has kGroups times 16 rows, and processes the whole tile; or, with kShareRows, the warps have
// the same rows, and a quarter of the tile each. kDim: features, rounded up.
template <typename In_, int kDim_, int kGroups, bool kShareRows_ = false>
struct FlashTiles {
  using In = In_;
  using T = float;
  static constexpr bool kShareRows = kShareRows_, kIsWarpgroup = false, kHasPairs = true;
  static constexpr int kDim = kDim_, kTile = 64, kColumns = kShareRows ? kTile / kTileWarps : kTile;
  static constexpr int kRowsOfLane = 2 * kGroups, kLanesOfRow = 4;
  static constexpr int kColumnsOfLane = kColumns / kLanesOfRow;
  static constexpr int kRowsOfWarp = 16 * kGroups;
  static constexpr int kRows = kShareRows ? kRowsOfWarp : kTileWarps * kRowsOfWarp;

  struct Scores {
    float at[kRowsOfLane][kColumnsOfLane];
  };
  struct Sums {
    float at[kRowsOfLane][kDim / kLanesOfRow];
    static __device__ int FeatureOf(int e) { return ColumnOf(e); }
  };
  // This warp's first row, and first column of a tile.
  static __device__ int FirstRow() { return kShareRows ? 0 : WarpOf() * kRowsOfWarp; }
  static __device__ int FirstColumn() { return kShareRows ? WarpOf() * kColumns : 0; }
  static __device__ int RowOf(int r) { return FirstRow() + LaneOf() / 4 + 8 * r; }
  // The index among this warp's columns.
  static __device__ int ColumnOf(int c) { return c / 2 * 8 + LaneOf() % 4 * 2 + c % 2; }

  // Calls fn(f) for the parts of 16 features; without bounds checks if there are many.
  template <typename Fn>
  static __device__ void ForEachPart(int dim, Fn fn) {
#pragma unroll
    for (int f = 0; f < kDim; f += 16) {
      if (kDim > 64 || f < dim) fn(f);
    }
  }

  // The address of row `row`, in the panel of `feature`, for kN rows in shared memory.
  template <int kN>
  static __device__ const In* PanelOf(const In* rows, int row, int feature) {
    return rows + (feature / kPanelColumns * kN + row) * kPanelColumns;
  }

  // Rows times columns, both in shared memory.
  static __device__ void Score(const In* rows, const In* columns, int dim, Scores& scores) {
    Clear(scores.at);
    const int lane = LaneOf();
    const int a_at = PackAt<In, kPanelColumns>(lane % 16, lane / 16);
    const int b_at = PackAt<In, kPanelColumns>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    ForEachPart(dim, [&](int f) {
      const In* const a = PanelOf<kRows>(rows, FirstRow(), f) + (a_at ^ f % kPanelColumns);
      const In* const b = PanelOf<kTile>(columns, FirstColumn(), f) + (b_at ^ f % kPanelColumns);
      MatrixPart left[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) left[g] = LoadMatrices(a + g * 16 * kPanelColumns);
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        const MatrixPart right = LoadMatrices(b + n * kPanelColumns);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) MultiplyGroup<In>(left[g], right, g, n, scores.at);
      }
    });
  }

  // Scores for two pairs of operands.
  static __device__ void Score(const In* const (&rows)[2], const In* const (&columns)[2], int dim,
                               Scores& first, Scores& second) {
    Score(rows[0], columns[0], dim, first);
    Score(rows[1], columns[1], dim, second);
  }

  // Adds weights times columns; a weight is a sum of kParts numbers of the operands' type.
  template <int kParts>
  static __device__ void Gather(const Scores& weights, const In* columns, int dim, Sums& sums) {
    const auto left = LeftOf<In, kParts>(weights.at);
    const int lane = LaneOf(), b_at = PackAt<In, kPanelColumns>(lane % 16, lane / 16);
    ForEachPart(dim, [&](int f) {
      const In* const b = PanelOf<kTile>(columns, FirstColumn(), f) + (b_at ^ f % kPanelColumns);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        const MatrixPart right = LoadTransposed(b + n * 16 * kPanelColumns);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            MultiplyGroup<In>(left.at[part][g][n], right, g, f, sums.at);
          }
        }
      }
    });
  }
};

// The same with products of a warpgroup: of its 64 rows, and of all kDim features without branches
// in between, since these would wait for the products in flight.
template <typename In_, int kDim_>
struct WarpgroupTiles : FlashTiles<In_, kDim_, 1> {
  using Base = FlashTiles<In_, kDim_, 1>;
  using In = In_;
  using Base::kDim;
  using Base::kRows;
  using Base::kTile;
  using typename Base::Scores;
  using typename Base::Sums;
  static constexpr bool kIsWarpgroup = true;
  static_assert(kRows == 64 && kTile == kPanelColumns);

  static __device__ void Score(const In* rows, const In* columns, int, Scores& scores) {
    Clear(scores.at);
    WarpgroupProducts<In> products;
    products.Begin(scores.at);
    BeginScore(products, rows, columns, scores);
    products.End(scores.at);
  }
  static __device__ void Score(const In* const (&rows)[2], const In* const (&columns)[2], int,
                               Scores& first, Scores& second) {
    Clear(first.at);
    Clear(second.at);
    WarpgroupProducts<In> products;
    products.Begin(first.at, second.at);
    BeginScore(products, rows[0], columns[0], first);
    BeginScore(products, rows[1], columns[1], second);
    products.End(first.at, second.at);
  }

  template <int kParts>
  static __device__ void Gather(const Scores& weights, const In* columns, int, Sums& sums) {
    const auto left = LeftOf<In, kParts>(weights.at);
    WarpgroupProducts<In> products;
    products.Begin(sums.at);
#pragma unroll
    for (int n = 0; n < kTile; n += 16) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int f = 0; f < kDim; f += kPanelColumns) {
          products.MultiplyColumns(left.at[part][0][n / 16],
                                   Base::template PanelOf<kTile>(columns, 0, f), n, sums.at, f);
        }
      }
    }
    products.End(sums.at);
  }

 private:
  static __device__ void BeginScore(WarpgroupProducts<In>& products, const In* rows,
                                    const In* columns, Scores& scores) {
#pragma unroll
    for (int f = 0; f < kDim; f += 16) {
      products.MultiplyRows(Base::template PanelOf<kRows>(rows, 0, f),
                            Base::template PanelOf<kTile>(columns, 0, f), f % kPanelColumns,
                            scores.at, 0);
    }
  }
};

// Copies rows to shared memory, in packs of 8 features. Rows consist of whole packs.
template <typename In, int kDim>
class RowCopies {
 public:
  // Begins to copy kN rows to `to`, with zeros beyond the end.
  template <int kN>
  __device__ void Begin(const TileRows<In>& from, int dim, In* to) {
    constexpr int kPacks = kDim / kPack<In>, kRowsAtOnce = kTileThreads / kPacks;
    static_assert(kN % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const int pack = threadIdx.x % kPacks, row = threadIdx.x / kPacks;
    const int rows = pack * kPack<In> < dim ? static_cast<int>(from.count) : 0;
    const In* source = from.data + row * from.stride + pack * kPack<In>;
    constexpr int kPanelPacks = kPanelColumns / kPack<In>;
    In* const packs = to + pack / kPanelPacks * kN * kPanelColumns +
                      PackAt<In, kPanelColumns>(row, pack % kPanelPacks);
#pragma unroll
    for (int i = 0; i < kN / kRowsAtOnce; ++i, source += kRowsAtOnce * from.stride) {
      copies_.Begin(source, packs + i * kRowsAtOnce * kPanelColumns,
                    row + i * kRowsAtOnce < rows ? 16 : 0);
    }
  }

  __device__ void Commit() { copies_.Commit(); }

  // Waits until what was begun is complete, for all threads, and until all have stopped using the
  // memory that is filled next.
  __device__ void Meet() {
    copies_.Wait();
    PublishShared();
    __syncthreads();
  }
  // Like Meet, but does not wait for the group of the last Commit.
  __device__ void MeetButLast() {
    copies_.WaitButLast();
    PublishShared();
    __syncthreads();
  }

 private:
  AsyncCopies copies_;
};

// If an operand's rows do not begin at multiples of 16 bytes, replaces it by a copy of them, and
// returns the copy's memory.
inline absl::StatusOr<std::optional<Scratch>> Align(Device& device, const char* kernel,
                                                    const AttentionSizes& sizes, int64_t heads,
                                                    int64_t rows, AttentionOperand& x) {
  constexpr int64_t kUnit = 8;  // elements
  if (reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kUnit == 0 &&
      x.head_stride % kUnit == 0 && x.row_stride % kUnit == 0) {
    return std::nullopt;
  }
  const int64_t elements = sizes.batch * rows * heads * sizes.dim;
  DT_ASSIGN_OR_RETURN(Scratch memory, Scratch::Make(device, elements * SizeOf(sizes.dtype)));
  const AttentionOperand copy = RowMajorRows(memory.get(), rows, heads, sizes.dim);
  if (elements > 0) {
    DT_RETURN_IF_ERROR(PutRows(device, kernel,
                               {x, copy, sizes.batch, heads, rows, sizes.dim, /*adds=*/false},
                               sizes.dtype, sizes.dtype));
  }
  x = copy;
  return memory;
}

// Calls fn with whether it `is`, as a constant.
template <typename Fn>
absl::Status WithConstant(bool is, Fn fn) {
  return is ? fn(std::true_type()) : fn(std::false_type());
}

// Whether the driver runs only code that it compiles from PTX, where kernels of a warpgroup are
// empty.
inline bool IsPtxForced() {
  static const bool is_forced = [] {
    const char* const text = std::getenv("CUDA_FORCE_PTX_JIT");
    return text != nullptr && *text == '1';
  }();
  return is_forced;
}

// Calls fn with whether this GPU computes products by warpgroups, as a constant.
template <typename Fn>
absl::Status WithWarpgroups(const Device& device, Fn fn) {
  if constexpr (kWarpgroupsAreCompiled) {
    return WithConstant(CudaCapabilityOf(device) == kWarpgroupCapability && !IsPtxForced(), fn);
  } else {
    return fn(std::false_type());
  }
}

// Calls launch(features, is_wide, step). As constants: the upper bound of features, and whether
// results are wider than operands. The step's operands are aligned.
template <typename Fn>
absl::Status WithFlashStep(Device& device, const char* kernel, StepRule step, Fn launch) {
  const AttentionSizes& s = step.sizes;
  AttentionOperands& x = step.operands;
  DT_ASSIGN_OR_RETURN(const auto q, Align(device, kernel, s, s.q_heads, s.q_rows, x.q));
  DT_ASSIGN_OR_RETURN(const auto dout, Align(device, kernel, s, s.q_heads, s.q_rows, x.dout));
  DT_ASSIGN_OR_RETURN(const auto k, Align(device, kernel, s, s.kv_heads, s.keys, x.k));
  DT_ASSIGN_OR_RETURN(const auto v, Align(device, kernel, s, s.kv_heads, s.keys, x.v));
  return WithConstant(s.dim > 64, [&](auto is_large) {
    constexpr int kDim = is_large ? 128 : 64;
    return WithConstant(s.out_dtype != s.dtype, [&](auto is_wide) {
      return launch(std::integral_constant<int, kDim>(), is_wide, step);
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_INL_H_
