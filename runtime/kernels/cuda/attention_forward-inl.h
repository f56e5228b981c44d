// The parts of attention's forward kernels: the general one (attention.cu), and flash attention
// (attention_flash.cu).
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FORWARD_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FORWARD_INL_H_

#include <cstdint>
#include <limits>

#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

template <typename T>
__device__ constexpr T Lowest() {
  return -std::numeric_limits<T>::infinity();
}

// A multiple of each kernel's tile.
inline constexpr int64_t kKeysOfPart = 64;

// Divides keys among blocks. If few queries attend to many keys, as in text generation, there is
// only one block of queries for a head, and most of a GPU would be idle.
struct KeyParts {
  int64_t keys, count;       // in each part but the last, a multiple of kKeysOfPart; how many parts
  int64_t o_step, lse_step;  // from a part's results, which are wide, to the next one's

  bool is_split() const { return count > 1; }
};

// The work of a block of a forward kernel: `count` query rows of a head from `first` on, and keys
// [begin, end), in tiles from `begin` on. All of the rows see keys [all_begin, all_end).
struct ForwardBlock : HeadPlace {
  __device__ ForwardBlock(const StepRule& step, const KeyParts& parts, const BlockPlace& at,
                          int rows, int columns)
      : HeadPlace(step.sizes, at.head),
        first(at.tile * rows),
        count(Lesser(rows, step.sizes.q_rows - first)) {
    const SeenKeys low = step.SeenBy(first), high = step.SeenBy(first + count - 1);
    const int64_t part = blockIdx.z * parts.keys;
    begin = low.begin > part ? low.begin / columns * columns : part;
    end = Lesser(high.end, part + parts.keys);
    all_begin = high.begin;
    all_end = low.end;
  }
  // Whether all rows see all `columns` keys from `key` on.
  __device__ bool SeesAll(int64_t key, int columns) const {
    return all_begin <= key && all_end >= key + columns;
  }

  int64_t first, count, begin, end, all_begin, all_end;
};

// The query rows of a block, and their partial results: the largest score so far, the sum of
// exponentials, and the sum of values. The latter is neither divided by the sum nor scaled for
// dropped weights yet: factors of values are at most 1.
template <typename Tiles>
struct ForwardRows {
  using In = typename Tiles::In;
  using T = typename Tiles::T;
  static constexpr int kRowsOfLane = Tiles::kRowsOfLane;
  static constexpr int kColumnsOfLane = Tiles::kColumnsOfLane;

  __device__ ForwardRows(const StepRule& step, const KeyParts& parts, const ForwardBlock& block,
                         int64_t window)
      : step(step),
        parts(parts),
        batch(block.batch),
        head(block.head),
        first(block.first),
        window(window) {
    for (int r = 0; r < kRowsOfLane; ++r) {
      max[r] = Lowest<T>();
      sum[r] = 0;
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

  // Which keys of the tile from `key` on a row sees; none if the row does not exist.
  __device__ SeenOfTile<Tiles::kColumns> SeenOf(int r, int64_t key) const {
    return {IsThere(r) ? step.SeenBy(RowOf(r)) : SeenKeys{0, 0}, key};
  }
  // Masks the keys of the tile that are not seen.
  __device__ void Hide(int64_t key, typename Tiles::Scores& scores) const {
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      const auto seen = SeenOf(r, key);
#pragma unroll
      for (int c = 0; c < kColumnsOfLane; ++c) {
        if (!seen.Has(Tiles::ColumnOf(c))) scores.at[r][c] = Lowest<T>();
      }
    }
  }

  // Turns the scores of a tile into weights, and rescales the partial results to the new maximum.
  // `all`: all rows see all keys of the tile.
  __device__ void Weigh(int64_t key, bool all, typename Tiles::Scores& scores) {
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) Scale(scores.at[r]);
    if (!all) Hide(key, scores);
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
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
      // Before weights are dropped, since the sum includes all weights.
      sum[r] = fma(sum[r], kept, SumLanes<Tiles::kLanesOfRow>(total));
      max[r] = larger;
      if (step.sizes.drops) Drop(r, key, scores.at[r]);
      if (!__any_sync(0xffffffff, kept != 1)) continue;
#pragma unroll
      for (T& value : values.at[r]) value *= kept;
    }
  }

  // Writes to the carry, or the results.
  __device__ void Store() {
    const bool last = step.sizes.last, wide = step.is_wide() || parts.count > 1;
    const T scale = step.sizes.drops ? static_cast<T>(step.drop.scale) : T{1};
    T factor[kRowsOfLane];
    for (int r = 0; r < kRowsOfLane; ++r) {
      factor[r] = scale * (!last ? T{1} : sum[r] == 0 ? T{0} : 1 / sum[r]);
    }
    if (last && !wide) {
      PutSums<Tiles>(values, window, step.sizes.dim, factor, false, [&](int r) {
        return IsThere(r) ? ValueRow<In>(step.operands.o, r) : nullptr;
      });
      return;
    }
    const AttentionOperand& to = last ? step.operands.o : step.operands.carry;
    const int64_t offset = last ? blockIdx.z * parts.o_step : 0;
    PutSums<Tiles>(values, window, step.sizes.dim, factor, false,
                   [&](int r) { return IsThere(r) ? ValueRow<T>(to, r) + offset : nullptr; });
  }

  // Call this after all windows have read the carry, whose memory may be the same.
  __device__ void StoreStatistics() {
    __syncwarp();
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
  T max[kRowsOfLane], sum[kRowsOfLane];
  typename Tiles::Sums values;

 private:
  // Converts to units of log(2).
  __device__ void Scale(T (&scores)[kColumnsOfLane]) const {
    const T scale = static_cast<T>(step.sizes.scale * kLog2E);
#pragma unroll
    for (T& score : scores) score *= scale;
  }

  static __device__ T LargestOf(const T (&scores)[kColumnsOfLane]) {
    T largest = Lowest<T>();
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) largest = fmax(largest, scores[c]);  // without NaN
    return largest;
  }

  __device__ void Drop(int r, int64_t key, T (&weights)[kColumnsOfLane]) const {
    const auto tile = SeenOf(r, key);
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

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FORWARD_INL_H_
