// Attention, an operator. What holds of all operators is said in dtensor/ops/ops.h, which includes
// this.
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
// gives 0. Other orders of dimensions are transposed views. On a mesh axis:
//
//   q      k, v   o
//   S(s)   R      S(s)  nothing moves; gradients of k and v are Partial
//   S(s)   S(t)   S(s)  ring attention, or another plan; any orders, also unlike ones
//   R      S(t)   R     each rank's part is merged by log-sum-exp (decoding with a cache)
//
// and with batches or heads sharded alike, nothing moves.
//
// Refused, with the operator's usual errors, are options that mean nothing, and more than 2^31
// queries or keys. The options must be equal on all ranks. Ranks that disagree about mask or plan
// get an error when they communicate; about scale, dropout or its seed, an error in a ring,
// elsewhere wrong numbers.
struct AttentionOptions {
  // On positions, which query_offset says.
  AttentionMask mask = AttentionMask::Causal();
  double scale = 0;  // 0: 1/sqrt(d)
  // Where both sequences are sharded by the same axes, once batches and heads lie alike
  // (attention_plan.h); elsewhere there is one plan, and this is not looked at. Automatic: the
  // fastest by the Context's links whose memory its cap allows, or, of those that are nearly as
  // fast, the one that keeps least memory. Others: that one; kInvalidArgument where there is none.
  AttentionPlanKind plan = AttentionPlanKind::kAutomatic;
  // Of kAllToAll, else not looked at: the axes that move from the sequence to the heads, "u" or
  // "u,v"; the rest is a ring. Axes of size 1 do not count. Empty: all that split the sequence.
  std::string all_to_all = {};
  // The probability, in [0, 1), with which each weight is dropped after the softmax; the others are
  // divided by 1 - dropout. Which ones depends on the seed and on global indices alone
  // (AttentionDropout in runtime/kernels/attention.h), not on meshes or plans. Take another seed
  // for each call.
  double dropout = 0;
  uint64_t dropout_seed = 0;
  // Query i is at position i + query_offset of the mask, key j at j: from 0 to 2^31. So decoding
  // may write into a cache of fixed length: step i is one query at i, and what the mask does not
  // show it is not seen, but must be finite. Another offset is no new decision unless both
  // sequences are sharded. Unset: both sequences end together, query i at i + max(0, t - s), key j
  // at j + max(0, s - t).
  std::optional<int64_t> query_offset = {};
  // For batches of sequences of unlike lengths: query i of batch entry r is at i + query_offset
  // (unset: 0) + row_offsets[r], and key j at j. As many as batch entries, or none. Not
  // differentiable: refused while the Context records, and where both sequences are sharded. Other
  // offsets are no new decision.
  std::vector<int64_t> row_offsets = {};
};
TensorOr Attention(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                   const AttentionOptions& options);
// And the logarithm of each query's sum of exponentials, [b, hq, s], f32 (f64 for f64), -inf where
// it sees no key; no gradient flows through it.
struct AttentionResults {
  DistributedTensor o, lse;
};
absl::StatusOr<AttentionResults> AttentionWithLse(const TensorOr& q, const TensorOr& k,
                                                  const TensorOr& v,
                                                  const AttentionOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_H_
