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
#ifndef DTENSOR_OPS_OPS_H_
#define DTENSOR_OPS_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/attention/attention.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// --- Products, of floats.
// Matrix by matrix: "... m k, ... k n -> ... m n". Leading dimensions broadcast.
TensorOr MatMul(const TensorOr& a, const TensorOr& b);
TensorOr Linear(const TensorOr& x, const TensorOr& weight);  // x weight^T: "... k, n k -> ... n"
// The same and `bias` [n], added once: where k is sharded, to the reduced sum, else on the way.
TensorOr Linear(const TensorOr& x, const TensorOr& weight, const TensorOr& bias);
// Whether the result of Linear(x, weight) would be Partial; computes nothing. If it would, and you
// redistribute the result anyway, add a bias after that: adding it before would make an all-reduce
// of what is otherwise one reduce-scatter. Errors: those of Linear.
absl::StatusOr<bool> LinearIsPartial(const TensorOr& x, const TensorOr& weight);

// --- Element by element. Of several operands: they broadcast (sizes 1 and missing leading
// dimensions), "..., ... -> ...". Gradients at 0, infinities and NaN are PyTorch's.
// Of numbers (not bool).
TensorOr Add(const TensorOr& a, const TensorOr& b);  // jointly linear, as Sub, AddN and Neg
TensorOr Sub(const TensorOr& a, const TensorOr& b);
TensorOr AddN(absl::Span<const TensorOr> tensors);   // of 1 to 8, rounded once
TensorOr Mul(const TensorOr& a, const TensorOr& b);  // linear in each
// NaN on either side is the result. Where operands are equal, each gets half of the gradient.
TensorOr Maximum(const TensorOr& a, const TensorOr& b);
TensorOr Minimum(const TensorOr& a, const TensorOr& b);
TensorOr Neg(const TensorOr& x);
// Of floats. Div is not linear for the rule engine: a Partial numerator is reduced first; where the
// denominator is a number, Scale passes it on.
TensorOr Div(const TensorOr& a, const TensorOr& b);
TensorOr Scale(const TensorOr& x, double factor);  // linear
TensorOr AddScalar(const TensorOr& x, double summand);
TensorOr Abs(const TensorOr& x);  // its slope at 0 is 0
TensorOr Exp(const TensorOr& x);  // Partial(max) and (min) pass Exp, AddScalar, Relu, Sigmoid, Tanh
TensorOr Log(const TensorOr& x);
TensorOr Sqrt(const TensorOr& x);
TensorOr Rsqrt(const TensorOr& x);  // 1 / sqrt(x)
// As std::pow, but the square roots of -0 and -inf, for 1/2 and -1/2, are those of Sqrt and Rsqrt.
TensorOr Pow(const TensorOr& x, double exponent);
TensorOr Relu(const TensorOr& x);  // its slope at 0 is 0
TensorOr Sigmoid(const TensorOr& x);
TensorOr Tanh(const TensorOr& x);
enum class GeluForm : uint8_t {
  kErf,  // x Phi(x), Phi the normal distribution
  kTanh  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};
TensorOr Gelu(const TensorOr& x, GeluForm form = GeluForm::kErf);
TensorOr Silu(const TensorOr& x);  // x sigmoid(x)
// silu(gate) * up, in one pass. Operands of one shape.
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up);
// Each element is 0 with probability p, else x / (1 - p); 0 <= p < 1. Which ones depends on the
// seed and the global index of the element alone, not on layouts: take another seed for each call.
// Linear.
TensorOr Dropout(const TensorOr& x, double p, uint64_t seed);
// Of numbers, results bool, not differentiable. With NaN all are false but NotEqual.
TensorOr Equal(const TensorOr& a, const TensorOr& b);
TensorOr NotEqual(const TensorOr& a, const TensorOr& b);
TensorOr Less(const TensorOr& a, const TensorOr& b);
TensorOr LessEqual(const TensorOr& a, const TensorOr& b);
TensorOr Greater(const TensorOr& a, const TensorOr& b);
TensorOr GreaterEqual(const TensorOr& a, const TensorOr& b);
// Of bools.
TensorOr LogicalAnd(const TensorOr& a, const TensorOr& b);
TensorOr LogicalOr(const TensorOr& a, const TensorOr& b);
TensorOr LogicalNot(const TensorOr& a);
// condition ? a : b. The condition is bool; a and b are of one type, any.
TensorOr Where(const TensorOr& condition, const TensorOr& a, const TensorOr& b);
// Between any types; floats to integers are cut off. x itself where it has the type. Differentiable
// between floats only. Not linear, for it rounds: a Partial x is reduced first.
TensorOr Cast(const TensorOr& x, DType dtype);

// --- Along the last dimension. Of floats. Where it is sharded, each rank makes statistics of its
// part of a row, a few numbers, which one all-gather brings to the others; one more in backward.
// Here, numbers for each row and shard, forward and backward.
TensorOr Softmax(const TensorOr& x);     // "... d^ -> ... d^"; 2 and 1. A row of -inf gives zeros.
TensorOr LogSoftmax(const TensorOr& x);  // "... d^ -> ... d^"; 2 and 1. A row of -inf stays that.
// x / sqrt(mean(x^2) + eps) * weight: "... d^, d^ -> ... d^"; 1 and 1.
TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps);
// (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, with the variance about the mean of all
// d (not d - 1): "... d^, d^, d^ -> ... d^"; 3 (f64) and 2.
TensorOr LayerNorm(const TensorOr& x, const TensorOr& weight, const TensorOr& bias, double eps);

// --- Reductions. Sharded reduced dimensions give Partial(sum). Dims are dropped; negative ones
// count from the end, each is given once; none leaves x as it is.
TensorOr Sum(const TensorOr& x, absl::Span<const int> dims);  // of numbers (not bool)
// The sum divided by the global count, each rank's term before it is rounded to x's type. Of
// floats.
TensorOr Mean(const TensorOr& x, absl::Span<const int> dims);
// Of floats, over all dimensions: an f32 scalar (f64 for f64).
TensorOr SumOfSquares(const TensorOr& x);

// --- Largest and smallest, of numbers (not bool), over dimensions that have elements: "d0 d1^ ->
// d0". Where a reduced dimension is sharded, one all-gather brings the shards' results together, so
// that the whole one is nowhere Partial.
// Dims as above. A NaN among the elements is the result. Gradients are PyTorch's amax and amin:
// elements that tie share them evenly (all of NaN where the result is NaN).
TensorOr Max(const TensorOr& x, absl::Span<const int> dims);
TensorOr Min(const TensorOr& x, absl::Span<const int> dims);
// The index along `dim` (negative: from the end) of the largest element, i64: the lowest of those
// that tie, and of a NaN where there is one. Not differentiable.
TensorOr ArgMax(const TensorOr& x, int dim);

// --- Views, of any type: nothing moves where a shard's elements stay together, else the operand is
// redistributed. A `dim` that is negative counts from the end.
TensorOr Reshape(const TensorOr& x, absl::Span<const int64_t> shape);  // one size may be -1
TensorOr Transpose(const TensorOr& x, int dim0, int dim1);
// The dimensions in another order: dimension i of the result is dims[i] of x. Negative dims count
// from the end; each is given once.
TensorOr Permute(const TensorOr& x, absl::Span<const int> dims);
// x broadcast to `shape`: its sizes of 1 become others, and dimensions may be added in front. Takes
// no memory; nobody writes to it.
TensorOr Expand(const TensorOr& x, absl::Span<const int64_t> shape);

// --- Cutting and joining along `dim`, for any type. Negative dims count from the end.
// Let r be the largest number that divides the dimension and all sizes and offsets given. If the
// dimension is sharded within its groups of r elements (layout [_ x r(tp)], a cyclic order),
// nothing moves and the results are sharded in the same way. If it is sharded otherwise, x is
// redistributed to that layout, or gathered if r has fewer elements than there are shards; results
// are then values of their own and not views of x, on every rank.
// Indices begin to end - 1, as a view (x itself where that is all of it).
TensorOr Slice(const TensorOr& x, int dim, int64_t begin, int64_t end);
// x cut into parts of these sizes, views: >= 0, and their sum is all of it.
absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes);
// 1 to 32 tensors of one type, alike in all dimensions but `dim`.
TensorOr Concat(absl::Span<const TensorOr> tensors, int dim);
// 1 to 32 tensors of one type and shape, along a new dimension, number `dim` of the result.
TensorOr Stack(absl::Span<const TensorOr> tensors, int dim);
// x between `before` and `after` elements of `value`; both are >= 0.
TensorOr Pad(const TensorOr& x, int dim, int64_t before, int64_t after, double value = 0);

// --- Transformers. Attention: dtensor/attention/attention.h.
// Rows of table (floats) by ids (i32 or i64, not differentiable): "... @v, v d -> ... d". A sharded
// v gives P(sum). An id outside [0, v) is a failure (kOutOfRange): it ends the world.
TensorOr Embedding(const TensorOr& ids, const TensorOr& table);
// Rotary embedding of x [b, t, h, d] (floats) at the positions offset..offset+t-1 of dimension 1,
// global ones (rotate-half): "b t h d! -> b t h d!". d is even, theta > 0, 0 <= offset < 2^40.
// Another offset, as each step of decoding has, is no new decision.
TensorOr Rope(const TensorOr& x, double theta, int64_t offset = 0);
// With more to say. Frequencies are slowed down where a model was made for more positions than it
// was trained on first: Hugging Face's "linear" where `trained` is 0, else its "llama3", whose
// low_freq_factor, high_freq_factor and original_max_position_embeddings these are.
struct RopeScaling {
  double factor = 1;         // 1: none
  double low = 1, high = 4;  // low < high
  double trained = 0;
};
// Token i of batch entry r is at position i + offset + row_offsets[r], where there are any: as many
// as entries, for a batch of sequences of unlike lengths. Those are not differentiable, and refused
// while the Context records. They, too, are no new decision.
struct RopeOptions {
  double theta = 10000;
  RopeScaling scaling = {};
  int64_t offset = 0;
  std::vector<int64_t> row_offsets = {};
};
TensorOr Rope(const TensorOr& x, const RopeOptions& options);
// -log softmax(logits)[target] for each token: "... v^, ... -> ...", f32 (f64 for f64 logits). A
// sharded v costs one all-gather of three numbers a token and shard. Logits are floats, targets i32
// or i64 with one for each row of logits; `ignore` counts as 0. Another target outside [0, v) is a
// failure (kOutOfRange): it ends the world.
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore = -100);
// With more to say. Of labels that are smoothed by s the target keeps 1 - s, and each of the K
// classes gets s / K: loss = lse - (1 - s) x[target] - s / K sum_j x[j], as
// torch.nn.functional.cross_entropy does; shards then gather four numbers a token. Where `classes`
// says so, only the first columns of the logits are classes (a padded vocabulary): the others are
// not read, their gradient is 0, and K, the classes, is what targets are below.
struct CrossEntropyOptions {
  int64_t ignore = -100;
  double label_smoothing = 0;  // 0 to 1
  int64_t classes = 0;         // 0: all columns
};
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets,
                      const CrossEntropyOptions& options);
// The mean of these losses over all targets that are not ignored, wherever they lie: a scalar, also
// where tokens are sharded (one all-gather of two numbers a shard). NaN where all are ignored, with
// gradients of 0, as in PyTorch.
TensorOr CrossEntropyMean(const TensorOr& logits, const TensorOr& targets,
                          const CrossEntropyOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_OPS_OPS_H_
