// Scaled dot-product attention on one rank's local tensors, blocked: memory grows with s, not s *
// t.
//
// Query head h reads key/value head h / (Hq / Hkv). q, o, do, dq: [b, s, Hq, d]; k, v, dk, dv: [b,
// t, Hkv, d]; lse: [b, Hq, s] f32 (f64 for f64), natural log. Inputs may have any strides with the
// last one 1. causal: the query at local row i sees the keys j <= i + t - s. A row that sees
// nothing: o = 0, lse = -inf. o = softmax(scale * q k^T) v. f32, f64, bf16, f16; scores and sums in
// f32 (f64 for f64).
#ifndef DTENSOR_RUNTIME_KERNELS_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_ATTENTION_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, bool causal, const Tensor& o, const Tensor& lse);

// With delta = rowsum(do * o): p = exp(scale q k^T - lse), dv = p^T do, ds = p * (do v^T - delta),
// dq = scale ds k, dk = scale ds^T q (summed over the query heads of a group).
absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& o, const Tensor& lse, const Tensor& dout, double scale,
                           bool causal, const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ATTENTION_H_
