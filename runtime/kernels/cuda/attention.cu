#include "dtensor/runtime/kernels/cuda/attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/attention_matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_merge-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename T>
__device__ constexpr T Lowest() {
  return -std::numeric_limits<T>::infinity();
}

constexpr int kKeysOfTile = 32;

// What a block computes with: tensor cores where products of the type are exact in f32.
template <typename In, int kWindow>
using ForwardTiles = std::conditional_t<sizeof(In) == 2, MatrixTiles<In, 2, kKeysOfTile, kWindow>,
                                        ScalarTiles<In, kWindow>>;

// Keys that blocks share. Where few queries meet many keys, as when a text is generated, there is
// one block of queries for a head, and most of a GPU would have none.
struct KeyParts {
  int64_t keys, count;       // of each part but the last, a multiple of kKeysOfTile; parts
  int64_t o_step, lse_step;  // from a part's results, which are wide, to the next one's

  bool is_split() const { return count > 1; }
};

// The query rows of a block, and what they have gathered: the largest score so far, the sum of
// exponentials, and the sum of values, not yet divided by it, nor scaled for weights that are
// dropped: what values are multiplied by is at most 1.
template <typename Tiles>
struct ForwardRows {
  using In = typename Tiles::In;
  using T = typename Tiles::T;
  static constexpr int kRowsOfLane = Tiles::kRowsOfLane;

  __device__ ForwardRows(const StepRule& step, const KeyParts& parts, int64_t batch, int64_t head,
                         int64_t first, int64_t window)
      : step(step), parts(parts), batch(batch), head(head), first(first), window(window) {
    for (int r = 0; r < kRowsOfLane; ++r) {
      max[r] = Lowest<T>();
      sum[r] = 0;
      seen[r] = IsThere(r) ? step.SeenBy(RowOf(r)) : SeenKeys{0, 0};
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
    const bool last = step.sizes.last, wide = step.is_wide() || parts.count > 1;
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
        ValueRow<T>(step.operands.o, r)[blockIdx.z * parts.o_step + feature] = value * factor[r];
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
        StatisticAt(step.operands.lse, r)[blockIdx.z * parts.lse_step] =
            sum[r] == 0 ? Lowest<T>() : static_cast<T>(kLn2) * (max[r] + log2(sum[r]));
      } else {
        *StatisticAt(step.operands.max, r) = max[r];
        *StatisticAt(step.operands.sum, r) = sum[r];
      }
    }
  }

  const StepRule& step;
  const KeyParts& parts;
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

// A block for kRows queries of one head, and for a part of the keys. Rows that see most come last,
// and go first.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    ForwardKernel(const __grid_constant__ StepRule step, const __grid_constant__ KeyParts parts) {
  using Tiles = ForwardTiles<In, kWindow>;
  using Memory = typename Tiles::template Memory<1>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_SHARED(Memory, memory, 1);
  Tiles tiles(memory[0]);
  const AttentionSizes& sizes = step.sizes;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const int64_t count = Lesser(kRows, sizes.q_rows - first);
  const SeenKeys low = step.SeenBy(first), high = step.SeenBy(first + count - 1);
  const int64_t part = blockIdx.z * parts.keys;
  const int64_t begin = low.begin > part ? low.begin / kColumns * kColumns : part;
  const int64_t end = Lesser(high.end, part + parts.keys);
  for (int64_t y = blockIdx.y; y < sizes.batch * sizes.q_heads; y += gridDim.y) {
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const int64_t kv_head = head / (sizes.q_heads / sizes.kv_heads);
    const TileRows<In> queries(step.operands.q, batch, head, first, count);
    const auto tile_of = [&](const AttentionOperand& x, int64_t key) {
      const int64_t keys = key < end ? Lesser(kColumns, sizes.keys - key) : 0;
      return TileRows<In>(x, batch, kv_head, key, keys);
    };
    for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kFeatures) {
      ForwardRows<Tiles> rows(step, parts, batch, head, first, window);
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

// Where each head has one query, those that share keys are rows of one head, which meet them once.
StepRule HeadsAsRows(StepRule step) {
  AttentionSizes& sizes = step.sizes;
  const int64_t group = sizes.q_heads / sizes.kv_heads;
  if (sizes.q_rows != 1 || sizes.drops) return step;
  AttentionOperands& x = step.operands;
  for (AttentionOperand* const of_q : {&x.q, &x.o, &x.lse, &x.carry, &x.max, &x.sum}) {
    of_q->row_stride = of_q->head_stride;
    of_q->head_stride *= group;
  }
  sizes.q_heads = sizes.kv_heads;
  sizes.q_rows = group;
  return step;
}

// Of the rows' and keys' numbers alone, so that a head has the same bits among any others.
KeyParts PartsOf(const AttentionSizes& sizes) {
  constexpr int64_t kFewRows = 32, kLeast = 512, kMost = 64;
  const bool is_whole = sizes.first && sizes.last;
  const int64_t rows = RowsOf(sizes);
  const int64_t wanted = is_whole && sizes.q_rows <= kFewRows ? sizes.keys / kLeast : 1;
  const int64_t count = std::clamp<int64_t>(wanted, 1, kMost);
  const int64_t tiles = (sizes.keys + kKeysOfTile - 1) / kKeysOfTile;
  const int64_t keys = (tiles + count - 1) / count * kKeysOfTile;
  return {keys, count, rows * sizes.dim, rows};
}

absl::Status LaunchForward(Device& device, const char* kernel, const StepRule& step,
                           const KeyParts& parts) {
  const AttentionSizes& sizes = step.sizes;
  return VisitFloat(sizes.dtype, [&](auto t) {
    using In = decltype(t);
    return WithWindow<ForwardTiles<In, 1>::kMostWindow>(sizes.dim, [&](auto window) {
      using Tiles = ForwardTiles<In, window>;
      static_assert(Tiles::kColumns == kKeysOfTile);
      dim3 blocks = TileBlocks<Tiles>(sizes.q_rows, sizes.batch * sizes.q_heads);
      blocks.z = static_cast<unsigned>(parts.count);
      return Launch(device, kernel, blocks, kTileThreads, ForwardKernel<In, window>, step, parts);
    });
  });
}

// Results of parts, one behind the other.
struct SteppedParts {
  MergePart first;
  int64_t size, o_bytes, lse_bytes;

  __device__ MergePart operator[](int64_t p) const {
    MergePart part = first;
    part.o.data = static_cast<char*>(part.o.data) + p * o_bytes;
    part.lse.data = static_cast<char*>(part.lse.data) + p * lse_bytes;
    return part;
  }
};

// Each part's results, then all of them in the parts' order.
absl::Status ForwardInParts(Device& device, const char* kernel, const StepRule& step,
                            const KeyParts& parts) {
  const AttentionSizes& sizes = step.sizes;
  const int64_t wide = sizes.dtype == DType::kF64 ? sizeof(double) : sizeof(float);
  const int64_t o_bytes = parts.o_step * wide, lse_bytes = parts.lse_step * wide;
  DT_ASSIGN_OR_RETURN(const Scratch o, Scratch::Make(device, parts.count * o_bytes));
  DT_ASSIGN_OR_RETURN(const Scratch lse, Scratch::Make(device, parts.count * lse_bytes));
  const int64_t rows = sizes.q_rows, dim = sizes.dim;
  const MergePart first = {{o.get(), sizes.q_heads * rows * dim, rows * dim, dim},
                           {lse.get(), sizes.q_heads * rows, rows, 1}};
  StepRule of_parts = step;
  of_parts.operands.o = first.o;
  of_parts.operands.lse = first.lse;
  DT_RETURN_IF_ERROR(LaunchForward(device, kernel, of_parts, parts));
  return MergeParts(device, kernel, sizes, SteppedParts{first, parts.count, o_bytes, lse_bytes},
                    {step.operands.o, step.operands.lse});
}

}  // namespace

absl::Status Attention(Device& device, const char* kernel, const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  if (RowsOf(sizes) == 0) return device.failure();
  DT_ASSIGN_OR_RETURN(const bool by_cudnn, TryCudnnAttention(device, kernel, args));
  if (by_cudnn) return absl::OkStatus();
  return WithStepRule(device, kernel, args, [&](const StepRule& all) {
    const StepRule step = HeadsAsRows(all);
    const KeyParts parts = PartsOf(step.sizes);
    return parts.is_split() ? ForwardInParts(device, kernel, step, parts)
                            : LaunchForward(device, kernel, step, parts);
  });
}

absl::Status AttentionDelta(Device& device, const char* kernel, const AttentionDeltaArgs& args) {
  const int64_t rows = RowsOf(args.sizes);
  if (rows == 0) return device.failure();
  return VisitFloat(args.sizes.dtype, [&](auto t) {
    return LaunchRows<kWarp>(device, kernel, rows, DeltaKernel<decltype(t)>, args);
  });
}

}  // namespace dtensor::kernels::cuda
