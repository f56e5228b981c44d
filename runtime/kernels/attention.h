// Scaled dot-product attention on one rank's local tensors, blocked: memory grows with s, not s *
// t. Keys may come in several calls, one block in each, in any order; partial results of the
// queries are carried from one call to the next.
//
// Query head h reads key/value head h / (Hq / Hkv). q, o, do, dq: [b, s, Hq, d]; k, v, dk, dv: [b,
// t, Hkv, d]; lse, delta: [b, Hq, s]. Tensors of rank 4 may have any strides if the last one is 1;
// so [b, h, s, d] and [s, b, h, d] are transposed views. f32, f64, bf16, f16 (the type of q, k, v,
// do). Scores and sums are in f32 (f64 for f64): "wide" below. lse is wide, and a natural
// logarithm. o = softmax(scale * q k^T) v. For a query row that sees no keys: o = 0, lse = -inf,
// gradients 0. Keys and values that a row does not see must be finite, since they may be multiplied
// by 0.
#ifndef DTENSOR_RUNTIME_KERNELS_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Dropout of attention's weights: after the softmax, each weight is kept with probability 1 - rate
// and then divided by that; lse is of all weights. Whether the weight of query i and key j is kept
// depends only on the seed, the batch entry, the query head and both positions, all of them global
// and below 2^32, so any division of the work drops the same ones. By Philox (philox.h):
//
//   key       the seed, low word first
//   counter   (j / 4, i, head, batch entry)
//   kept      if the upper 24 bits of word j % 4, over 2^24, are at least `rate`
//
// Backward draws the same: dv = (z p)^T do, ds = p * (z (do v^T) - delta), where z is 0 or 1 / (1 -
// rate). Other uses of the seed draw the same numbers, so use another seed for each call.
struct AttentionDropout {
  double rate = 0;  // in [0, 1); 0: no dropout, and no cost
  uint64_t seed = 0;
  IndexSet batches, heads;  // global indices of the batch entries and query heads of the tensors
};

// One block of keys, attended to by all queries. Rows are in ascending order of global positions.
struct AttentionStep {
  double scale = 1;
  AttentionMask mask;
  IndexSet q_positions, k_positions;  // s and t positions
  bool first = true;                  // nothing is carried yet
  bool last = true;                   // no call follows: o and lse are written
  AttentionDropout dropout;           // the same in all steps, and in backward
  // Other calls have other numbers of batch entries and keys: a GPU uses the portable kernels, and
  // not cuDNN, which would prepare a plan for each size.
  bool varies = false;
};

// One step with all positions; if causal, the query at local row i sees the keys j <= i + t - s.
AttentionStep WholeAttention(double scale, bool causal, int64_t s, int64_t t);

// The partial results of query rows, all wide: o [b, s, Hq, d], the sum of exp(score - max) v, with
// strides as above; max and sum [b, Hq, s], each row's largest score, in units of ln 2, and its sum
// of exp(score - max). Uninitialized before the first step. If the call's o is wide, it may be the
// carry's o, and lse may be max or sum: the same elements with the same strides.
struct AttentionCarry {
  Tensor o, max, sum;
};

// `carry` may be null if the step is both first and last. o, of q's type or wide, and lse are
// written in the last step, and ignored before. Dividing the same keys into other steps gives the
// same results within rounding.
absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionStep& step, const AttentionCarry* carry, const Tensor& o,
                       const Tensor& lse);

// delta = rowsum(do * o), wide. o has the type of do. `dlse`: the gradient of lse, which is
// subtracted, or undefined.
absl::Status AttentionDelta(Device& device, const Tensor& o, const Tensor& dout,
                            const Tensor& delta, const Tensor& dlse = Tensor());

// With the final lse and delta: p = exp(scale q k^T - lse), dv = p^T do, ds = p * (do v^T - delta),
// dq = scale ds k, dk = scale ds^T q (summed over the query heads of a group).
//
// dk and dv are those of this block of keys; dq is set by the first step, and the others add to it.
// Gradients have one type: q's or wide; wide if the step is not both first and last. So dq is the
// carry.
//
// `o`: the final results, from which delta was made, or null, as it must be if the gradient of lse
// is in delta: d lse / ds = p, so ds = p * (do v^T - (rowsum(do * o) - dlse)). If it has q's type,
// a GPU may compute the step by cuDNN (cudnn.h), which needs it; everything else uses delta alone.
absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& lse, const Tensor& delta, const Tensor& dout,
                           const AttentionStep& step, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const Tensor* o = nullptr);

// The results of attention over some of the keys, both wide.
struct AttentionPart {
  Tensor o, lse;
};

// Merges results over disjoint keys, in their order: lse = log(sum exp(lse_i)), o = sum exp(lse_i -
// lse) o_i. o is wide or of a type that is wide in f32; it and lse may be those of one part.
// Requires: at least one part.
absl::Status MergeAttention(Device& device, absl::Span<const AttentionPart> parts, const Tensor& o,
                            const Tensor& lse);

// All keys in one step, all results in q's type.
absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, bool causal, const Tensor& o, const Tensor& lse);
absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& o, const Tensor& lse, const Tensor& dout, double scale,
                           bool causal, const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ATTENTION_H_
