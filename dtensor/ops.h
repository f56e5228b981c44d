// The operators. Each is differentiable unless it says otherwise, takes errors as operands and
// passes them on, so that model code composes and is checked once:
//
//   TensorOr y = MatMul(Silu(MatMul(x, w1)), w2);
//
// Shapes are global. Rules in the notation of op_rule.h; results that are kept for backward alone
// are not shown. Operands are redistributed where the rule wants them elsewhere: what it marks "!"
// is gathered first where it is sharded. Operands that are not named otherwise have one type, and
// results theirs; results may share storage with operands.
//
// Errors: kInvalidArgument for undefined operands, operands of two Contexts or meshes, shapes,
// types, or arguments that do not fit, naming the operator, shapes, placements and remedy;
// failures.
#ifndef DTENSOR_OPS_H_
#define DTENSOR_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/attention_plan.h"
#include "dtensor/distributed_tensor.h"
#include "dtensor/runtime/core/attention_mask.h"

namespace dtensor {

// --- Products, of floats.
TensorOr MatMul(const TensorOr& a, const TensorOr& b);       // "m k, k n -> m n"
TensorOr Linear(const TensorOr& x, const TensorOr& weight);  // x weight^T: "... k, n k -> ... n"

// --- Element by element.
// Of numbers (not bool). Operands broadcast (sizes 1 and missing leading dimensions).
TensorOr Add(const TensorOr& a, const TensorOr& b);  // "..., ... -> ...", jointly linear
TensorOr Sub(const TensorOr& a, const TensorOr& b);
TensorOr Mul(const TensorOr& a, const TensorOr& b);  // linear in each
// Of floats.
TensorOr Scale(const TensorOr& x, double factor);
TensorOr Silu(const TensorOr& x);
// silu(gate) * up, in one pass. Operands of one shape.
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up);
// Between any types; floats to integers are cut off. x itself where it has the type. Differentiable
// between floats only. Not linear, for it rounds: a Partial x is reduced first.
TensorOr Cast(const TensorOr& x, DType dtype);

// --- Along the last dimension, which must be whole. Of floats.
TensorOr Softmax(const TensorOr& x);  // "... d! -> ... d!"
// x / sqrt(mean(x^2) + eps) * weight: "... d!, d! -> ... d!".
TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps);

// --- Reductions. Sharded reduced dimensions give Partial(sum). Dims are dropped; negative ones
// count from the end, each is given once; none leaves x as it is.
TensorOr Sum(const TensorOr& x, absl::Span<const int> dims);  // of numbers (not bool)
// The sum divided by the global count. Of floats.
TensorOr Mean(const TensorOr& x, absl::Span<const int> dims);
// Of floats, over all dimensions: an f32 scalar (f64 for f64). Not differentiable.
TensorOr SumOfSquares(const TensorOr& x);

// --- Views, of any type: nothing moves where a shard's elements stay together, else the operand is
// redistributed. A `dim` that is negative counts from the end.
TensorOr Reshape(const TensorOr& x, absl::Span<const int64_t> shape);  // one size may be -1
TensorOr Transpose(const TensorOr& x, int dim0, int dim1);
// Indices begin to end - 1 of `dim`, which must be whole (x itself where that is all of it).
TensorOr Slice(const TensorOr& x, int dim, int64_t begin, int64_t end);
// x cut along `dim`, which must be whole, into parts of these sizes: >= 0, and their sum is all of
// it.
absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes);
// 1 to 8 tensors of one type, alike in all dimensions but `dim`, which must be whole.
TensorOr Concat(absl::Span<const TensorOr> tensors, int dim);

// --- Transformers.
// Rows of table (floats) by ids (i32 or i64, not differentiable): "... @v, v d -> ... d". A sharded
// v gives P(sum). An id outside [0, v) is a failure (kOutOfRange): it ends the world.
TensorOr Embedding(const TensorOr& ids, const TensorOr& table);
// Rotary embedding of x [b, t, h, d] (floats) at its global positions 0..t-1 along dimension 1
// (rotate-half): "b t h d! -> b t h d!". d is even, theta > 0.
TensorOr Rope(const TensorOr& x, double theta);
// Attention with grouped queries, of floats: q [b, s, hq, d], k, v [b, t, hkv, d], d > 0, hkv
// divides hq. "b s (h g) d!, b t~s h d!, b t~s h d! -> b s (h g) d!". A query that sees no key
// gives 0. Other orders of dimensions are transposed views. On a mesh axis:
//
//   q      k, v   o
//   S(s)   R      S(s)  nothing moves; gradients of k and v are Partial
//   S(s)   S(t)   S(s)  ring attention, or another method; any orders, also unlike ones
//   R      S(t)   R     each rank's part is merged by log-sum-exp (decoding with a cache)
//
// and with batches or heads sharded alike, nothing moves.
//
// The options must be equal on all ranks. Ranks that disagree about mask or method get an error
// when they communicate; about scale, dropout or its seed, an error in a ring, elsewhere wrong
// numbers.
struct AttentionOptions {
  // Both sequences end together: query i is at position i + max(0, t - s) of the mask, key j at
  // j + max(0, s - t).
  AttentionMask mask = AttentionMask::Causal();
  double scale = 0;  // 0: 1/sqrt(d)
  // Where both sequences are sharded by the same axes, once batches and heads lie alike
  // (attention_plan.h); elsewhere there is one way, and this is not looked at. Automatic: the
  // fastest by the Context's links whose memory its cap allows, or, of those that are nearly as
  // fast, the one that keeps least memory. Others: that one; kInvalidArgument where there is none.
  AttentionMethod method = AttentionMethod::kAutomatic;
  // Of kAllToAll, else not looked at: the axes that move from the sequence to the heads, "u" or
  // "u,v"; the rest is a ring. Axes of size 1 do not count. Empty: all that split the sequence.
  std::string all_to_all;
  // The probability, in [0, 1), with which each weight is dropped after the softmax; the others are
  // divided by 1 - dropout. Which ones depends on the seed and on global indices alone
  // (AttentionDropout in runtime/kernels/attention.h), not on meshes or methods. Take another seed
  // for each call.
  double dropout = 0;
  uint64_t dropout_seed = 0;
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
// -log softmax(logits)[target] for each token: "... v^, ... -> ...", f32 (f64 for f64 logits). A
// sharded v costs one all-gather of three numbers a token and shard. Logits are floats, targets i32
// or i64 with one for each row of logits; `ignore` counts as 0. Another target outside [0, v) is a
// failure (kOutOfRange): it ends the world.
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore = -100);

}  // namespace dtensor

#endif  // DTENSOR_OPS_H_
