#include "dtensor/runtime/kernels/cuda/attention_flash.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention_flash-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename In, int kDim>
using ForwardTiles = FlashTiles<In, kDim, 2>;

// A block's queries and a tile of keys and values, in packs.
template <typename In, int kDim>
struct alignas(16) ForwardMemory {
  In q[ForwardTiles<In, kDim>::kRows * kDim];
  In k[ForwardTiles<In, kDim>::kColumns * kDim];
  In v[ForwardTiles<In, kDim>::kColumns * kDim];
};

// The sign of each element, the other way round.
template <typename In, int kN>
__device__ void Negate(In* elements) {
  for (int i = threadIdx.x; i < kN; i += kTileThreads) elements[i].bits ^= 0x8000;
}

// Scores become weights, and what was gathered is made relative to the new maximum. `scale` > 0.
// Each lane adds up its own weights.
template <typename Tiles>
__device__ void Weigh(float scale, typename Tiles::Scores& scores, ForwardRows<Tiles>& rows) {
  constexpr int kRows = Tiles::kRowsOfLane;
  float top[kRows], shift[kRows], kept[kRows], total[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    top[r] = scores.at[r][0];
#pragma unroll
    for (int c = 1; c < Tiles::kColumnsOfLane; ++c) top[r] = fmaxf(top[r], scores.at[r][c]);
  }
  for (int bits = Tiles::kLanesOfRow / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) top[r] = fmaxf(top[r], OtherLane(top[r], bits));
  }
  bool moves = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float larger = fmaxf(top[r] * scale, rows.max[r]);
    shift[r] = larger == Lowest<float>() ? 0 : larger;  // -inf - -inf is NaN
    kept[r] = QuickExp2(rows.max[r] - shift[r]);
    rows.max[r] = larger;
    moves = moves || kept[r] != 1;
    total[r] = 0;
  }
#pragma unroll
  for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      total[r] += scores.at[r][c] = QuickExp2(fmaf(scores.at[r][c], scale, -shift[r]));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows.sum[r] = fmaf(rows.sum[r], kept[r], total[r]);
  if (!__any_sync(0xffffffff, moves)) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (float& value : rows.values.at[r]) value *= kept[r];
  }
}

// A block for 128 queries of one head, and for a part of the keys. Values come while scores are
// computed, and the next keys while values are gathered.
template <typename In, int kDim, bool kWide>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    FlashKernel(const __grid_constant__ StepRule step, const __grid_constant__ KeyParts parts) {
  using Tiles = ForwardTiles<In, kDim>;
  using Memory = ForwardMemory<In, kDim>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_LARGE_SHARED(Memory, memory);
  RowCopies<In, kDim> copies;
  const AttentionSizes& sizes = step.sizes;
  const ForwardBlock block(step, parts, kRows, kColumns);
  const int dim = static_cast<int>(sizes.dim);
  const float scale = static_cast<float>(fabs(sizes.scale) * kLog2E);
  const bool has_rows = WarpOf() * Tiles::kRowsOfWarp < block.count;
  for (int64_t y = blockIdx.y; y < sizes.batch * sizes.q_heads; y += gridDim.y) {
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const int64_t kv_head = head / (sizes.q_heads / sizes.kv_heads);
    const auto tile_of = [&](const AttentionOperand& x, int64_t key) {
      return TileRows<In>(x, batch, kv_head, key, Lesser(kColumns, sizes.keys - key));
    };
    ForwardRows<Tiles> rows(step, parts, batch, head, block.first, 0);
    if (LaneOf() % Tiles::kLanesOfRow != 0) {  // one lane has what was carried
#pragma unroll
      for (float& sum : rows.sum) sum = 0;
    }
    if (block.begin < block.end) {
      const TileRows<In> queries(step.operands.q, batch, head, block.first, block.count);
      copies.template Begin<kRows>(queries, dim, memory.q);
      copies.template Begin<kColumns>(tile_of(step.operands.k, block.begin), dim, memory.k);
      if (sizes.scale < 0) {
        copies.Meet();
        Negate<In, kRows * kDim>(memory.q);
      }
    }
    for (int64_t key = block.begin; key < block.end; key += kColumns) {
      copies.Meet();
      copies.template Begin<kColumns>(tile_of(step.operands.v, key), dim, memory.v);
      typename Tiles::Scores scores;
      if (has_rows) Tiles::Score(memory.q, memory.k, dim, scores);
      copies.Meet();
      if (key + kColumns < block.end) {
        copies.template Begin<kColumns>(tile_of(step.operands.k, key + kColumns), dim, memory.k);
      }
      if (!has_rows) continue;
      if (!block.SeesAll(key, kColumns)) rows.Hide(key, scores);
      Weigh(scale, scores, rows);
      Tiles::template Gather<kWide ? 2 : 1>(scores, memory.v, dim, rows.values);
    }
    __syncthreads();  // all have left the memory
    if (!has_rows) continue;
#pragma unroll
    for (float& sum : rows.sum) sum = SumLanes<Tiles::kLanesOfRow>(sum);
    rows.Store();
    rows.StoreStatistics();
  }
}

template <typename In, int kDim, bool kWide>
absl::Status LaunchFlash(Device& device, const char* kernel, const StepRule& step,
                         const KeyParts& parts) {
  using Tiles = ForwardTiles<In, kDim>;
  const AttentionSizes& sizes = step.sizes;
  dim3 blocks = TileBlocks<Tiles>(sizes.q_rows, sizes.batch * sizes.q_heads);
  blocks.z = static_cast<unsigned>(parts.count);
  static_assert(kKeysOfPart % Tiles::kColumns == 0);
  return LaunchLarge<ForwardMemory<In, kDim>>(device, kernel, blocks, kTileThreads,
                                              FlashKernel<In, kDim, kWide>, step, parts);
}

}  // namespace

absl::Status FlashForward(Device& device, const char* kernel, const StepRule& step,
                          const KeyParts& parts) {
  const AttentionSizes& sizes = step.sizes;
  const auto align = [&](const AttentionOperand& x, int64_t heads, int64_t rows) {
    return Align(device, kernel, sizes, x, heads, rows);
  };
  DT_ASSIGN_OR_RETURN(const auto q, align(step.operands.q, sizes.q_heads, sizes.q_rows));
  DT_ASSIGN_OR_RETURN(const auto k, align(step.operands.k, sizes.kv_heads, sizes.keys));
  DT_ASSIGN_OR_RETURN(const auto v, align(step.operands.v, sizes.kv_heads, sizes.keys));
  StepRule aligned = step;
  aligned.operands.q = q.x;
  aligned.operands.k = k.x;
  aligned.operands.v = v.x;
  return WithConstant(sizes.dtype == DType::kBF16, [&](auto is_bf16) {
    using In = std::conditional_t<is_bf16, BFloat16, Float16>;
    return WithConstant(sizes.dim > 64, [&](auto is_large) {
      return WithConstant(sizes.out_dtype != sizes.dtype, [&](auto is_wide) {
        return LaunchFlash < In, is_large ? 128 : 64, is_wide > (device, kernel, aligned, parts);
      });
    });
  });
}

}  // namespace dtensor::kernels::cuda
