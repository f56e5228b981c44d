#include "dtensor/runtime/kernels/cuda/attention_flash.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention_flash-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_forward-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Up to 16 rows are shared by all warps.
template <typename In, int kDim, bool kFewRows, bool kWarpgroups>
using ForwardTiles = std::conditional_t<kWarpgroups && !kFewRows, WarpgroupTiles<In, kDim>,
                                        FlashTiles<In, kDim, kFewRows ? 1 : 2, kFewRows>>;
// The blocks of an SM at a time. Three take turns with its tensor cores: products of one run while
// the others compute weights.
template <typename Tiles>
inline constexpr int kForwardBlocks = Tiles::kShareRows || Tiles::kIsWarpgroup ? 3 : kTileBlocks;

// A block's queries, in packs; and slots that hold in turn a tile's keys, its values, the next
// tile's keys, and so on: one slot is in use while two are being filled.
template <typename Tiles>
struct alignas(kPanelAlignment) ForwardMemory {
  using In = typename Tiles::In;
  In q[Tiles::kRows * Tiles::kDim];
  In columns[3][Tiles::kTile * Tiles::kDim];

  static __device__ int Next(int slot) { return slot == 2 ? 0 : slot + 1; }
};

// Flips the sign of each element.
template <typename In, int kN>
__device__ void Negate(In* elements) {
  for (int i = threadIdx.x; i < kN; i += kTileThreads) elements[i].bits ^= 0x8000;
}

// Turns scores into weights, relative to a score of the row that no other exceeds by more than
// kSlack. So weights are at most 2^kSlack, and sums seldom have to be rescaled to another score,
// which takes an eighth of this kernel's instructions. `scale` > 0. Each lane sums its own weights.
constexpr float kSlack = 8;
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
    const float scaled = top[r] * scale;
    const float chosen = scaled > rows.max[r] + kSlack ? scaled : rows.max[r];
    shift[r] = chosen == Lowest<float>() ? 0 : chosen;  // -inf - -inf is NaN
    kept[r] = QuickExp2(rows.max[r] - shift[r]);
    rows.max[r] = chosen;
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

// Joins the results of warps that share rows, in the warps' order; the first warp then has all.
// `memory` holds each number of all lanes side by side.
template <typename Tiles>
__device__ void JoinWarps(ForwardRows<Tiles>& rows, float* memory) {
  constexpr int kRows = Tiles::kRowsOfLane, kValues = Tiles::kDim / Tiles::kLanesOfRow;
  static_assert(kTileWarps * kRows * (2 + kValues) * kWarp * sizeof(float) <=
                sizeof(ForwardMemory<Tiles>::columns));
  const auto at = [&](int warp, int r) {
    return memory + (warp * kRows + r) * (2 + kValues) * kWarp + LaneOf();
  };
  __syncthreads();  // all threads have stopped using the memory
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float* const to = at(WarpOf(), r);
    to[0] = rows.max[r];
    to[kWarp] = rows.sum[r];
#pragma unroll
    for (int e = 0; e < kValues; ++e) to[(2 + e) * kWarp] = rows.values.at[r][e];
  }
  __syncthreads();
  if (WarpOf() != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int warp = 1; warp < kTileWarps; ++warp) rows.max[r] = fmaxf(rows.max[r], at(warp, r)[0]);
    const float shift = rows.max[r] == Lowest<float>() ? 0 : rows.max[r];
    rows.sum[r] = 0;
#pragma unroll
    for (float& value : rows.values.at[r]) value = 0;
    for (int warp = 0; warp < kTileWarps; ++warp) {
      const float* const from = at(warp, r);
      const float kept = QuickExp2(from[0] - shift);
      rows.sum[r] = fmaf(from[kWarp], kept, rows.sum[r]);
#pragma unroll
      for (int e = 0; e < kValues; ++e) {
        rows.values.at[r][e] = fmaf(from[(2 + e) * kWarp], kept, rows.values.at[r][e]);
      }
    }
  }
}

// Each block computes some queries of one head, for a part of the keys.
template <typename Tiles, bool kWide>
__global__ void __launch_bounds__(kTileThreads, kForwardBlocks<Tiles>)
    FlashKernel(const __grid_constant__ StepRule step, const __grid_constant__ KeyParts parts,
                const __grid_constant__ TileOrder order) {
  if constexpr (Tiles::kIsWarpgroup && !kHasWarpgroups) return;
  using In = typename Tiles::In;
  using Memory = ForwardMemory<Tiles>;
  constexpr int kRows = Tiles::kRows, kTile = Tiles::kTile;
  DT_LARGE_SHARED(Memory, memory);
  RowCopies<In, Tiles::kDim> copies;
  const AttentionSizes& sizes = step.sizes;
  const ForwardBlock block(step, parts, order.At(blockIdx.x), kRows, kTile);
  const int dim = static_cast<int>(sizes.dim);
  const float scale = static_cast<float>(fabs(sizes.scale) * kLog2E);
  const bool has_rows = Tiles::kIsWarpgroup || Tiles::FirstRow() < block.count;
  const auto tile_of = [&](const AttentionOperand& x, int64_t key) {
    return TileRows<In>(x, block.batch, block.kv_head, key, Lesser(kTile, sizes.keys - key));
  };
  ForwardRows<Tiles> rows(step, parts, block, 0);
  if (LaneOf() % Tiles::kLanesOfRow != 0) {  // only one lane keeps what was carried
#pragma unroll
    for (float& sum : rows.sum) sum = 0;
  }
  const auto begin_tile = [&](const AttentionOperand& x, int64_t key, int slot) {
    if (key < block.end) copies.template Begin<kTile>(tile_of(x, key), dim, memory.columns[slot]);
    copies.Commit();
  };
  if (block.begin < block.end) {
    const TileRows<In> queries(step.operands.q, block.batch, block.head, block.first, block.count);
    copies.template Begin<kRows>(queries, dim, memory.q);
    begin_tile(step.operands.k, block.begin, 0);
    begin_tile(step.operands.v, block.begin, 1);
    if (sizes.scale < 0) {
      copies.Meet();
      Negate<In, kRows * Tiles::kDim>(memory.q);
    }
  }
  int k = 0;
  for (int64_t key = block.begin; key < block.end; key += kTile) {
    const int v = Memory::Next(k), next_k = Memory::Next(v);
    copies.MeetButLast();
    begin_tile(step.operands.k, key + kTile, next_k);
    typename Tiles::Scores scores;
    if (has_rows) Tiles::Score(memory.q, memory.columns[k], dim, scores);
    copies.MeetButLast();
    begin_tile(step.operands.v, key + kTile, k);
    k = next_k;
    if (!has_rows) continue;
    if (!block.SeesAll(key, kTile)) rows.Hide(key + Tiles::FirstColumn(), scores);
    Weigh(scale, scores, rows);
    Tiles::template Gather<kWide ? 2 : 1>(scores, memory.columns[v], dim, rows.values);
  }
  if (!has_rows) return;
#pragma unroll
  for (float& sum : rows.sum) sum = SumLanes<Tiles::kLanesOfRow>(sum);
  if constexpr (Tiles::kShareRows) {
    JoinWarps(rows, reinterpret_cast<float*>(memory.columns));
    if (WarpOf() != 0) return;
  }
  rows.Store();
  rows.StoreStatistics();
}

template <typename Tiles, bool kWide>
absl::Status LaunchFlash(Device& device, const char* kernel, const StepRule& step,
                         const KeyParts& parts) {
  using Memory = ForwardMemory<Tiles>;
  static_assert(kKeysOfPart % Tiles::kTile == 0);
  const auto order = TileOrder::OfQueries(step.sizes, Tiles::kRows);
  dim3 blocks = order.blocks();
  blocks.z = static_cast<unsigned>(parts.count);
  return LaunchLarge<Memory>(device, kernel, blocks, kTileThreads, FlashKernel<Tiles, kWide>, step,
                             parts, order);
}

}  // namespace

absl::Status FlashForward(Device& device, const char* kernel, const StepRule& step,
                          const KeyParts& parts) {
  return WithConstant(step.sizes.dtype == DType::kBF16, [&](auto is_bf16) {
    using In = std::conditional_t<is_bf16, BFloat16, Float16>;
    const bool few = parts.is_split() && step.sizes.q_rows <= 16;
    return WithConstant(few, [&](auto has_few) {
      return WithWarpgroups(device, [&](auto has_warpgroups) {
        return WithFlashStep(device, kernel, step,
                             [&](auto features, auto is_wide, const StepRule& aligned) {
                               using Tiles = ForwardTiles<In, features, has_few, has_warpgroups>;
                               return LaunchFlash<Tiles, is_wide>(device, kernel, aligned, parts);
                             });
      });
    });
  });
}

}  // namespace dtensor::kernels::cuda
