// Gradients of attention_flash.h: a kernel for dq, whose rows are queries, and one for dk and dv,
// whose rows are keys. Each block has 64 rows of two operands, and processes tiles of 64 columns,
// also of two operands. The next tile is loaded while one is computed.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention_flash-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_flash.h"
#include "dtensor/runtime/kernels/cuda/attention_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename In, int kDim, bool kWarpgroups>
using GradTiles =
    std::conditional_t<kWarpgroups, WarpgroupTiles<In, kDim>, FlashTiles<In, kDim, 1>>;

// Of queries: lse, in units of log(2), infinite for rows that do not exist or saw nothing; delta.
template <int kN>
struct QueryStatistics {
  float lse[kN], delta[kN];
};

template <typename Tiles>
struct alignas(kPanelAlignment) GradMemory {
  using In = typename Tiles::In;
  In rows[2][Tiles::kRows * Tiles::kDim];
  In columns[2][2][Tiles::kColumns * Tiles::kDim];  // [slot][operand]
  QueryStatistics<Tiles::kColumns> statistics[2];   // if columns are queries
};

struct QueryStatistic {
  float lse, delta;
};
__device__ QueryStatistic StatisticOf(const StepRule& step, const HeadPlace& at, int64_t query) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (query >= step.sizes.q_rows) return {kNone, 0};
  const float lse = StatisticAt<float>(step.operands.lse, at, query);
  return {lse == -kNone ? kNone : lse * static_cast<float>(kLog2E),
          StatisticAt<float>(step.operands.delta, at, query)};
}

__device__ float ScaleOf(const StepRule& step) {
  return static_cast<float>(step.sizes.scale * kLog2E);
}

// dq: each block computes 64 queries of one head. The rows that see most keys are the last ones of
// a head, and start first.
template <typename Tiles, bool kWide>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    QueryGradKernel(const __grid_constant__ StepRule step,
                    const __grid_constant__ TileOrder order) {
  if constexpr (Tiles::kIsWarpgroup && !kHasWarpgroups) return;
  using In = typename Tiles::In;
  using Memory = GradMemory<Tiles>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_LARGE_SHARED(Memory, memory);
  RowCopies<In, Tiles::kDim> copies;
  const In* const rows[] = {memory.rows[0], memory.rows[1]};
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const int dim = static_cast<int>(sizes.dim);
  const float scale = ScaleOf(step);
  const BlockPlace block = order.At(blockIdx.x);
  const HeadPlace at(sizes, block.head);
  const int64_t first = block.tile * kRows;
  const int64_t count = Lesser(kRows, sizes.q_rows - first);
  const SeenKeys low = step.SeenBy(first), high = step.SeenBy(first + count - 1);
  const auto begin_tile = [&](int64_t key, int slot) {
    const int64_t keys = Lesser(kColumns, sizes.keys - key);
    const TileRows<In> k(x.k, at.batch, at.kv_head, key, keys);
    const TileRows<In> v(x.v, at.batch, at.kv_head, key, keys);
    copies.template Begin<kColumns>(k, dim, memory.columns[slot][0]);
    copies.template Begin<kColumns>(v, dim, memory.columns[slot][1]);
  };
  QueryStatistic row_of[Tiles::kRowsOfLane];
  for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
    row_of[r] = StatisticOf(step, at, first + Tiles::RowOf(r));
  }
  typename Tiles::Sums dq;
  Clear(dq.at);
  const int64_t begin = low.begin / kColumns * kColumns;
  if (begin < high.end) {
    const TileRows<In> q(x.q, at.batch, at.head, first, count);
    const TileRows<In> dout(x.dout, at.batch, at.head, first, count);
    copies.template Begin<kRows>(q, dim, memory.rows[0]);
    copies.template Begin<kRows>(dout, dim, memory.rows[1]);
    begin_tile(begin, 0);
  }
  int slot = 0;
  for (int64_t key = begin; key < high.end; key += kColumns, slot = 1 - slot) {
    copies.Meet();
    if (key + kColumns < high.end) begin_tile(key + kColumns, 1 - slot);
    const In* const columns[] = {memory.columns[slot][0], memory.columns[slot][1]};
    typename Tiles::Scores scores, products;
    Tiles::Score(rows, columns, dim, scores, products);
#pragma unroll
    for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        float& score = scores.at[r][c];
        score = QuickExp2(fmaf(score, scale, -row_of[r].lse));
      }
    }
    if (high.begin > key || low.end < key + kColumns) {
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        const int64_t row = first + Tiles::RowOf(r);
        const SeenKeys keys = row < sizes.q_rows ? step.SeenBy(row) : SeenKeys{0, 0};
        const SeenOfTile<kColumns> seen(keys, key);
#pragma unroll
        for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
          if (!seen.Has(Tiles::ColumnOf(c))) scores.at[r][c] = 0;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        scores.at[r][c] *= products.at[r][c] - row_of[r].delta;
      }
    }
    Tiles::template Gather<kWide ? 2 : 1>(scores, columns[0], dim, dq);
  }
  StoreGrad<Tiles>(step, x.dq, at.batch, at.head, first, sizes.q_rows,
                   static_cast<float>(sizes.scale), !sizes.first, 0, dq);
}

// A tile of queries of one head, for a block's keys.
struct QueryTile {
  int64_t group, query;  // index of the head among those that share the keys; the tile's first row
};

// dk and dv: each block computes 64 keys of one key head, over query heads and rows in ascending
// order.
template <typename Tiles, bool kWide>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    KeyGradKernel(const __grid_constant__ StepRule step, const __grid_constant__ TileOrder order) {
  if constexpr (Tiles::kIsWarpgroup && !kHasWarpgroups) return;
  using In = typename Tiles::In;
  using Memory = GradMemory<Tiles>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_LARGE_SHARED(Memory, memory);
  RowCopies<In, Tiles::kDim> copies;
  const In* const rows[] = {memory.rows[0], memory.rows[1]};
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const int dim = static_cast<int>(sizes.dim);
  const float scale = ScaleOf(step);
  const BlockPlace block = order.At(blockIdx.x);
  const int64_t batch = Divide(block.head, sizes.kv_heads);
  const int64_t kv_head = block.head - batch * sizes.kv_heads;
  const int64_t first = block.tile * kRows;
  const int64_t count = Lesser(kRows, sizes.keys - first);
  const int64_t group = Divide(sizes.q_heads, sizes.kv_heads);
  const QueryRange range = QueriesThatSee(step, first, count);
  const auto begin_tile = [&](const QueryTile& tile, int slot) {
    const HeadPlace at = {batch, kv_head * group + tile.group, kv_head};
    const int64_t queries = Lesser(kColumns, sizes.q_rows - tile.query);
    const TileRows<In> q(x.q, batch, at.head, tile.query, queries);
    const TileRows<In> dout(x.dout, batch, at.head, tile.query, queries);
    copies.template Begin<kColumns>(q, dim, memory.columns[slot][0]);
    copies.template Begin<kColumns>(dout, dim, memory.columns[slot][1]);
    return threadIdx.x < kColumns ? StatisticOf(step, at, tile.query + threadIdx.x)
                                  : QueryStatistic{};
  };
  const auto put_statistic = [&](const QueryStatistic& one, int slot) {
    if (threadIdx.x >= kColumns) return;
    memory.statistics[slot].lse[threadIdx.x] = one.lse;
    memory.statistics[slot].delta[threadIdx.x] = one.delta;
  };
  const auto next_of = [&](QueryTile tile) {
    tile.query += kColumns;
    return tile.query < range.end ? tile : QueryTile{tile.group + 1, range.begin};
  };
  typename Tiles::Sums dk, dv;
  Clear(dk.at);
  Clear(dv.at);
  QueryTile tile = {range.begin < range.end ? 0 : group, range.begin};
  if (tile.group < group) {
    const TileRows<In> k(x.k, batch, kv_head, first, count);
    const TileRows<In> v(x.v, batch, kv_head, first, count);
    copies.template Begin<kRows>(k, dim, memory.rows[0]);
    copies.template Begin<kRows>(v, dim, memory.rows[1]);
    put_statistic(begin_tile(tile, 0), 0);
  }
  for (int slot = 0; tile.group < group; tile = next_of(tile), slot = 1 - slot) {
    copies.Meet();
    const QueryTile next = next_of(tile);
    QueryStatistic statistic = {};  // being loaded while this tile is computed
    if (next.group < group) statistic = begin_tile(next, 1 - slot);
    const int64_t last = Lesser(tile.query + kColumns, sizes.q_rows) - 1;
    const bool all = step.seen[last].begin <= first && step.seen[tile.query].end >= first + kRows;
    const In* const columns[] = {memory.columns[slot][0], memory.columns[slot][1]};
    const auto& statistics = memory.statistics[slot];
    typename Tiles::Scores scores, products;
    Tiles::Score(rows, columns, dim, scores, products);
#pragma unroll
    for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
      const float lse = statistics.lse[Tiles::ColumnOf(c)];
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        float& score = scores.at[r][c];
        score = QuickExp2(fmaf(score, scale, -lse));
      }
    }
    if (!all) {
#pragma unroll
      for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
        const int64_t query = tile.query + Tiles::ColumnOf(c);
        const SeenKeys keys = query <= last ? step.seen[query] : SeenKeys{0, 0};
        const SeenOfTile<kRows> seen(keys, first);
#pragma unroll
        for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
          if (!seen.Has(Tiles::RowOf(r))) scores.at[r][c] = 0;
        }
      }
    }
    Tiles::template Gather<kWide ? 2 : 1>(scores, columns[1], dim, dv);
#pragma unroll
    for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
      const float delta = statistics.delta[Tiles::ColumnOf(c)];
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        scores.at[r][c] *= products.at[r][c] - delta;
      }
    }
    Tiles::template Gather<kWide ? 2 : 1>(scores, columns[0], dim, dk);
    put_statistic(statistic, 1 - slot);
  }
  StoreGrad<Tiles>(step, x.dk, batch, kv_head, first, sizes.keys, static_cast<float>(sizes.scale),
                   false, 0, dk);
  StoreGrad<Tiles>(step, x.dv, batch, kv_head, first, sizes.keys, 1, false, 0, dv);
}

template <typename Tiles, bool kWide>
absl::Status LaunchGrads(Device& device, const char* kernel, const StepRule& step) {
  using Memory = GradMemory<Tiles>;
  const AttentionSizes& sizes = step.sizes;
  if (sizes.q_rows * sizes.batch * sizes.q_heads > 0) {
    const auto order = TileOrder::OfQueries(sizes, Tiles::kRows);
    DT_RETURN_IF_ERROR(LaunchLarge<Memory>(device, kernel, order.blocks(), kTileThreads,
                                           QueryGradKernel<Tiles, kWide>, step, order));
  }
  if (sizes.keys * sizes.batch * sizes.kv_heads == 0) return device.failure();
  const auto order = TileOrder::OfKeys(sizes, Tiles::kRows);
  return LaunchLarge<Memory>(device, kernel, order.blocks(), kTileThreads,
                             KeyGradKernel<Tiles, kWide>, step, order);
}

}  // namespace

absl::Status FlashGrads(Device& device, const char* kernel, const StepRule& step) {
  return WithWarpgroups(device, [&](auto has_warpgroups) {
    return WithFlashStep(device, kernel, step,
                         [&](auto features, auto is_wide, const StepRule& aligned) {
                           using Tiles = GradTiles<BFloat16, features, has_warpgroups>;
                           return LaunchGrads<Tiles, is_wide>(device, kernel, aligned);
                         });
  });
}

}  // namespace dtensor::kernels::cuda
