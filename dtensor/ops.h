// The operators. Each is differentiable unless it says otherwise, takes errors as operands and
// passes them on, so that model code composes and is checked once:
//
//   TensorOr y = MatMul(Silu(MatMul(x, w1)), w2);
//
// Shapes are global. Rules in the notation of op_rule.h. Errors: kInvalidArgument for shapes,
// types, or arguments that do not fit, naming the operator, shapes, placements and remedy.
#ifndef DTENSOR_OPS_H_
#define DTENSOR_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/distributed_tensor.h"

namespace dtensor {

// --- Products.
TensorOr MatMul(const TensorOr& a, const TensorOr& b);       // "m k, k n -> m n"
TensorOr Linear(const TensorOr& x, const TensorOr& weight);  // x weight^T: "... k, n k -> ... n"

// --- Element by element. Operands broadcast (sizes 1 and missing leading dimensions).
TensorOr Add(const TensorOr& a, const TensorOr& b);  // "..., ... -> ...", jointly linear
TensorOr Sub(const TensorOr& a, const TensorOr& b);
TensorOr Mul(const TensorOr& a, const TensorOr& b);  // linear in each
TensorOr Scale(const TensorOr& x, double factor);
TensorOr Silu(const TensorOr& x);
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up);  // silu(gate) * up, in one pass
TensorOr Cast(const TensorOr& x, DType dtype);

// --- Along the last dimension, which must be whole.
TensorOr Softmax(const TensorOr& x);                                      // "... d! -> ... d!"
TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps);  // "... d!, d! -> ... d!"

// --- Reductions. Sharded reduced dimensions give Partial. Dims are dropped; negative ones count
// from the end; none leaves x as it is.
TensorOr Sum(const TensorOr& x, absl::Span<const int> dims);
// The sum divided by the global count: P(sum). Floats.
TensorOr Mean(const TensorOr& x, absl::Span<const int> dims);
TensorOr SumOfSquares(const TensorOr& x);  // f32 scalar (f64 for f64), P(sum); not differentiable

// --- Views: nothing moves where a shard's elements stay together, else the operand is
// redistributed.
TensorOr Reshape(const TensorOr& x, absl::Span<const int64_t> shape);  // one size may be -1
TensorOr Transpose(const TensorOr& x, int dim0, int dim1);
TensorOr Slice(const TensorOr& x, int dim, int64_t begin, int64_t end);  // dim must be whole
absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes);
TensorOr Concat(absl::Span<const TensorOr> tensors, int dim);  // 1 to 8 tensors; dim must be whole

// --- Transformers.
// Rows of table by ids (i32 or i64, not differentiable): "... @v, v d -> ... d". A sharded v gives
// P(sum).
TensorOr Embedding(const TensorOr& ids, const TensorOr& table);
// Rotary embedding of x [b, t, h, d] at its global positions 0..t-1 along dimension 1
// (rotate-half): "b t h d! -> b t h d!".
TensorOr Rope(const TensorOr& x, double theta);
// Attention with grouped queries: q [b, s, hq, d], k, v [b, t, hkv, d], hkv divides hq.
// "b s! (h g) d!, b t! h d!, b t! h d! -> b s! (h g) d!". scale 0 means 1/sqrt(d).
struct AttentionOptions {
  bool causal = true;  // query i sees keys j <= i + t - s
  double scale = 0;
};
TensorOr Attention(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                   const AttentionOptions& options);
// -log softmax(logits)[target] for each token: "... v^, ... -> ...". A sharded v costs one
// all-gather of three numbers a token and shard. Targets i32 or i64; `ignore` counts as 0.
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore = -100);

}  // namespace dtensor

#endif  // DTENSOR_OPS_H_
