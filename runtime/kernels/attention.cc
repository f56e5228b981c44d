#include "dtensor/runtime/kernels/attention.h"

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/attention.h"
#include "dtensor/runtime/kernels/cuda/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::kernels {
namespace {

DType Wide(const AttentionSizes& sizes) { return AccumulatorOf(sizes.dtype); }

// Numbers of elements: of q, o and their gradients; of k, v and theirs; of a statistic.
double QueryElements(const AttentionSizes& sizes) {
  return static_cast<double>(sizes.batch * sizes.q_heads * sizes.q_rows * sizes.dim);
}
double KeyElements(const AttentionSizes& sizes) {
  return static_cast<double>(sizes.batch * sizes.kv_heads * sizes.keys * sizes.dim);
}
double Rows(const AttentionSizes& sizes) {
  return static_cast<double>(sizes.batch * sizes.q_heads * sizes.q_rows);
}

// The flops of one product over the (query, key) pairs that the mask allows.
double ProductFlops(const AttentionArgs& args) {
  const auto pairs = static_cast<double>(args.mask.Count(args.q_positions, args.k_positions));
  return 2.0 * static_cast<double>(args.sizes.batch * args.sizes.q_heads * args.sizes.dim) * pairs;
}

// Two products: q k^T and p v. The carry is read except in the first step, and written except in
// the last.
KernelWork ForwardWork(const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  const double carry = Bytes(QueryElements(sizes) + 2 * Rows(sizes), Wide(sizes));
  double bytes = Bytes(QueryElements(sizes) + 2 * KeyElements(sizes), sizes.dtype);
  if (!sizes.first) bytes += carry;
  bytes += sizes.last
               ? Bytes(QueryElements(sizes), sizes.out_dtype) + Bytes(Rows(sizes), Wide(sizes))
               : carry;
  return {.dtype = sizes.dtype, .attention_flops = 2 * ProductFlops(args), .bytes = bytes};
}

// Five products: q k^T again, p^T do, do v^T, ds k and ds^T q. dq is added to except in the first
// step, which sets it.
KernelWork BackwardWork(const AttentionArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  const double gradients = QueryElements(sizes) * (sizes.first ? 1 : 2) + 2 * KeyElements(sizes);
  return {.dtype = sizes.dtype,
          .attention_flops = 5 * ProductFlops(args),
          .bytes = Bytes(2 * QueryElements(sizes) + 2 * KeyElements(sizes), sizes.dtype) +
                   Bytes(2 * Rows(sizes), Wide(sizes)) + Bytes(gradients, sizes.out_dtype)};
}

KernelWork WorkOf(const AttentionDeltaArgs& args) {
  return {.bytes = Bytes(2 * QueryElements(args.sizes), args.sizes.dtype) +
                   Bytes(Rows(args.sizes), Wide(args.sizes))};
}

KernelWork WorkOf(const AttentionMergeArgs& args) {
  const AttentionSizes& sizes = args.sizes;
  const auto parts = static_cast<double>(args.parts.o.size());
  return {.bytes = Bytes(parts * (QueryElements(sizes) + Rows(sizes)) + Rows(sizes), Wide(sizes)) +
                   Bytes(QueryElements(sizes), sizes.out_dtype)};
}

constexpr ByDevice<AttentionArgs> kAttention = {.name = "attention",
                                                .host = cpu::Attention,
                                                .cuda = DT_ON_CUDA(cuda::Attention),
                                                .work = ForwardWork};
constexpr ByDevice<AttentionArgs> kAttentionGrad = {.name = "attention_grad",
                                                    .host = cpu::AttentionGrad,
                                                    .cuda = DT_ON_CUDA(cuda::AttentionGrad),
                                                    .work = BackwardWork};
constexpr ByDevice<AttentionDeltaArgs> kAttentionDelta = {.name = "attention_delta",
                                                          .host = cpu::AttentionDelta,
                                                          .cuda = DT_ON_CUDA(cuda::AttentionDelta),
                                                          .work = WorkOf};
constexpr ByDevice<AttentionMergeArgs> kMergeAttention = {.name = "attention_merge",
                                                          .host = cpu::MergeAttention,
                                                          .cuda = DT_ON_CUDA(cuda::MergeAttention),
                                                          .work = WorkOf};

// The operand for a tensor [b, s, h, d]; a row's elements must be adjacent.
AttentionOperand OperandOf(const Tensor& tensor) {
  DT_CHECK(tensor.ndim() == 4 && (tensor.strides()[3] == 1 || tensor.size(3) <= 1));
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[2], tensor.strides()[1]};
}

// The operand for a tensor [b, h, s].
AttentionOperand StatisticsOf(const Tensor& tensor) {
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[1], tensor.strides()[2]};
}

AttentionSizes SizesOf(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionStep& step) {
  DT_CHECK(q.ndim() == 4 && k.ndim() == 4);
  AttentionSizes sizes;
  sizes.dtype = q.dtype();
  sizes.batch = q.size(0);
  sizes.q_rows = q.size(1);
  sizes.q_heads = q.size(2);
  sizes.dim = q.size(3);
  sizes.keys = k.size(1);
  sizes.kv_heads = k.size(2);
  sizes.scale = step.scale;
  sizes.first = step.first;
  sizes.last = step.last;
  sizes.varies = step.varies;
  DT_CHECK(IsFloat(sizes.dtype) && k.dtype() == sizes.dtype && v.dtype() == sizes.dtype);
  DT_CHECK(k.size(0) == sizes.batch && k.size(3) == sizes.dim && k.shape() == v.shape());
  DT_CHECK(sizes.kv_heads == 0 ? sizes.q_heads == 0 : sizes.q_heads % sizes.kv_heads == 0);
  DT_CHECK(step.q_positions.size() == sizes.q_rows && step.k_positions.size() == sizes.keys);
  const AttentionDropout& dropout = step.dropout;
  sizes.drops = dropout.rate != 0;
  DT_CHECK(0 <= dropout.rate && dropout.rate < 1);
  DT_CHECK(!sizes.drops ||
           (dropout.batches.size() == sizes.batch && dropout.heads.size() == sizes.q_heads));
  return sizes;
}

void CheckStatistics(const AttentionSizes& sizes, const Tensor& tensor) {
  DT_CHECK(tensor.dtype() == Wide(sizes) &&
           tensor.shape() == Dims({sizes.batch, sizes.q_heads, sizes.q_rows}));
}

bool IsResultType(const AttentionSizes& sizes, DType dtype) {
  return dtype == sizes.dtype || dtype == Wide(sizes);
}

void SetQkv(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOperands& operands) {
  operands.q = OperandOf(q);
  operands.k = OperandOf(k);
  operands.v = OperandOf(v);
}

void SetStep(const AttentionStep& step, AttentionArgs& args) {
  args.mask = step.mask;
  args.q_positions = step.q_positions;
  args.k_positions = step.k_positions;
  if (!args.sizes.drops) return;
  args.dropout_rate = step.dropout.rate;
  args.dropout_seed = step.dropout.seed;
  args.batches = step.dropout.batches;
  args.heads = step.dropout.heads;
}

// Runs the kernel with scratch memory, which is freed after it in stream order. The memory is
// allocated here, since meta runs no kernel but counts the memory that it would take on the host. A
// GPU's kernels need `rows` rows of it; what the host's need grows with all heads that share keys.
template <typename Args>
absl::Status RunWithScratch(Device& device, const ByDevice<Args>& kernel, Args& args, int64_t rows,
                            int64_t on_host) {
  const bool is_gpu = device.kind() == Device::Kind::kCuda;
  const int64_t bytes = is_gpu ? rows * kSeenKeysBytes : on_host;
  DT_ASSIGN_OR_RETURN(args.scratch, device.Allocate(bytes));
  const absl::Status status = kernel.Run(device, {args.sizes.dtype}, args);
  device.Free(args.scratch, bytes);
  return status;
}

void SetCarry(const AttentionCarry& carry, AttentionSizes& sizes, AttentionOperands& operands) {
  sizes.carried = true;
  operands.carry = OperandOf(carry.o);
  operands.max = StatisticsOf(carry.max);
  operands.sum = StatisticsOf(carry.sum);
  CheckStatistics(sizes, carry.max);
  CheckStatistics(sizes, carry.sum);
  DT_CHECK(carry.o.dtype() == Wide(sizes) &&
           carry.o.shape() == Dims({sizes.batch, sizes.q_rows, sizes.q_heads, sizes.dim}));
}

}  // namespace

AttentionStep WholeAttention(double scale, bool causal, int64_t s, int64_t t) {
  const int64_t ahead = std::max<int64_t>(0, t - s), behind = std::max<int64_t>(0, s - t);
  AttentionStep step;
  step.scale = scale;
  if (causal) step.mask = AttentionMask::Causal();
  step.q_positions = IndexSet::Interval(ahead, ahead + s);
  step.k_positions = IndexSet::Interval(behind, behind + t);
  return step;
}

absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionStep& step, const AttentionCarry* carry, const Tensor& o,
                       const Tensor& lse) {
  AttentionArgs args;
  AttentionSizes& sizes = args.sizes = SizesOf(q, k, v, step);
  AttentionOperands& operands = args.operands;
  SetQkv(q, k, v, operands);
  DT_CHECK(carry != nullptr || (step.first && step.last));
  if (!step.first || !step.last) SetCarry(*carry, sizes, operands);
  sizes.out_dtype = Wide(sizes);
  if (step.last) {
    CheckStatistics(sizes, lse);
    DT_CHECK(o.shape() == q.shape() && IsResultType(sizes, o.dtype()));
    sizes.out_dtype = o.dtype();
    operands.o = OperandOf(o);
    operands.lse = StatisticsOf(lse);
  }
  if (sizes.batch * sizes.q_heads * sizes.q_rows == 0) return absl::OkStatus();
  SetStep(step, args);
  return RunWithScratch(device, kAttention, args, sizes.q_rows, cpu::AttentionScratch(args));
}

absl::Status AttentionDelta(Device& device, const Tensor& o, const Tensor& dout,
                            const Tensor& delta, const Tensor& dlse) {
  AttentionDeltaArgs args;
  AttentionSizes& sizes = args.sizes;
  sizes.dtype = dout.dtype();
  sizes.batch = dout.size(0);
  sizes.q_rows = dout.size(1);
  sizes.q_heads = dout.size(2);
  sizes.dim = dout.size(3);
  DT_CHECK(o.shape() == dout.shape() && o.dtype() == dout.dtype());
  CheckStatistics(sizes, delta);
  args.operands.o = OperandOf(o);
  args.operands.dout = OperandOf(dout);
  args.operands.delta = StatisticsOf(delta);
  DT_RETURN_IF_ERROR(kAttentionDelta.Run(device, {sizes.dtype}, args));
  if (!dlse.defined()) return absl::OkStatus();
  CheckStatistics(sizes, dlse);
  return Binary(device, BinaryOp::kSub, delta, dlse, delta);
}

absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& lse, const Tensor& delta, const Tensor& dout,
                           const AttentionStep& step, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const Tensor* o) {
  AttentionArgs args;
  AttentionSizes& sizes = args.sizes = SizesOf(q, k, v, step);
  sizes.out_dtype = dq.dtype();
  CheckStatistics(sizes, lse);
  CheckStatistics(sizes, delta);
  DT_CHECK(dout.shape() == q.shape() && dq.shape() == q.shape());
  DT_CHECK(dk.shape() == k.shape() && dv.shape() == k.shape());
  DT_CHECK(dout.dtype() == sizes.dtype && IsResultType(sizes, dq.dtype()));
  DT_CHECK(dk.dtype() == dq.dtype() && dv.dtype() == dq.dtype());
  DT_CHECK((step.first && step.last) || dq.dtype() == Wide(sizes));
  if (dq.numel() == 0 && dk.numel() == 0) return absl::OkStatus();
  AttentionOperands& operands = args.operands;
  SetQkv(q, k, v, operands);
  operands.lse = StatisticsOf(lse);
  operands.delta = StatisticsOf(delta);
  operands.dout = OperandOf(dout);
  operands.dq = OperandOf(dq);
  operands.dk = OperandOf(dk);
  operands.dv = OperandOf(dv);
  DT_CHECK(o == nullptr || (o->shape() == q.shape() && IsResultType(sizes, o->dtype())));
  if (o != nullptr && o->dtype() == sizes.dtype) operands.o = OperandOf(*o);
  SetStep(step, args);
  return RunWithScratch(device, kAttentionGrad, args, sizes.q_rows,
                        cpu::AttentionGradScratch(args));
}

absl::Status MergeAttention(Device& device, absl::Span<const AttentionPart> parts, const Tensor& o,
                            const Tensor& lse) {
  DT_CHECK(!parts.empty());
  AttentionMergeArgs args;
  AttentionSizes& sizes = args.sizes;
  sizes.dtype = sizes.out_dtype = o.dtype();
  sizes.batch = o.size(0);
  sizes.q_rows = o.size(1);
  sizes.q_heads = o.size(2);
  sizes.dim = o.size(3);
  CheckStatistics(sizes, lse);
  for (const AttentionPart& part : parts) {
    CheckStatistics(sizes, part.lse);
    DT_CHECK(part.o.dtype() == Wide(sizes) && part.o.shape() == o.shape());
    args.parts.o.push_back(OperandOf(part.o));
    args.parts.lse.push_back(StatisticsOf(part.lse));
  }
  args.o = OperandOf(o);
  args.lse = StatisticsOf(lse);
  return RunWithScratch(device, kMergeAttention, args, 0, cpu::MergeAttentionScratch(args));
}

absl::Status Attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, bool causal, const Tensor& o, const Tensor& lse) {
  return Attention(device, q, k, v, WholeAttention(scale, causal, q.size(1), k.size(1)), nullptr, o,
                   lse);
}

absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& o, const Tensor& lse, const Tensor& dout, double scale,
                           bool causal, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  DT_ASSIGN_OR_RETURN(const Tensor delta, Tensor::Empty(device, lse.dtype(), lse.shape()));
  DT_RETURN_IF_ERROR(AttentionDelta(device, o, dout, delta));
  return AttentionGrad(device, q, k, v, lse, delta, dout,
                       WholeAttention(scale, causal, q.size(1), k.size(1)), dq, dk, dv, &o);
}

}  // namespace dtensor::kernels
