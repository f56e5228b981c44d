// The operators. Each is differentiable unless it says otherwise. An operator accepts errors as
// operands and passes them on, so that model code can be nested and checked once:
//
//   TensorOr y = MatMul(Silu(MatMul(x, w1)), w2);
//
// Shapes are global. Rules are in the notation of op_rule.h; results that are kept for backward
// only are not shown. Operands are redistributed if the rule needs them in another layout; a
// dimension that it marks "!" is gathered first if it is sharded. Unless stated otherwise, all
// operands have the same type, which is also the results'. Results may share storage with operands.
//
// Errors: kInvalidArgument for undefined operands, operands of two Contexts or meshes, and for
// shapes, types or arguments that do not fit, naming the operator, shapes, placements and remedy;
// failures.
#ifndef DTENSOR_OPS_OPS_H_
#define DTENSOR_OPS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/attention/attention.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/rope_scaling.h"
#include "dtensor/runtime/core/swiglu_clamp.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// --- Products, of floats.
// Products of matrices: "... m k, ... k n -> ... m n". Leading dimensions broadcast.
TensorOr MatMul(const TensorOr& a, const TensorOr& b);
TensorOr Linear(const TensorOr& x, const TensorOr& weight);  // x weight^T: "... k, n k -> ... n"
// The same plus `bias` [n], added once: if k is sharded, to the reduced sum, else to the product.
TensorOr Linear(const TensorOr& x, const TensorOr& weight, const TensorOr& bias);
// Whether the result of Linear(x, weight) would be Partial; computes nothing. If it would, and you
// redistribute the result anyway, add a bias after that: adding it before would make an all-reduce
// of what is otherwise one reduce-scatter. Errors: those of Linear.
absl::StatusOr<bool> LinearIsPartial(const TensorOr& x, const TensorOr& weight);

// A product of one or two tensors by their dimensions' letters, as einsum elsewhere: summed over
// each letter that the result lacks. `rule` is in the notation of op_rule.h, without marks:
//
//   Einsum("b q h d, b k h d -> b h q k", q, k)                    scores of attention
//   Einsum("... i, (h d) i -> ... h d", x, w, {{"h", 16}})         a projection onto 16 heads
//   Einsum("b t (h d) -> h t b d", x, {{"h", 16}})                 dimensions split and reordered
//
// Letters are words with spaces between them. `sizes` has those that the shapes do not say. The
// text is the operator's rule: any letter may be sharded; where it is summed, the result is
// P(sum). A letter that one operand alone has and the result lacks is summed before the product,
// and that sum is rounded to the type. Only dimensions of "..." broadcast; "()" is one of size 1.
// Errors also for a letter that is twice in one tensor, or in the result alone. For floats.
TensorOr Einsum(absl::string_view rule, const TensorOr& x, const LetterSizes& sizes = {});
TensorOr Einsum(absl::string_view rule, const TensorOr& a, const TensorOr& b,
                const LetterSizes& sizes = {});

// --- Element by element. Several operands broadcast (sizes 1 and missing leading dimensions),
// "..., ... -> ...". Gradients at 0, infinities and NaN are PyTorch's.
// For numbers (not bool):
TensorOr Add(const TensorOr& a, const TensorOr& b);  // jointly linear, as Sub, AddN and Neg
TensorOr Sub(const TensorOr& a, const TensorOr& b);
TensorOr AddN(absl::Span<const TensorOr> tensors);   // of 1 to 8, rounded once
TensorOr Mul(const TensorOr& a, const TensorOr& b);  // linear in each
// If either element is NaN, so is the result. If they are equal, each gets half of the gradient.
TensorOr Maximum(const TensorOr& a, const TensorOr& b);
TensorOr Minimum(const TensorOr& a, const TensorOr& b);
TensorOr Neg(const TensorOr& x);
// For floats. The rule engine does not treat Div as linear: a Partial numerator is reduced first.
// If the denominator is a number, use Scale, which keeps Partial.
TensorOr Div(const TensorOr& a, const TensorOr& b);
TensorOr Scale(const TensorOr& x, double factor);  // linear
TensorOr AddScalar(const TensorOr& x, double summand);
TensorOr Abs(const TensorOr& x);  // its slope at 0 is 0
TensorOr Exp(const TensorOr& x);  // Partial(max) and (min) pass Exp, AddScalar, Relu, Sigmoid, Tanh
TensorOr Log(const TensorOr& x);
TensorOr Sqrt(const TensorOr& x);
TensorOr Rsqrt(const TensorOr& x);  // 1 / sqrt(x)
// As std::pow, except that for exponents 1/2 and -1/2 the results for -0 and -inf are those of Sqrt
// and Rsqrt.
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
// silu(gate) * up, in one pass. The operands have the same shape.
TensorOr SiluMul(const TensorOr& gate, const TensorOr& up);
// Each element becomes 0 with probability p, else x / (1 - p); 0 <= p < 1. Which elements are
// dropped depends only on the seed and the element's global index, not on layouts: use a different
// seed for each call. Linear.
TensorOr Dropout(const TensorOr& x, double p, uint64_t seed);
// For numbers; the results are bool, and not differentiable. With NaN, all are false except
// NotEqual.
TensorOr Equal(const TensorOr& a, const TensorOr& b);
TensorOr NotEqual(const TensorOr& a, const TensorOr& b);
TensorOr Less(const TensorOr& a, const TensorOr& b);
TensorOr LessEqual(const TensorOr& a, const TensorOr& b);
TensorOr Greater(const TensorOr& a, const TensorOr& b);
TensorOr GreaterEqual(const TensorOr& a, const TensorOr& b);
// For bools.
TensorOr LogicalAnd(const TensorOr& a, const TensorOr& b);
TensorOr LogicalOr(const TensorOr& a, const TensorOr& b);
TensorOr LogicalNot(const TensorOr& a);
// condition ? a : b. The condition is bool; a and b have the same type, which may be any.
TensorOr Where(const TensorOr& condition, const TensorOr& a, const TensorOr& b);
// `low` where x is less, `high` where x is greater, else x, for floats; NaN stays. A bound may be
// infinite. The slope is 1 between the bounds, and 0 elsewhere, also at the bounds and for NaN.
TensorOr Clamp(const TensorOr& x, double low, double high);
// Converts between any types; floats become integers by truncation. Returns x itself if it already
// has the type. Differentiable between floats only. Not linear, because it rounds: a Partial x is
// reduced first.
TensorOr Cast(const TensorOr& x, DType dtype);
// A copy, in memory of its own, of any type and in x's layout; a Partial x stays Partial. (A
// Redistribute() to the same layout copies only when one of the two is written to.)
TensorOr Clone(const TensorOr& x);

// --- Along the last dimension, for floats. If it is sharded, each rank computes statistics of its
// part of each row, a few numbers, and one all-gather exchanges them; one more in backward.
// "2 and 1" below: how many numbers per row and shard are gathered in forward and in backward.
TensorOr Softmax(const TensorOr& x);     // "... d^ -> ... d^"; 2 and 1. A row of -inf gives zeros.
TensorOr LogSoftmax(const TensorOr& x);  // "... d^ -> ... d^"; 2 and 1. A row of -inf stays that.
// x / sqrt(mean(x^2) + eps) * weight: "... d^, d^ -> ... d^"; 1 and 1.
TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps);
// (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; the variance divides by d (not d - 1):
// "... d^, d^, d^ -> ... d^"; 3 (f64) and 2.
TensorOr LayerNorm(const TensorOr& x, const TensorOr& weight, const TensorOr& bias, double eps);

// --- Reductions. If a reduced dimension is sharded, the result is Partial(sum). Reduced dims are
// dropped. Negative dims count from the end; each may be given once; without dims the result is x.
TensorOr Sum(const TensorOr& x, absl::Span<const int> dims);  // of numbers (not bool)
// The sum divided by the global count; each rank divides its term before it is rounded to x's type.
// For floats.
TensorOr Mean(const TensorOr& x, absl::Span<const int> dims);
// The sum of squares over all dimensions, of floats: an f32 scalar (f64 for f64).
TensorOr SumOfSquares(const TensorOr& x);

// The sums of the elements along `dim` up to each of them, of numbers (not bool): "d0 d1^ -> d0
// d1^", linear, of x's type. If the dimension is sharded, one all-gather exchanges the shards'
// sums; an order of more than eight rounds, as cyclic may be, is brought to a contiguous one first.
// Added in f32 for 16-bit floats; integers wrap around.
TensorOr CumSum(const TensorOr& x, int dim);

// --- Maximum and minimum, of numbers (not bool), over dimensions that are not empty: "d0 d1^ ->
// d0". If a reduced dimension is sharded, one all-gather exchanges the shards' results, and the
// result is nowhere Partial.
// Dims as above. If an element is NaN, so is the result. Gradients are those of PyTorch's amax and
// amin: elements that tie share the gradient evenly; if the result is NaN, all gradients are NaN.
TensorOr Max(const TensorOr& x, absl::Span<const int> dims);
TensorOr Min(const TensorOr& x, absl::Span<const int> dims);
// The index along `dim` (negative: from the end) of the largest element, i64. If elements tie, the
// lowest index; if there is a NaN, its index. Not differentiable.
TensorOr ArgMax(const TensorOr& x, int dim);
// The k largest elements along the last dimension, in descending order, and their indices in it:
// {values [..., k], indices [..., k] i64}, 0 <= k <= d: "... d! -> ... k!, ... k!". If elements
// tie, the lowest index comes first; a NaN counts as larger than all numbers. The indices have no
// gradient. Meant for a small k: on a GPU the time grows with k times d.
absl::StatusOr<std::vector<DistributedTensor>> TopK(const TensorOr& x, int64_t k);
// Elements of x along `dim` (negative: from the end) by their indices in it, as TopK gives them for
// the last one: y[..., j] = x[..., indices[..., j]] for x [..., d] of any type and indices [..., k]
// i64, with the same other dimensions: "... d!, ... k! -> ... k!", where dimension `dim` comes
// last. The gradient of an element is the sum over all places where it was taken; meant for a small
// k. An index outside [0, d) is a failure (kOutOfRange): it ends the world.
TensorOr TakeAlongDim(const TensorOr& x, const TensorOr& indices, int dim = -1);

// --- Views, for any type. Nothing moves if the elements of a shard stay together; otherwise the
// operand is redistributed. A negative `dim` counts from the end.
TensorOr Reshape(const TensorOr& x, absl::Span<const int64_t> shape);  // one size may be -1
TensorOr Transpose(const TensorOr& x, int dim0, int dim1);
// Reorders the dimensions: dimension i of the result is dims[i] of x. Negative dims count from the
// end; each is given once.
TensorOr Permute(const TensorOr& x, absl::Span<const int> dims);
// Broadcasts x to `shape`: sizes of 1 become other sizes, and dimensions may be added in front. The
// result takes no memory, and cannot be written to.
TensorOr Expand(const TensorOr& x, absl::Span<const int64_t> shape);

// --- Cutting and joining along `dim`, for any type. Negative dims count from the end.
// Let r be the largest number that divides the dimension and all sizes and offsets given. If the
// dimension is sharded within its groups of r elements (layout [_ x r(tp)], a cyclic order),
// nothing moves and the results are sharded in the same way. If it is sharded otherwise, x is
// redistributed to that layout, or gathered if r has fewer elements than there are shards; results
// are then values of their own and not views of x, on every rank.
// Indices begin to end - 1, as a view (x itself if that is all of it).
TensorOr Slice(const TensorOr& x, int dim, int64_t begin, int64_t end);
// Cuts x into parts of these sizes, as views. The sizes are >= 0 and add up to the dimension.
absl::StatusOr<std::vector<DistributedTensor>> SplitTensor(const TensorOr& x, int dim,
                                                           absl::Span<const int64_t> sizes);
inline constexpr size_t kMostJoined = 32;
// Joins 1 to 32 tensors of one type, which have equal sizes in all dimensions but `dim`.
TensorOr Concat(absl::Span<const TensorOr> tensors, int dim);
// Joins 1 to 32 tensors of one type and shape along a new dimension, number `dim` of the result.
TensorOr Stack(absl::Span<const TensorOr> tensors, int dim);
// Puts `before` elements of `value` before x and `after` behind it; both are >= 0.
TensorOr Pad(const TensorOr& x, int dim, int64_t before, int64_t after, double value = 0);

// --- Where elements stand. Nothing moves, except as said, and a Partial operand is reduced.
// (Arange, in distributed_tensor.h, makes the indices themselves.)
// x with zeros above (below) a diagonal of the last two dimensions: where column - row > diagonal
// (< diagonal). Of any type.
TensorOr Tril(const TensorOr& x, int64_t diagonal = 0);
TensorOr Triu(const TensorOr& x, int64_t diagonal = 0);
// [...] i32 or i64 gives [..., n] with 1 at the index that the id is, else 0; only zeros for ids
// outside [0, n). The classes are not sharded.
TensorOr OneHot(const TensorOr& ids, int64_t n, DType dtype = DType::kF32);
// The elements with these indices along `dim`, as of Embedding, which this is: of floats, and
// Partial(sum) if the dimension is sharded. The other dimensions are joined, as by Reshape. ids:
// [m] i32 or i64.
TensorOr IndexSelect(const TensorOr& x, int dim, const TensorOr& ids);

// --- Transformers. Attention: dtensor/attention/attention.h.
// Picks rows of table (floats) by ids (i32 or i64, not differentiable): "... @v, v d -> ... d". If
// v is sharded, the result is P(sum). An id outside [0, v) is a failure (kOutOfRange): it ends the
// world.
TensorOr Embedding(const TensorOr& ids, const TensorOr& table);
// How often each of 0..n-1 occurs among ids [...] (i32 or i64): [n], "... -> n!", f32 or f64. The
// result is P(sum) where ids are sharded. It is a float, so that it may stay Partial: in f32 a rank
// counts up to 2^24 exactly. Other ids are not counted. Not differentiable.
TensorOr Bincount(const TensorOr& ids, int64_t n, DType dtype = DType::kF32);
// The MLPs of a mixture of experts. Each token picks some of e experts, and
//
//   y = sum over j of weights[j] down[id] (silu(gate[id] x) * up[id] x),   id = experts[j]
//
// for x [..., i], experts (ids, i32 or i64, not differentiable) and weights [..., c], gate and up
// [e, f, i] and down [e, d, f]:
//
//   "... i!, ... c @e, ... c, e<... f i!, e<... f i!, e<... d f -> ... d"
//
// So tokens may be sharded, and experts, or the experts' features f and d. On an axis that shards e
// alone, f or c, the result is P(sum). On one that shards tokens and experts, each token is sent to
// the ranks that have experts of its picks, and their results come back: two all-to-alls, and an
// all-gather of the ids; the same in backward. An expert works on the tokens that picked it,
// however many they are, and none is dropped: a rank needs memory for the tokens that pick its
// experts. The ids are read on the host, where the rank waits for them, and each expert that has
// tokens makes products of its own, in forward and in backward. Tokens of x, experts and weights
// are the same dimensions: they do not broadcast. An id outside [0, e) is a failure (kOutOfRange):
// it ends the world.
TensorOr ExpertMlp(const TensorOr& x, const TensorOr& experts, const TensorOr& weights,
                   const TensorOr& gate, const TensorOr& up, const TensorOr& down);
// The experts of GPT-OSS; else as ExpertMlp. Of each pick, with (gate, up, gate, up, ...) =
// x gate_up[id] + gate_up_bias[id],
//
//   y = sum over j of weights[j] (h down[id] + down_bias[id])
//   h = (u + 1) g sigmoid(slope g),  g = min(gate, limit), u = min(max(up, -limit), limit)
//
// for gate_up [e, i, 2 f], gate_up_bias [e, 2 f], down [e, f, d] and down_bias [e, d]: matrices
// multiply from the right, as that model's files have them. A gate stays with its up:
//
//   "... i!, ... c @e, ... c, e<... i! (f p!), e<... (f p!), e<... f d, e<... d -> ... d"
TensorOr ClampedExpertMlp(const TensorOr& x, const TensorOr& experts, const TensorOr& weights,
                          const TensorOr& gate_up, const TensorOr& gate_up_bias,
                          const TensorOr& down, const TensorOr& down_bias,
                          const SwiGluClamp& clamp = {});
// Attention with a sink for each head: its softmax counts one more key, whose score is the sink for
// all queries, and whose value is 0. So a query may attend to little (GPT-OSS; Xiao et al.,
// "Efficient Streaming Language Models with Attention Sinks", 2023):
//
//   o_i = sum_j exp(s_ij) v_j / (exp(sinks[h]) + sum_j exp(s_ij))
//
// sinks [hq], of q's type, on its mesh; they are redistributed to the layout of the heads. All else
// is as for Attention. If gradients are recorded, GPUs compute backward without cuDNN.
TensorOr AttentionWithSinks(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                            const TensorOr& sinks, const AttentionOptions& options);
// Rotary embedding (rotate-half) of x [b, t, h, d] (floats). The positions in dimension 1 are
// global: offset..offset+t-1. "b t h d! -> b t h d!". d is even, theta > 0, 0 <= offset < 2^40.
// Another offset, as in each step of decoding, needs no new dispatch decision.
TensorOr Rope(const TensorOr& x, double theta, int64_t offset = 0);
// Rope with more options. The scaling is for models that were extended to more positions than they
// were first trained on, by one of Hugging Face's rules "linear", "llama3" and "yarn"
// (rope_scaling.h).
// Token i of batch entry r is at position i + offset + row_offsets[r]. row_offsets is empty or has
// one entry per batch entry, for batches of sequences of different lengths. Row offsets are not
// differentiable, so they are refused while the Context records. They need no new dispatch decision
// either.
struct RopeOptions {
  double theta = 10000;
  RopeScaling scaling = {};
  int64_t offset = 0;
  std::vector<int64_t> row_offsets = {};
};
TensorOr Rope(const TensorOr& x, const RopeOptions& options);
// -log softmax(logits)[target] for each token: "... v^, ... -> ...", f32 (f64 for f64 logits). If v
// is sharded, this costs one all-gather of three numbers per token and shard. Logits are floats;
// targets are i32 or i64, one for each row of logits. The loss of target `ignore` is 0. Any other
// target outside [0, v) is a failure (kOutOfRange): it ends the world. Losses and gradients are
// computed from differences to the row's largest logit: a number added to all logits changes them
// only by what it does to the logits' own rounding.
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore = -100);
// CrossEntropy with more options. With label smoothing s, the target keeps 1 - s, and each of the K
// classes gets s / K: loss = lse - (1 - s) x[target] - s / K sum_j x[j], as in
// torch.nn.functional.cross_entropy; shards then gather five numbers per token. If `classes` is
// set, only the first columns of the logits are classes (a padded vocabulary): the other columns
// are not read, their gradient is 0, K is `classes`, and targets are below K.
struct CrossEntropyOptions {
  int64_t ignore = -100;
  double label_smoothing = 0;  // 0 to 1
  int64_t classes = 0;         // 0: all columns
};
TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets,
                      const CrossEntropyOptions& options);
// The mean of these losses over all targets that are not ignored, in any layout: a scalar, also if
// tokens are sharded (one all-gather of two numbers per shard). NaN if all are ignored, with
// gradients of 0, as in PyTorch.
TensorOr CrossEntropyMean(const TensorOr& logits, const TensorOr& targets,
                          const CrossEntropyOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_OPS_OPS_H_
