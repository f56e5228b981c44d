#include "dtensor/runtime/kernels/cuda/cudnn/attention_choice.h"

#include <cstdint>
#include <initializer_list>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::cuda {
namespace {

bool IsAligned(int64_t bytes) { return bytes > 0 && bytes % kCudnnAlignment == 0; }

// For [batch, rows, heads, dim] elements. A broadcast dimension has stride 0, which cuDNN does not
// support.
bool Fits(const AttentionOperand& x, DType dtype, int64_t batch, int64_t heads, int64_t rows) {
  const int64_t bytes = SizeOf(dtype);
  return reinterpret_cast<uintptr_t>(x.data) % kCudnnAlignment == 0 &&
         (batch == 1 || IsAligned(x.batch_stride * bytes)) &&
         (heads == 1 || IsAligned(x.head_stride * bytes)) &&
         (rows == 1 || IsAligned(x.row_stride * bytes));
}
bool FitsQueries(const AttentionSizes& sizes, const AttentionOperand& x, DType dtype) {
  return Fits(x, dtype, sizes.batch, sizes.q_heads, sizes.q_rows);
}
bool FitsKeys(const AttentionSizes& sizes, const AttentionOperand& x, DType dtype) {
  return Fits(x, dtype, sizes.batch, sizes.kv_heads, sizes.keys);
}

// [batch, q_heads, q_rows], row-major.
bool IsPacked(const AttentionSizes& sizes, const AttentionOperand& lse) {
  return lse.row_stride == 1 && (sizes.q_heads == 1 || lse.head_stride == sizes.q_rows) &&
         (sizes.batch == 1 || lse.batch_stride == sizes.q_heads * sizes.q_rows);
}

AttentionChoice Portable(const char* why_not) { return {.why_not = why_not}; }

// The bytes of the scores of one key head's queries, for one batch entry.
int64_t ScoreBytes(const AttentionSizes& sizes) {
  return 2 * (sizes.q_heads / sizes.kv_heads) * sizes.q_rows * sizes.keys;
}

AttentionChoice ChooseBlock(const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  if (sizes.dtype != DType::kBF16 && sizes.dtype != DType::kF16) {
    return Portable("operands are not of 16 bits");
  }
  if (sizes.first && sizes.last && sizes.out_dtype != sizes.dtype) {
    return Portable("results are wider than the operands");
  }
  if (sizes.drops) return Portable("weights are dropped");
  if (sizes.varies) return Portable("other calls have other sizes");
  if (sizes.dim % 8 != 0 || sizes.dim > kMostCudnnFeatures) {
    return Portable("a head's features are not a multiple of 8, up to 128");
  }
  if (sizes.batch * sizes.q_heads == 0 || sizes.dim == 0 || sizes.q_rows < kLeastCudnnRows ||
      sizes.keys < kLeastCudnnRows) {
    return Portable("there are fewer than 64 queries or keys");
  }
  const AttentionOperands& x = args.operands;
  if (!FitsQueries(sizes, x.q, sizes.dtype) || !FitsKeys(sizes, x.k, sizes.dtype) ||
      !FitsKeys(sizes, x.v, sizes.dtype)) {
    return Portable("q, k or v is not aligned to 16 bytes, or is broadcast");
  }
  switch (args.mask.Classify(args.q_positions, args.k_positions)) {
    case BlockCase::kFull:
      return {.by_cudnn = true};
    case BlockCase::kDiagonal:
      return {.by_cudnn = true, .causal = true};
    default:
      return Portable("the mask leaves neither all of the block nor its lower triangle");
  }
}

}  // namespace

AttentionChoice ChooseAttention(const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  const AttentionChoice choice = ChooseBlock(args);
  const bool is_direct = sizes.first && sizes.last;  // cuDNN writes the results themselves
  if (!choice.by_cudnn || !is_direct) return choice;
  if (!FitsQueries(sizes, args.operands.o, sizes.out_dtype) ||
      !IsPacked(sizes, args.operands.lse)) {
    return Portable("o is not aligned to 16 bytes, or lse is not row-major");
  }
  return choice;
}

AttentionChoice ChooseAttentionGrad(const AttentionArgs& args, int64_t score_bytes) {
  const AttentionSizes& sizes = args.sizes;
  const AttentionOperands& x = args.operands;
  if (x.o.data == nullptr) return Portable("o is not there in the operands' type");
  const AttentionChoice choice = ChooseBlock(args);
  if (!choice.by_cudnn) return choice;
  if (ScoreBytes(sizes) > score_bytes) return Portable("one head's scores take too much memory");
  if (!IsPacked(sizes, x.lse)) return Portable("lse is not row-major");
  for (const AttentionOperand* one : {&x.o, &x.dout}) {
    if (!FitsQueries(sizes, *one, sizes.dtype)) {
      return Portable("o or its gradient is not aligned to 16 bytes, or is broadcast");
    }
  }
  if (!FitsQueries(sizes, x.dq, sizes.out_dtype) || !FitsKeys(sizes, x.dk, sizes.out_dtype) ||
      !FitsKeys(sizes, x.dv, sizes.out_dtype)) {
    return Portable("a gradient is not aligned to 16 bytes");
  }
  return choice;
}

AttentionRuns RunsOf(const AttentionSizes& sizes, int64_t score_bytes) {
  const int64_t most = score_bytes / ScoreBytes(sizes);  // key heads in one run
  if (sizes.batch * sizes.kv_heads <= most) return {sizes.batch, sizes.kv_heads};
  int64_t heads = sizes.kv_heads < most ? sizes.kv_heads : most;
  while (sizes.kv_heads % heads != 0) --heads;
  return {1, heads};
}

}  // namespace dtensor::kernels::cuda
