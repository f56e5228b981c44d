// Gradients of attention.h.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention.h"
#include "dtensor/runtime/kernels/cuda/attention_flash.h"
#include "dtensor/runtime/kernels/cuda/attention_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// The tiles of a block. Float16 has no tensor cores here: gradients may be too large or too small
// for it.
template <typename In, int kWindow>
using GradTiles = std::conditional_t<std::is_same_v<In, BFloat16>, MatrixTiles<In, 1, 32, kWindow>,
                                     ScalarTiles<In, kWindow>>;

// What the pairs with one query need of it; lse is in units of log(2). For a row that saw nothing
// lse is -inf, and `seen` is empty.
template <typename T>
struct QueryRow {
  int64_t query;
  SeenKeys seen;
  T lse, delta;
};
template <typename T>
__device__ QueryRow<T> QueryRowAt(const StepRule& step, const HeadPlace& at, int64_t query) {
  if (query >= step.sizes.q_rows) return {query, {0, 0}, 0, 0};
  return {query, step.seen[query],
          StatisticAt<T>(step.operands.lse, at, query) * static_cast<T>(kLog2E),
          StatisticAt<T>(step.operands.delta, at, query)};
}

// What a pair of a query and a key contributes: the weight to dv, `ds` to dq and dk.
template <typename T>
struct PairGrad {
  T weight, ds;
};

// Computes this from the pair's products q k and do v.
template <typename T>
__device__ PairGrad<T> GradOfPair(const StepRule& step, const HeadPlace& at, const QueryRow<T>& row,
                                  int64_t key, bool sees, T score, T dout_v) {
  const T scale = static_cast<T>(step.sizes.scale * kLog2E);
  const T p = exp2(score * scale - row.lse);
  T z = 1;
  if (step.sizes.drops && sees) {
    z = step.Keeps(at.batch, at.head, row.query, key) ? static_cast<T>(step.drop.scale) : T{0};
  }
  return {sees ? z * p : T{0}, sees ? p * (z * dout_v - row.delta) : T{0}};
}

// dq: each block computes kRows queries of one head. The rows that see most keys are the last ones
// of a head, and start first.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    QueryGradKernel(const __grid_constant__ StepRule step,
                    const __grid_constant__ TileOrder order) {
  using Tiles = GradTiles<In, kWindow>;
  using T = typename Tiles::T;
  using Memory = typename Tiles::template Memory<2>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_SHARED(Memory, memory, 1);
  Tiles tiles(memory[0]);
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const BlockPlace block = order.At(blockIdx.x);
  const HeadPlace at(sizes, block.head);
  const int64_t first = block.tile * kRows;
  const int64_t count = Lesser(kRows, sizes.q_rows - first);
  const int64_t begin = step.seen[first].begin / kColumns * kColumns;
  const int64_t end = step.seen[first + count - 1].end;
  const TileRows<In> queries(x.q, at.batch, at.head, first, count);
  const TileRows<In> dout(x.dout, at.batch, at.head, first, count);
  const auto tile_of = [&](const AttentionOperand& of, int64_t key) {
    const int64_t keys = key < end ? Lesser(kColumns, sizes.keys - key) : 0;
    return TileRows<In>(of, at.batch, at.kv_head, key, keys);
  };
  QueryRow<T> row_of[Tiles::kRowsOfLane];
  for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
    row_of[r] = QueryRowAt<T>(step, at, first + Tiles::RowOf(r));
  }
  for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kFeatures) {
    typename Tiles::Sums dq;
    Clear(dq.at);
    for (int64_t key = begin; key < end; key += kColumns) {
      const TileRows<In> k = tile_of(x.k, key), v = tile_of(x.v, key);
      typename Tiles::Scores scores, products;
      tiles.template Score<1>(dout, v, sizes.dim, k, products);
      tiles.template Score<0>(queries, k, sizes.dim, tile_of(x.v, key + kColumns), scores);
#pragma unroll
      for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
        const SeenOfTile<kColumns> seen(row_of[r].seen, key);
#pragma unroll
        for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
          T& score = scores.at[r][c];
          const int column = Tiles::ColumnOf(c);
          score = GradOfPair(step, at, row_of[r], key + column, seen.Has(column), score,
                             products.at[r][c])
                      .ds;
        }
      }
      tiles.template Gather<0>(scores, k, window, sizes.dim, step.is_wide(), TileRows<In>{}, dq);
    }
    StoreGrad<Tiles>(step, x.dq, at.batch, at.head, first, sizes.q_rows,
                     static_cast<T>(sizes.scale), !sizes.first, window, dq);
  }
}

// dk and dv: each block computes kRows keys of one key head, over query heads and rows in ascending
// order.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    KeyGradKernel(const __grid_constant__ StepRule step, const __grid_constant__ TileOrder order) {
  using Tiles = GradTiles<In, kWindow>;
  using T = typename Tiles::T;
  using Memory = typename Tiles::template Memory<2>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_SHARED(Memory, memory, 1);
  Tiles tiles(memory[0]);
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const BlockPlace block = order.At(blockIdx.x);
  const int64_t batch = block.head / sizes.kv_heads, kv_head = block.head % sizes.kv_heads;
  const int64_t first = block.tile * kRows;
  const int64_t count = Lesser(kRows, sizes.keys - first);
  const int64_t group = sizes.q_heads / sizes.kv_heads;
  const QueryRange range = QueriesThatSee(step, first, count);
  const TileRows<In> k(x.k, batch, kv_head, first, count);
  const TileRows<In> v(x.v, batch, kv_head, first, count);
  for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kFeatures) {
    typename Tiles::Sums dk, dv;
    Clear(dk.at);
    Clear(dv.at);
    for (int64_t i = 0; i < group; ++i) {
      const HeadPlace at = {batch, kv_head * group + i, kv_head};
      const auto tile_of = [&](const AttentionOperand& of, int64_t query) {
        const int64_t queries = query < range.end ? Lesser(kColumns, sizes.q_rows - query) : 0;
        return TileRows<In>(of, batch, at.head, query, queries);
      };
      for (int64_t query = range.begin; query < range.end; query += kColumns) {
        const TileRows<In> q = tile_of(x.q, query), dout = tile_of(x.dout, query);
        typename Tiles::Scores scores, products;
        tiles.template Score<0>(k, q, sizes.dim, dout, scores);
        tiles.template Score<1>(v, dout, sizes.dim, TileRows<In>{}, products);
#pragma unroll
        for (int c = 0; c < Tiles::kColumnsOfLane; ++c) {
          const QueryRow<T> row = QueryRowAt<T>(step, at, query + Tiles::ColumnOf(c));
          const SeenOfTile<kRows> seen(row.seen, first);
#pragma unroll
          for (int r = 0; r < Tiles::kRowsOfLane; ++r) {
            T &score = scores.at[r][c], &product = products.at[r][c];
            const int key = Tiles::RowOf(r);
            const auto grad = GradOfPair(step, at, row, first + key, seen.Has(key), score, product);
            score = grad.ds;
            product = grad.weight;
          }
        }
        tiles.template Gather<0>(scores, q, window, sizes.dim, step.is_wide(), TileRows<In>{}, dk);
        tiles.template Gather<1>(products, dout, window, sizes.dim, step.is_wide(),
                                 tile_of(x.q, query + kColumns), dv);
      }
    }
    StoreGrad<Tiles>(step, x.dk, batch, kv_head, first, sizes.keys, static_cast<T>(sizes.scale),
                     false, window, dk);
    StoreGrad<Tiles>(step, x.dv, batch, kv_head, first, sizes.keys, T{1}, false, window, dv);
  }
}

absl::Status LaunchGrads(Device& device, const char* kernel, const StepRule& step) {
  const AttentionSizes& sizes = step.sizes;
  if (IsFlashGrad(sizes)) return FlashGrads(device, kernel, step);
  return VisitFloat(sizes.dtype, [&](auto t) {
    using In = decltype(t);
    return WithWindow<GradTiles<In, 1>::kMostWindow>(sizes.dim, [&](auto window) -> absl::Status {
      using Tiles = GradTiles<In, window>;
      if (sizes.q_rows * sizes.batch * sizes.q_heads > 0) {
        const auto order = TileOrder::OfQueries(sizes, Tiles::kRows);
        DT_RETURN_IF_ERROR(Launch(device, kernel, order.blocks(), kTileThreads,
                                  QueryGradKernel<In, window>, step, order));
      }
      if (sizes.keys * sizes.batch * sizes.kv_heads == 0) return device.failure();
      const auto order = TileOrder::OfKeys(sizes, Tiles::kRows);
      return Launch(device, kernel, order.blocks(), kTileThreads, KeyGradKernel<In, window>, step,
                    order);
    });
  });
}

}  // namespace

absl::Status AttentionGrad(Device& device, const char* kernel, const AttentionArgs& args) {
  DT_ASSIGN_OR_RETURN(const bool by_cudnn, TryCudnnAttentionGrad(device, kernel, args));
  if (by_cudnn) return absl::OkStatus();
  return WithStepRule(device, kernel, args,
                      [&](const StepRule& step) { return LaunchGrads(device, kernel, step); });
}

}  // namespace dtensor::kernels::cuda
