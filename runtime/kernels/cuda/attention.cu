#include "dtensor/runtime/kernels/cuda/attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/attention_flash.h"
#include "dtensor/runtime/kernels/cuda/attention_forward-inl.h"
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

// The tiles of a block: with tensor cores if products of the type are exact in f32.
template <typename In, int kWindow>
using ForwardTiles =
    std::conditional_t<sizeof(In) == 2, MatrixTiles<In, 2, 32, kWindow>, ScalarTiles<In, kWindow>>;

// Each block computes kRows queries of one head, for a part of the keys.
template <typename In, int kWindow>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    ForwardKernel(const __grid_constant__ StepRule step, const __grid_constant__ KeyParts parts,
                  const __grid_constant__ TileOrder order) {
  using Tiles = ForwardTiles<In, kWindow>;
  using Memory = typename Tiles::template Memory<1>;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  DT_SHARED(Memory, memory, 1);
  Tiles tiles(memory[0]);
  const AttentionSizes& sizes = step.sizes;
  const ForwardBlock block(step, parts, order.At(blockIdx.x), kRows, kColumns);
  const TileRows<In> queries(step.operands.q, block.batch, block.head, block.first, block.count);
  const auto tile_of = [&](const AttentionOperand& x, int64_t key) {
    const int64_t keys = key < block.end ? Lesser(kColumns, sizes.keys - key) : 0;
    return TileRows<In>(x, block.batch, block.kv_head, key, keys);
  };
  for (int64_t window = 0; window == 0 || window < sizes.dim; window += kWindow * kFeatures) {
    ForwardRows<Tiles> rows(step, parts, block, window);
    for (int64_t key = block.begin; key < block.end; key += kColumns) {
      const TileRows<In> k = tile_of(step.operands.k, key), v = tile_of(step.operands.v, key);
      typename Tiles::Scores scores;
      tiles.template Score<0>(queries, k, sizes.dim, v, scores);
      rows.Weigh(key, block.SeesAll(key, kColumns), scores);
      tiles.template Gather<1>(scores, v, window, sizes.dim, step.is_wide(),
                               tile_of(step.operands.k, key + kColumns), rows.values);
    }
    rows.Store();
    if (window + kWindow * kFeatures >= sizes.dim) rows.StoreStatistics();
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

// If each head has one query, makes the heads that share keys rows of one head, so that these keys
// are processed once.
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

// Depends on the numbers of rows and keys but not of heads, so that a head has the same bits
// whatever other heads there are.
KeyParts PartsOf(const AttentionSizes& sizes) {
  constexpr int64_t kFewRows = 32, kLeast = 512, kMost = 64;
  const bool is_whole = sizes.first && sizes.last;
  const int64_t rows = RowsOf(sizes);
  const int64_t wanted = is_whole && sizes.q_rows <= kFewRows ? sizes.keys / kLeast : 1;
  const int64_t count = std::clamp<int64_t>(wanted, 1, kMost);
  const int64_t keys = PartOf(sizes.keys, count, kKeysOfPart);
  return {keys, count, rows * sizes.dim, rows};
}

absl::Status LaunchForward(Device& device, const char* kernel, const StepRule& step,
                           const KeyParts& parts) {
  const AttentionSizes& sizes = step.sizes;
  if (IsFlash(sizes)) return FlashForward(device, kernel, step, parts);
  return VisitFloat(sizes.dtype, [&](auto t) {
    using In = decltype(t);
    return WithWindow<ForwardTiles<In, 1>::kMostWindow>(sizes.dim, [&](auto window) {
      using Tiles = ForwardTiles<In, window>;
      static_assert(kKeysOfPart % Tiles::kColumns == 0);
      const auto order = TileOrder::OfQueries(sizes, Tiles::kRows);
      dim3 blocks = order.blocks();
      blocks.z = static_cast<unsigned>(parts.count);
      return Launch(device, kernel, blocks, kTileThreads, ForwardKernel<In, window>, step, parts,
                    order);
    });
  });
}

// The results of parts, one after another in memory.
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

// Computes each part's results, then merges them in the parts' order.
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
