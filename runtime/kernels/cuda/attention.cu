#include "dtensor/runtime/kernels/cuda/attention.h"

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/kernels/cuda/attention_matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename T>
__device__ constexpr T Lowest() {
  return -std::numeric_limits<T>::infinity();
}

// What a block computes with: tensor cores where products of the type are exact in f32.
template <typename In, int kWindow>
using ForwardTiles =
    std::conditional_t<sizeof(In) == 2, MatrixTiles<In, 2, 32, kWindow>, ScalarTiles<In, kWindow>>;

// The query rows of a block, and what they have gathered: the largest score so far, the sum of
// exponentials, and the sum of values, not yet divided by it, nor scaled for weights that are
// dropped: what values are multiplied by is at most 1.
template <typename Tiles>
struct ForwardRows {
  using In = typename Tiles::In;
  using T = typename Tiles::T;
  static constexpr int kRowsOfLane = Tiles::kRowsOfLane;

  __device__ ForwardRows(const StepRule& step, int64_t batch, int64_t head, int64_t first,
                         int64_t window)
      : step(step), batch(batch), head(head), first(first), window(window) {
    for (int r = 0; r < kRowsOfLane; ++r) {
      max[r] = Lowest<T>();
      sum[r] = 0;
      seen[r] = IsThere(r) ? step.seen[RowOf(r)] : SeenKeys{0, 0};
      if (step.sizes.first || !IsThere(r)) continue;
      max[r] = *StatisticAt(step.operands.max, r);
      sum[r] = *StatisticAt(step.operands.sum, r);
    }
    const T factor = step.sizes.drops ? static_cast<T>(1 / step.drop.scale) : T{1};
    Clear(values.at);
    if (step.sizes.first) return;
    ForEachSum(values, window, step.sizes.dim, [&](T& value, int r, int64_t feature) {
      if (IsThere(r)) value = ValueRow<T>(step.operands.carry, r)[feature] * factor;
    });
  }

  __device__ int64_t RowOf(int r) const { return first + Tiles::RowOf(r); }
  __device__ bool IsThere(int r) const { return RowOf(r) < step.sizes.q_rows; }
  __device__ T* StatisticAt(const AttentionOperand& x, int r) const { return ValueRow<T>(x, r); }
  template <typename V>
  __device__ V* ValueRow(const AttentionOperand& x, int r) const {
    return static_cast<V*>(x.data) + batch * x.batch_stride + head * x.head_stride +
           RowOf(r) * x.row_stride;
  }

  // Scores of a tile become weights, and what was gathered is made relative to the new maximum.
  // `all` says that all rows see all keys of the tile.
  __device__ void Weigh(int64_t key, bool all, typename Tiles::Scores& scores) {
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      Scale(scores.at[r]);
      if (!all) Hide(Seen(seen[r], key), scores.at[r]);
      const T largest = LargestOf(scores.at[r]);
      const T top = FoldLanes<Tiles::kLanesOfRow>(largest, [](T a, T b) { return fmax(a, b); });
      const T larger = fmax(top, max[r]);
      const T shift = larger == Lowest<T>() ? T{0} : larger;  // -inf - -inf is NaN
      T total = 0;
#pragma unroll
      for (int c = 0; c < kColumnsOfLane; ++c) {
        total += scores.at[r][c] = exp2(scores.at[r][c] - shift);
      }
      const T kept = exp2(max[r] - shift);
      // Before weights are dropped: the sum is of all.
      sum[r] = fma(sum[r], kept, SumLanes<Tiles::kLanesOfRow>(total));
      max[r] = larger;
      if (step.sizes.drops) Drop(r, key, scores.at[r]);
      if (!__any_sync(0xffffffff, kept != 1)) continue;
#pragma unroll
      for (T& value : values.at[r]) value *= kept;
    }
  }

  // Into the carry, or as results.
  __device__ void Store() {
    const bool last = step.sizes.last, wide = step.is_wide();
    const T scale = step.sizes.drops ? static_cast<T>(step.drop.scale) : T{1};
    T factor[kRowsOfLane];
    for (int r = 0; r < kRowsOfLane; ++r) {
      factor[r] = scale * (!last ? T{1} : sum[r] == 0 ? T{0} : 1 / sum[r]);
    }
    ForEachSum(values, window, step.sizes.dim, [&](T& value, int r, int64_t feature) {
      if (!IsThere(r)) return;
      if (!last) {
        ValueRow<T>(step.operands.carry, r)[feature] = value * factor[r];
      } else if (wide) {
        ValueRow<T>(step.operands.o, r)[feature] = value * factor[r];
      } else {
        ValueRow<In>(step.operands.o, r)[feature] = Round<In>(value * factor[r]);
      }
    });
  }

  // Once all windows have read what was carried.
  __device__ void StoreStatistics() {
    for (int r = 0; r < kRowsOfLane; ++r) {
      if (!IsThere(r) || LaneOf() % Tiles::kLanesOfRow != 0) continue;
      if (step.sizes.last) {
        *StatisticAt(step.operands.lse, r) =
            sum[r] == 0 ? Lowest<T>() : static_cast<T>(kLn2) * (max[r] + log2(sum[r]));
      } else {
        *StatisticAt(step.operands.max, r) = max[r];
        *StatisticAt(step.operands.sum, r) = sum[r];
      }
    }
  }

  const StepRule& step;
  const int64_t batch, head, first, window;
  SeenKeys seen[kRowsOfLane];
  T max[kRowsOfLane], sum[kRowsOfLane];
  typename Tiles::Sums values;

 private:
  static constexpr int kColumnsOfLane = Tiles::kColumnsOfLane;

  using Seen = SeenOfTile<Tiles::kColumns>;

  // To units of log(2).
  __device__ void Scale(T (&scores)[kColumnsOfLane]) const {
    const T scale = static_cast<T>(step.sizes.scale * kLog2E);
#pragma unroll
    for (T& score : scores) score *= scale;
  }

  static __device__ void Hide(const Seen& seen, T (&scores)[kColumnsOfLane]) {
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) {
      if (!seen.Has(Tiles::ColumnOf(c))) scores[c] = Lowest<T>();
    }
  }

  static __device__ T LargestOf(const T (&scores)[kColumnsOfLane]) {
    T largest = Lowest<T>();
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) largest = fmax(largest, scores[c]);  // without NaN
    return largest;
  }

  __device__ void Drop(int r, int64_t key, T (&weights)[kColumnsOfLane]) const {
    const Seen tile(seen[r], key);
    uint32_t dropped = 0;  // a bit for each: the long way to it does not touch registers of weights
#pragma unroll 1
    for (int c = 0; c < kColumnsOfLane; ++c) {
      const int column = Tiles::ColumnOf(c);
      const bool drops = tile.Has(column) && !step.Keeps(batch, head, RowOf(r), key + column);
      dropped |= uint32_t{drops} << c;
    }
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) {
      if ((dropped >> c & 1) != 0) weights[c] = 0;
    }
  }
};

// A block for kRows queries of one head. Rows that see most come last, and go first.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    ForwardKernel(const __grid_constant__ StepRule step) {
  using Tiles = ForwardTiles<In, kWindow>;
  using Memory = typename Tiles::template Memory<1>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_SHARED(Memory, memory, 1);
  Tiles tiles(memory[0]);
  const AttentionSizes& sizes = step.sizes;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const int64_t count = Lesser(kRows, sizes.q_rows - first);
  const SeenKeys low = step.seen[first], high = step.seen[first + count - 1];
  const int64_t begin = low.begin / kColumns * kColumns, end = high.end;
  for (int64_t y = blockIdx.y; y < sizes.batch * sizes.q_heads; y += gridDim.y) {
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const int64_t kv_head = head / (sizes.q_heads / sizes.kv_heads);
    const TileRows<In> queries(step.operands.q, batch, head, first, count);
    const auto tile_of = [&](const AttentionOperand& x, int64_t key) {
      const int64_t keys = key < end ? Lesser(kColumns, sizes.keys - key) : 0;
      return TileRows<In>(x, batch, kv_head, key, keys);
    };
    for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kFeatures) {
      ForwardRows<Tiles> rows(step, batch, head, first, window);
      for (int64_t key = begin; key < end; key += kColumns) {
        const TileRows<In> k = tile_of(step.operands.k, key), v = tile_of(step.operands.v, key);
        typename Tiles::Scores scores;
        tiles.template Score<0>(queries, k, sizes.dim, v, scores);
        rows.Weigh(key, high.begin <= key && low.end >= key + kColumns, scores);
        tiles.template Gather<1>(scores, v, window, sizes.dim, step.is_wide(),
                                 tile_of(step.operands.k, key + kColumns), rows.values);
      }
      rows.Store();
      if (window + kWindow * kFeatures >= sizes.dim) rows.StoreStatistics();
    }
  }
}

// delta = rowsum(do * o).
template <typename In>
__global__ void DeltaKernel(AttentionDeltaArgs a) {
  using T = Compute<In>;
  const AttentionSizes& sizes = a.sizes;
  ForEachRow<kWarp>(sizes.batch * sizes.q_heads * sizes.q_rows, [&](int64_t i, int lane) {
    const int64_t row = i % sizes.q_rows, y = i / sizes.q_rows;
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const TileRows<In> o(a.operands.o, batch, head, row, 1);
    const TileRows<In> dout(a.operands.dout, batch, head, row, 1);
    T sum = 0;
    for (int64_t f = lane; f < sizes.dim; f += kWarp) {
      sum = fma(T(Widen(o.data[f])), T(Widen(dout.data[f])), sum);
    }
    sum = SumLanes<kWarp>(sum);
    const AttentionOperand& delta = a.operands.delta;
    if (lane != 0) return;
    static_cast<T*>(delta.data)[batch * delta.batch_stride + head * delta.head_stride +
                                row * delta.row_stride] = sum;
  });
}

// One part of a merge.
struct MergePart {
  AttentionOperand o, lse;
};

struct MergePass {
  AttentionSizes sizes;
  List<MergePart, 4> parts;
  AttentionOperand o, lse;
};

// A warp for each row. o and lse may be one part's: the lanes have read it before they write.
template <typename Out>
__global__ void MergeKernel(MergePass a) {
  using T = Compute<Out>;
  const AttentionSizes& sizes = a.sizes;
  ForEachRow<kWarp>(sizes.batch * sizes.q_heads * sizes.q_rows, [&](int64_t i, int lane) {
    const int64_t row = i % sizes.q_rows, y = i / sizes.q_rows;
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const auto lse_of = [&](int64_t p) {
      return *TileRows<T>(a.parts[p].lse, batch, head, row, 1).data;
    };
    T top = Lowest<T>(), sum = 0;
    for (int64_t p = 0; p < a.parts.size; ++p) top = lse_of(p) > top ? lse_of(p) : top;
    const auto weight_of = [&](int64_t p) {
      const T lse = lse_of(p);
      return lse == Lowest<T>() ? T{0} : exp(lse - top);
    };
    for (int64_t p = 0; p < a.parts.size; ++p) sum += weight_of(p);
    auto* const o = const_cast<Out*>(TileRows<Out>(a.o, batch, head, row, 1).data);
    for (int64_t f = lane; f < sizes.dim; f += kWarp) {
      T value = 0;
      for (int64_t p = 0; p < a.parts.size; ++p) {
        const T weight = sum == 0 ? T{0} : weight_of(p) / sum;
        if (weight == 0) continue;  // it may hold anything
        value = fma(weight, TileRows<T>(a.parts[p].o, batch, head, row, 1).data[f], value);
      }
      o[f] = Round<Out>(value);
    }
    __syncwarp();
    auto* const lse = const_cast<T*>(TileRows<T>(a.lse, batch, head, row, 1).data);
    if (lane == 0) *lse = sum == 0 ? Lowest<T>() : top + log(sum);
  });
}

int64_t RowsOf(const AttentionSizes& sizes) { return sizes.batch * sizes.q_heads * sizes.q_rows; }

}  // namespace

absl::Status Attention(Device& device, const char* kernel, const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  if (RowsOf(sizes) == 0) return device.failure();
  DT_ASSIGN_OR_RETURN(const bool by_cudnn, TryCudnnAttention(device, kernel, args));
  if (by_cudnn) return absl::OkStatus();
  return WithStepRule(device, kernel, args, [&](const StepRule& step) {
    return VisitFloat(sizes.dtype, [&](auto t) {
      using In = decltype(t);
      return WithWindow<ForwardTiles<In, 1>::kMostWindow>(sizes.dim, [&](auto window) {
        using Tiles = ForwardTiles<In, window>;
        return Launch(device, kernel, TileBlocks<Tiles>(sizes.q_rows, sizes.batch * sizes.q_heads),
                      kTileThreads, ForwardKernel<In, window>, step);
      });
    });
  });
}

absl::Status AttentionDelta(Device& device, const char* kernel, const AttentionDeltaArgs& args) {
  const int64_t rows = RowsOf(args.sizes);
  if (rows == 0) return device.failure();
  return VisitFloat(args.sizes.dtype, [&](auto t) {
    return LaunchRows<kWarp>(device, kernel, rows, DeltaKernel<decltype(t)>, args);
  });
}

absl::Status MergeAttention(Device& device, const char* kernel, const AttentionMergeArgs& args) {
  const int64_t rows = RowsOf(args.sizes);
  if (rows == 0) return device.failure();
  std::vector<MergePart> parts;
  for (size_t p = 0; p < args.parts.o.size(); ++p) {
    parts.push_back({args.parts.o[p], args.parts.lse[p]});
  }
  return WithList<4>(device, kernel, absl::MakeConstSpan(parts), [&](const auto& list) {
    const MergePass pass = {args.sizes, list, args.o, args.lse};
    return VisitFloat(args.sizes.out_dtype, [&](auto t) {
      return LaunchRows<kWarp>(device, kernel, rows, MergeKernel<decltype(t)>, pass);
    });
  });
}

}  // namespace dtensor::kernels::cuda
