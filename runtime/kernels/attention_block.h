// The loops behind attention.h, on bare pointers: what a launch runs.
//
// Keys are taken in blocks that stay in the second-level cache, and every query row meets a whole
// block at a time, in strips of a few rows whose scores stay in the first-level cache. Between two
// key blocks a row carries (m, l, o): the largest score so far, the sum of exponentials, and the
// sum of values, not yet divided by l. So memory does not grow with s * t.
#ifndef DTENSOR_RUNTIME_KERNELS_ATTENTION_BLOCK_H_
#define DTENSOR_RUNTIME_KERNELS_ATTENTION_BLOCK_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels {

struct AttentionShape {
  DType dtype = DType::kF32;
  int64_t batch = 0, q_heads = 0, kv_heads = 0;
  int64_t q_rows = 0, keys = 0, dim = 0;
  double scale = 1;
  bool causal = false;
};

// One operand, in elements. A row's elements are adjacent; lse has one element per row.
struct AttentionOperand {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

struct AttentionOperands {
  AttentionOperand q, k, v, o, lse;
  AttentionOperand dout, dq, dk, dv;  // of the gradient
};

// The scratch memory that a run needs, 64-byte aligned.
int64_t AttentionScratchBytes(const AttentionShape& shape);
int64_t AttentionGradScratchBytes(const AttentionShape& shape);

void RunAttention(const AttentionShape& shape, const AttentionOperands& operands, void* scratch);
void RunAttentionGrad(const AttentionShape& shape, const AttentionOperands& operands,
                      void* scratch);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ATTENTION_BLOCK_H_
