// The arguments of attention.h's kernels.
//
// They are flat except for positions: index sets, and the parts of a merge, are lists. A device
// with memory of its own needs tables of them there.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ATTENTION_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ATTENTION_ARGS_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor::kernels {

struct AttentionSizes {
  DType dtype = DType::kF32;
  DType out_dtype = DType::kF32;  // of o, or of the gradients: dtype or wide
  int64_t batch = 0, q_heads = 0, kv_heads = 0;
  int64_t q_rows = 0, keys = 0, dim = 0;
  double scale = 1;
  bool first = true, last = true;
  bool carried = false;  // the operands have a carry
  bool drops = false;    // some weights are dropped
  bool varies = false;   // AttentionStep::varies
};

// One operand; strides in elements. A row's elements are adjacent; statistics have one element per
// row.
struct AttentionOperand {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

struct AttentionOperands {
  AttentionOperand q, k, v, o, lse;
  AttentionOperand carry, max, sum;  // forward only
  // Backward only, which also has an o, if there is one of q's type.
  AttentionOperand dout, delta, dq, dk, dv;
};

// In the scratch memory, of each query row: which keys it sees.
inline constexpr int64_t kSeenKeysBytes = 16;

// One step, forward or backward.
struct AttentionArgs {
  AttentionSizes sizes;
  AttentionOperands operands;
  AttentionMask mask;
  IndexSet q_positions, k_positions;  // ascending, in the order of rows
  double dropout_rate = 0;
  uint64_t dropout_seed = 0;
  IndexSet batches, heads;  // only if weights are dropped: global indices
  void* scratch = nullptr;  // 64-byte aligned, as many bytes as the kernel asks for
};

struct AttentionDeltaArgs {
  AttentionSizes sizes;        // batch, q_heads, q_rows, dim and dtype
  AttentionOperands operands;  // o, dout, delta
};
static_assert(std::is_trivially_copyable_v<AttentionDeltaArgs>);

// Results over some of the keys each, all wide.
struct AttentionMergeParts {
  std::vector<AttentionOperand> o, lse;
};

struct AttentionMergeArgs {
  AttentionSizes sizes;  // as AttentionDeltaArgs', and out_dtype for o
  AttentionMergeParts parts;
  AttentionOperand o, lse;
  void* scratch = nullptr;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ATTENTION_ARGS_H_
