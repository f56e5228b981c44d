// The loops behind cpu/attention.h, on bare pointers, which a launch runs.
//
// Keys are taken in blocks that stay in the second-level cache. Every query row processes a whole
// block at a time, in strips of a few rows whose scores stay in the first-level cache. Between two
// key blocks, as between two calls, a row carries (m, l, o): the largest score so far, the sum of
// exponentials, and the sum of values, not yet divided by l. So memory does not grow with s * t.
// While a strip is computed, what the next ones read is prefetched: attention_ahead.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_BLOCK_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_BLOCK_H_

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels {

// The keys that a query row sees, as rows of the block: [begin, end).
struct SeenKeys {
  int64_t begin = 0, end = 0;
};

// Which weights are dropped: see AttentionDropout. Global indices, of the operands' batch entries,
// query heads and rows, and of the block's keys.
struct DropoutMask {
  uint64_t seed = 0;
  uint32_t threshold = 0;  // in units of 2^-24
  double scale = 1;        // of what is kept
  const uint32_t *batches = nullptr, *heads = nullptr, *queries = nullptr, *keys = nullptr;
};

struct AttentionShape : AttentionSizes {
  explicit AttentionShape(const AttentionSizes& sizes) : AttentionSizes(sizes) {}
  // For each query row. Neither end decreases from a row to the next; 0 <= begin, end <= keys.
  const SeenKeys* seen = nullptr;
  const DropoutMask* dropout = nullptr;  // null if nothing is dropped
};

// The scratch memory that a run needs, 64-byte aligned. Does not dereference pointers.
int64_t AttentionScratchBytes(const AttentionShape& shape);
int64_t AttentionGradScratchBytes(const AttentionShape& shape);

void RunAttention(const AttentionShape& shape, const AttentionOperands& operands, void* scratch);
void RunAttentionGrad(const AttentionShape& shape, const AttentionOperands& operands,
                      void* scratch);

// delta = rowsum(do * o). Uses shape.batch, q_heads, q_rows, dim and dtype.
void RunAttentionDelta(const AttentionShape& shape, const AttentionOperands& operands);

// The sum of parts, weighted by exp(lse); o has shape.out_dtype, f64 if the parts are f64.
// `scratch` has room for one wide number per part.
void RunAttentionMerge(const AttentionShape& shape, const AttentionMergeParts& parts,
                       const AttentionOperand& o, const AttentionOperand& lse, void* scratch);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_BLOCK_H_
