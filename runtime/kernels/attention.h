// Scaled dot-product attention on one rank's local tensors, blocked: memory grows with s, not s *
// t. Keys may come in several calls, a block of them in each, in any order; what the queries
// have gathered is carried from one call to the next.
//
// Query head h reads key/value head h / (Hq / Hkv). q, o, do, dq: [b, s, Hq, d]; k, v, dk, dv: [b,
// t, Hkv, d]; lse, delta: [b, Hq, s]. Tensors of rank 4 may have any strides with the last one 1;
// so [b, h, s, d] and [s, b, h, d] are transposed views. f32, f64, bf16, f16 (the type of q, k, v,
// do); scores and sums in f32 (f64 for f64): "wide" below. lse is wide, natural log.
// o = softmax(scale * q k^T) v. A row that sees nothing: o = 0, lse = -inf, gradients 0. Keys and
// values that a row does not see must be finite: they may be multiplied by 0.
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

// Dropout of attention's weights: after the softmax each one is kept with probability 1 - rate, and
// then divided by that; lse is that of all. Whether the weight of query i and key j is kept depends
// on the seed, the batch entry, the query head and both positions alone, all of them global and
// below 2^32, so that any division of the work drops the same ones. By Philox (philox.h):
//
//   key       the seed, low word first
//   counter   (j / 4, i, head, batch entry)
//   kept      if the upper 24 bits of word j % 4, over 2^24, are at least `rate`
//
// Backward repeats that: dv = (z p)^T do, ds = p * (z (do v^T) - delta), where z is 0 or 1 / (1 -
// rate). Other uses of the seed draw the same numbers: take another one for each call.
struct AttentionDropout {
  double rate = 0;  // in [0, 1); 0: no dropout, and no cost
  uint64_t seed = 0;
  IndexSet batches, heads;  // global indices of the batch entries and query heads of the tensors
};

// One block of keys, met by all queries. Rows lie in ascending order of their global positions.
struct AttentionStep {
  double scale = 1;
  AttentionMask mask;
  IndexSet q_positions, k_positions;  // s and t of them
  bool first = true;                  // nothing is carried yet
  bool last = true;                   // no call follows: o and lse are made
  AttentionDropout dropout;           // the same in all steps, and in backward
};

// One step with all positions; causal: the query at local row i sees the keys j <= i + t - s.
AttentionStep WholeAttention(double scale, bool causal, int64_t s, int64_t t);

// What query rows have gathered, all wide: o [b, s, Hq, d], the sum of exp(score - max) v, with
// strides as above; max and sum [b, Hq, s], each row's largest score, in units of ln 2, and its sum
// of exp(score - max). Uninitialized before the first step. Where the call's o is wide, it may be
// the carry's o, and lse may be max or sum: the same elements with the same strides.
struct AttentionCarry {
  Tensor o, max, sum;
};

// `carry` may be null where a step is first and last. o, of q's type or wide, and lse are written
// in the last step, and ignored before. The same keys in other steps give the same results within
// rounding.
absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionStep& step, const AttentionCarry* carry, const Tensor& o,
                       const Tensor& lse);

// delta = rowsum(do * o), wide. o has the type of do.
absl::Status AttentionDelta(Device& device, const Tensor& o, const Tensor& dout,
                            const Tensor& delta);

// With the final lse and delta: p = exp(scale q k^T - lse), dv = p^T do, ds = p * (do v^T - delta),
// dq = scale ds k, dk = scale ds^T q (summed over the query heads of a group).
//
// dk and dv are the block's, dq is set by the first step and added to by the others. Gradients have
// one type: q's or wide; wide in a step that is not both first and last. So dq is the carry.
//
// `o`: the final results, of which delta was made, or null. With those of q's type a GPU may
// compute the step by cuDNN (cudnn.h), which needs them; all else takes delta alone.
absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& lse, const Tensor& delta, const Tensor& dout,
                           const AttentionStep& step, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const Tensor* o = nullptr);

// The results of attention over some of the keys, both wide.
struct AttentionPart {
  Tensor o, lse;
};

// Joins results over disjoint keys, in their order: lse = log(sum exp(lse_i)), o = sum exp(lse_i -
// lse) o_i. o is wide or of a type that is wide in f32; it and lse may be one part's. Requires: a
// part.
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
