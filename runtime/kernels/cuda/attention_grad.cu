// Gradients of attention.h.
#include <cstdint>
#include <limits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Where a block is: a batch entry and a query head, with the key head that it reads.
struct Place {
  int64_t batch, head, kv_head;
};

template <typename T>
__device__ const T& StatisticAt(const AttentionOperand& x, const Place& at, int64_t row) {
  return static_cast<const T*>(
      x.data)[at.batch * x.batch_stride + at.head * x.head_stride + row * x.row_stride];
}

// What a pair of a query and a key adds: the weight to dv, `ds` to dq and dk.
template <typename T>
struct PairGrad {
  T weight, ds;
};

// From the products q k and do v of a pair that may be out of sight. A row that saw nothing has a
// lse of -inf, and sees nothing.
template <typename T>
__device__ PairGrad<T> GradOfPair(const StepRule& step, const Place& at, int64_t query, int64_t key,
                                  T score, T dout_v) {
  if (query >= step.sizes.q_rows) return {0, 0};
  const SeenKeys seen = step.seen[query];
  if (key < seen.begin || key >= seen.end) return {0, 0};
  const T scale = static_cast<T>(step.sizes.scale * kLog2E);
  const T lse = StatisticAt<T>(step.operands.lse, at, query) * static_cast<T>(kLog2E);
  const T delta = StatisticAt<T>(step.operands.delta, at, query);
  const T p = exp2(score * scale - lse);
  const T z = step.sizes.drops ? step.FactorOf<T>(at.batch, at.head, query, key) : T{1};
  return {z * p, p * (z * dout_v - delta)};
}

// Writes sums to rows [first, ...) of a gradient, in its type, or adds to them.
template <typename In, typename T, int kWindow>
__device__ void StoreGrad(const StepRule& step, const AttentionOperand& to, int64_t batch,
                          int64_t head, int64_t first, int64_t rows, T factor, bool adds,
                          int64_t window, TileSums<T, kWindow>& sums) {
  const bool wide = step.sizes.out_dtype != step.sizes.dtype;
  const int64_t offset = batch * to.batch_stride + head * to.head_stride;
  sums.ForEach(window, step.sizes.dim, [&](T& sum, int r, int64_t feature) {
    const int64_t row = first + WarpRow() + r;
    if (row >= rows) return;
    const int64_t at = offset + row * to.row_stride + feature;
    const T value = sum * factor;
    if (wide) {
      T& out = static_cast<T*>(to.data)[at];
      out = adds ? out + value : value;
    } else {
      In& out = static_cast<In*>(to.data)[at];
      out = Round<In>(adds ? T(Widen(out)) + value : value);
    }
  });
}

// dq: a block for kRows queries of one head.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads) QueryGradKernel(StepRule step) {
  using T = Compute<In>;
  DT_TILE_MEMORY(T, memory);
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const int64_t count = Lesser(kRows, sizes.q_rows - first);
  const int64_t begin = step.seen[first].begin / kColumns * kColumns;
  const int64_t end = step.seen[first + count - 1].end;
  for (int64_t y = blockIdx.y; y < sizes.batch * sizes.q_heads; y += gridDim.y) {
    const int64_t head = y % sizes.q_heads;
    const Place at = {y / sizes.q_heads, head, head / (sizes.q_heads / sizes.kv_heads)};
    const TileRows<In> queries(x.q, at.batch, head, first, count);
    const TileRows<In> dout(x.dout, at.batch, head, first, count);
    for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kChunk) {
      TileSums<T, kWindow> dq = {};
      for (int64_t key = begin; key < end; key += kColumns) {
        const int64_t keys = Lesser(kColumns, sizes.keys - key);
        const TileRows<In> k(x.k, at.batch, at.kv_head, key, keys);
        const TileRows<In> v(x.v, at.batch, at.kv_head, key, keys);
        T scores[kRowsOfWarp], products[kRowsOfWarp];
        ScoreTile(memory, queries, k, sizes.dim, scores);
        ScoreTile(memory, dout, v, sizes.dim, products);
        for (int r = 0; r < kRowsOfWarp; ++r) {
          const PairGrad<T> grad =
              GradOfPair(step, at, first + WarpRow() + r, key + LaneOf(), scores[r], products[r]);
          memory.weights[(WarpRow() + r) * kColumns + LaneOf()] = grad.ds;
        }
        __syncwarp();
        GatherTile(memory, memory.weights, k, window, sizes.dim, dq);
      }
      StoreGrad<In>(step, x.dq, at.batch, head, first, sizes.q_rows, static_cast<T>(sizes.scale),
                    !sizes.first, window, dq);
    }
  }
}

// Queries [begin, end) that see some of the keys [key, key + count): what rows see ascends.
struct QueryRange {
  int64_t begin, end;
};
__device__ QueryRange QueriesThatSee(const StepRule& step, int64_t key, int64_t count) {
  // The first row for which `passed` holds; it holds for all rows behind that.
  const auto first_of = [&](auto passed) {
    int64_t low = 0, high = step.sizes.q_rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (passed(step.seen[middle])) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  return {first_of([&](const SeenKeys& seen) { return seen.end > key; }),
          first_of([&](const SeenKeys& seen) { return seen.begin >= key + count; })};
}

// dk and dv: a block for kRows keys of one key head. Query heads and rows in ascending order.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads) KeyGradKernel(StepRule step) {
  using T = Compute<In>;
  DT_TILE_MEMORY(T, memory);
  DT_SHARED(T, all_ds, kRows * kColumns);
  const AttentionSizes& sizes = step.sizes;
  const AttentionOperands& x = step.operands;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const int64_t count = Lesser(kRows, sizes.keys - first);
  const int64_t group = sizes.q_heads / sizes.kv_heads;
  const QueryRange range = QueriesThatSee(step, first, count);
  for (int64_t y = blockIdx.y; y < sizes.batch * sizes.kv_heads; y += gridDim.y) {
    const int64_t batch = y / sizes.kv_heads, kv_head = y % sizes.kv_heads;
    const TileRows<In> k(x.k, batch, kv_head, first, count);
    const TileRows<In> v(x.v, batch, kv_head, first, count);
    for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kChunk) {
      TileSums<T, kWindow> dk = {}, dv = {};
      for (int64_t i = 0; i < group; ++i) {
        const Place at = {batch, kv_head * group + i, kv_head};
        for (int64_t query = range.begin; query < range.end; query += kColumns) {
          const int64_t queries = Lesser(kColumns, sizes.q_rows - query);
          const TileRows<In> q(x.q, batch, at.head, query, queries);
          const TileRows<In> dout(x.dout, batch, at.head, query, queries);
          T scores[kRowsOfWarp], products[kRowsOfWarp];
          ScoreTile(memory, k, q, sizes.dim, scores);
          ScoreTile(memory, v, dout, sizes.dim, products);
          for (int r = 0; r < kRowsOfWarp; ++r) {
            const PairGrad<T> grad = GradOfPair(step, at, query + LaneOf(), first + WarpRow() + r,
                                                scores[r], products[r]);
            memory.weights[(WarpRow() + r) * kColumns + LaneOf()] = grad.weight;
            all_ds[(WarpRow() + r) * kColumns + LaneOf()] = grad.ds;
          }
          __syncwarp();
          GatherTile(memory, memory.weights, dout, window, sizes.dim, dv);
          GatherTile(memory, static_cast<const T*>(all_ds), q, window, sizes.dim, dk);
        }
      }
      StoreGrad<In>(step, x.dk, batch, kv_head, first, sizes.keys, static_cast<T>(sizes.scale),
                    false, window, dk);
      StoreGrad<In>(step, x.dv, batch, kv_head, first, sizes.keys, T{1}, false, window, dv);
    }
  }
}

absl::Status LaunchGrads(Device& device, const char* kernel, const StepRule& step) {
  const AttentionSizes& sizes = step.sizes;
  return VisitFloat(sizes.dtype, [&](auto t) {
    return WithWindow(sizes.dim, [&](auto window) -> absl::Status {
      using In = decltype(t);
      if (sizes.q_rows * sizes.batch * sizes.q_heads > 0) {
        DT_RETURN_IF_ERROR(Launch(device, kernel,
                                  TileBlocks(sizes.q_rows, sizes.batch * sizes.q_heads),
                                  kTileThreads, QueryGradKernel<In, window>, step));
      }
      if (sizes.keys * sizes.batch * sizes.kv_heads == 0) return device.failure();
      return Launch(device, kernel, TileBlocks(sizes.keys, sizes.batch * sizes.kv_heads),
                    kTileThreads, KeyGradKernel<In, window>, step);
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
