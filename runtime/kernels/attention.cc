#include "dtensor/runtime/kernels/attention.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention_block.h"

namespace dtensor::kernels {
namespace {

// Of [b, s, h, d]; a row's elements must be adjacent.
AttentionOperand OperandOf(const Tensor& tensor) {
  DT_CHECK(tensor.rank() == 4 && (tensor.strides()[3] == 1 || tensor.size(3) <= 1));
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[2], tensor.strides()[1]};
}

// Of lse, [b, h, s].
AttentionOperand StatisticsOf(const Tensor& tensor) {
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[1], tensor.strides()[2]};
}

AttentionShape ShapeOf(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                       const Tensor& o, const Tensor& lse) {
  DT_CHECK(q.rank() == 4 && k.rank() == 4);
  AttentionShape shape;
  shape.dtype = q.dtype();
  shape.batch = q.size(0);
  shape.q_rows = q.size(1);
  shape.q_heads = q.size(2);
  shape.dim = q.size(3);
  shape.keys = k.size(1);
  shape.kv_heads = k.size(2);
  shape.scale = scale;
  shape.causal = causal;
  DT_CHECK(IsFloat(shape.dtype) && k.dtype() == shape.dtype && v.dtype() == shape.dtype);
  DT_CHECK(k.size(0) == shape.batch && k.size(3) == shape.dim && k.shape() == v.shape());
  DT_CHECK(shape.kv_heads == 0 ? shape.q_heads == 0 : shape.q_heads % shape.kv_heads == 0);
  DT_CHECK(o.shape() == q.shape() && o.dtype() == shape.dtype);
  DT_CHECK(lse.dtype() == AccumulatorOf(shape.dtype) &&
           lse.shape() == Dims({shape.batch, shape.q_heads, shape.q_rows}));
  return shape;
}

// Launches fn(scratch) with so much scratch memory, which goes back after it in stream order.
template <typename Fn>
absl::Status LaunchWithScratch(Device& device, const char* kernel, int64_t bytes, Fn fn) {
  DT_ASSIGN_OR_RETURN(void* const scratch, device.Allocate(bytes));
  const absl::Status status = device.Launch(kernel, [fn, scratch] { fn(scratch); });
  device.Free(scratch, bytes);
  return status;
}

}  // namespace

absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, bool causal, const Tensor& o, const Tensor& lse) {
  const AttentionShape shape = ShapeOf(q, k, v, scale, causal, o, lse);
  if (lse.numel() == 0) return absl::OkStatus();
  AttentionOperands operands;
  operands.q = OperandOf(q);
  operands.k = OperandOf(k);
  operands.v = OperandOf(v);
  operands.o = OperandOf(o);
  operands.lse = StatisticsOf(lse);
  return LaunchWithScratch(
      device, "attention", AttentionScratchBytes(shape),
      [shape, operands](void* scratch) { RunAttention(shape, operands, scratch); });
}

absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& o, const Tensor& lse, const Tensor& dout, double scale,
                           bool causal, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const AttentionShape shape = ShapeOf(q, k, v, scale, causal, o, lse);
  DT_CHECK(dout.shape() == q.shape() && dq.shape() == q.shape());
  DT_CHECK(dk.shape() == k.shape() && dv.shape() == k.shape());
  DT_CHECK(dout.dtype() == shape.dtype && dq.dtype() == shape.dtype);
  DT_CHECK(dk.dtype() == shape.dtype && dv.dtype() == shape.dtype);
  if (dq.numel() == 0 && dk.numel() == 0) return absl::OkStatus();
  AttentionOperands operands;
  operands.q = OperandOf(q);
  operands.k = OperandOf(k);
  operands.v = OperandOf(v);
  operands.o = OperandOf(o);
  operands.lse = StatisticsOf(lse);
  operands.dout = OperandOf(dout);
  operands.dq = OperandOf(dq);
  operands.dk = OperandOf(dk);
  operands.dv = OperandOf(dv);
  return LaunchWithScratch(
      device, "attention_grad", AttentionGradScratchBytes(shape),
      [shape, operands](void* scratch) { RunAttentionGrad(shape, operands, scratch); });
}

}  // namespace dtensor::kernels
