// Attention, an operator. dtensor/ops/ops.h, which includes this file, says what holds for all
// operators.
#ifndef DTENSOR_ATTENTION_ATTENTION_H_
#define DTENSOR_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/attention/attention_plan.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Attention with grouped queries, of floats: q [b, s, hq, d], k, v [b, t, hkv, d], d > 0, hkv
// divides hq. "b s (h g) d!, b t~s h d!, b t~s h d! -> b s (h g) d!". A query that sees no key
// gives 0. For other orders of dimensions, pass transposed views. On a mesh axis:
//
//   q      k, v   o
//   S(s)   R      S(s)  nothing moves; gradients of k and v are Partial
//   S(s)   S(t)   S(s)  ring attention, or another plan; in any orders, which may differ
//   R      S(t)   R     each rank's part is merged by log-sum-exp (decoding with a cache)
//
// and if batches or heads are sharded alike in q, k and v, nothing moves.
//
// Invalid options, and more than 2^31 queries or keys, are refused with the operator's usual
// errors. The options must be equal on all ranks. If ranks disagree about mask or plan, they get an
// error when they communicate. If they disagree about scale, dropout or its seed, a ring gives an
// error; otherwise the numbers are wrong.
struct AttentionOptions {
  // The mask is on positions, which query_offset determines.
  AttentionMask mask = AttentionMask::Causal();
  double scale = 0;  // 0: 1/sqrt(d)
  // How to run if both sequences are sharded over the same axes, after batches and heads were
  // aligned (attention_plan.h). Otherwise there is only one way, and this is ignored. Automatic: by
  // the Context's links, the fastest plan that its memory cap allows, or, of those that are nearly
  // as fast, the one that keeps the least memory. Other values: that plan; kInvalidArgument if it
  // does not exist.
  AttentionPlanKind plan = AttentionPlanKind::kAutomatic;
  // For kAllToAll, else ignored: the axes that move from the sequence to the heads, "u" or "u,v";
  // over the other axes there is a ring. Axes of size 1 do not count. Empty: all axes that shard
  // the sequence.
  std::string all_to_all = {};
  // The probability, in [0, 1), with which each weight is dropped after the softmax; the others are
  // divided by 1 - dropout. Which weights are dropped depends only on the seed and on global
  // indices (AttentionDropout in runtime/kernels/attention.h), not on meshes or plans. Use a
  // different seed for each call.
  double dropout = 0;
  uint64_t dropout_seed = 0;
  // For the mask, query i is at position i + query_offset and key j at j: from 0 to 2^31. So
  // decoding may write into a cache of fixed length: step i is one query at position i. Keys that
  // the mask hides from it are not seen, but must be finite. Another offset needs no new dispatch
  // decision unless both sequences are sharded. Unset: both sequences end together, with query i at
  // i + max(0, t - s) and key j at j + max(0, s - t).
  std::optional<int64_t> query_offset = {};
  // For batches of sequences of different lengths: query i of batch entry r is at i + query_offset
  // (unset: 0) + row_offsets[r], and key j at j. One per batch entry, or none. Not differentiable:
  // refused while the Context records, and if both sequences are sharded. Other offsets need no new
  // dispatch decision.
  std::vector<int64_t> row_offsets = {};
  // For batches of sequences that are padded at the end: of batch entry r, only keys below
  // key_lengths[r] are seen, as far as the mask allows them; 0: none. [b] i32 or i64, on q's mesh
  // or on a larger one, in any layout. A length that is negative or above t is a failure
  // (kOutOfRange): it ends the world. Each rank reads the lengths of its batch entries on the host,
  // so a GPU's queue runs empty, and computes runs of entries of one length, one after the other.
  // Other lengths need no new dispatch decision. On a simulated rank, which has no numbers, all
  // keys count. Undefined: all keys are seen.
  DistributedTensor key_lengths = {};
};
TensorOr Attention(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                   const AttentionOptions& options);
// Also returns the logarithm of each query's sum of exponentials, [b, hq, s], f32 (f64 for f64);
// -inf if the query sees no key. Gradients flow through both.
struct AttentionResults {
  DistributedTensor o, lse;
};
absl::StatusOr<AttentionResults> AttentionWithLse(const TensorOr& q, const TensorOr& k,
                                                  const TensorOr& v,
                                                  const AttentionOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_H_
