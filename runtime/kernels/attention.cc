#include "dtensor/runtime/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/attention_block.h"

namespace dtensor::kernels {
namespace {

// Of [b, s, h, d]; a row's elements must be adjacent.
AttentionOperand OperandOf(const Tensor& tensor) {
  DT_CHECK(tensor.ndim() == 4 && (tensor.strides()[3] == 1 || tensor.size(3) <= 1));
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[2], tensor.strides()[1]};
}

// Of [b, h, s].
AttentionOperand StatisticsOf(const Tensor& tensor) {
  return {tensor.raw(), tensor.strides()[0], tensor.strides()[1], tensor.strides()[2]};
}

AttentionShape ShapeOf(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionStep& step) {
  DT_CHECK(q.ndim() == 4 && k.ndim() == 4);
  AttentionShape shape;
  shape.dtype = q.dtype();
  shape.batch = q.size(0);
  shape.q_rows = q.size(1);
  shape.q_heads = q.size(2);
  shape.dim = q.size(3);
  shape.keys = k.size(1);
  shape.kv_heads = k.size(2);
  shape.scale = step.scale;
  shape.first = step.first;
  shape.last = step.last;
  DT_CHECK(IsFloat(shape.dtype) && k.dtype() == shape.dtype && v.dtype() == shape.dtype);
  DT_CHECK(k.size(0) == shape.batch && k.size(3) == shape.dim && k.shape() == v.shape());
  DT_CHECK(shape.kv_heads == 0 ? shape.q_heads == 0 : shape.q_heads % shape.kv_heads == 0);
  DT_CHECK(step.q_positions.size() == shape.q_rows && step.k_positions.size() == shape.keys);
  const AttentionDropout& dropout = step.dropout;
  shape.drops = dropout.rate != 0;
  DT_CHECK(0 <= dropout.rate && dropout.rate < 1);
  DT_CHECK(!shape.drops ||
           (dropout.batches.size() == shape.batch && dropout.heads.size() == shape.q_heads));
  return shape;
}

DType Wide(const AttentionShape& shape) { return AccumulatorOf(shape.dtype); }

void CheckStatistics(const AttentionShape& shape, const Tensor& tensor) {
  DT_CHECK(tensor.dtype() == Wide(shape) &&
           tensor.shape() == Dims({shape.batch, shape.q_heads, shape.q_rows}));
}

bool IsResultType(const AttentionShape& shape, DType dtype) {
  return dtype == shape.dtype || dtype == Wide(shape);
}

// How many indices of the set are less than `index`.
int64_t CountBelow(const IndexSet& set, int64_t index) {
  int64_t count = 0;
  for (const IndexRun& run : set.runs()) {
    if (index <= run.begin) break;
    const int64_t past = std::min(index, run.end()) - run.begin;
    const int64_t interval = run.count > 1 ? past / run.stride : 0;
    count += interval * run.length + std::min(past - interval * run.stride, run.length);
  }
  return count;
}

// What each query row sees of the block, in ascending order of rows.
void FindSeenKeys(const AttentionStep& step, SeenKeys* seen) {
  if (step.mask.kind() == AttentionMask::Kind::kFull) {
    std::fill_n(seen, step.q_positions.size(), SeenKeys{0, step.k_positions.size()});
    return;
  }
  for (const IndexRun& run : step.q_positions.runs()) {
    for (int64_t i = 0; i < run.size(); ++i) {
      const int64_t q = run.begin + i / run.length * run.stride + i % run.length;
      const KeyRange keys = step.mask.KeysOf(q);
      *seen++ = {CountBelow(step.k_positions, keys.begin), CountBelow(step.k_positions, keys.end)};
    }
  }
}

// Of each batch entry, head, query and key, in this order.
int64_t GlobalIndices(const AttentionShape& shape) {
  return shape.drops ? shape.batch + shape.q_heads + shape.q_rows + shape.keys : 0;
}

uint32_t* Expand(const IndexSet& set, uint32_t* out) {
  for (const IndexRun& run : set.runs()) {
    for (int64_t i = 0; i < run.size(); ++i) {
      *out++ = static_cast<uint32_t>(run.begin + i / run.length * run.stride + i % run.length);
    }
  }
  return out;
}

DropoutMask MaskOf(const AttentionStep& step, uint32_t* indices) {
  const AttentionDropout& dropout = step.dropout;
  DropoutMask mask;
  mask.seed = dropout.seed;
  mask.threshold = static_cast<uint32_t>(std::ceil(dropout.rate * 0x1p24));
  mask.scale = 1 / (1 - dropout.rate);
  mask.batches = indices;
  mask.heads = indices = Expand(dropout.batches, indices);
  mask.queries = indices = Expand(dropout.heads, indices);
  mask.keys = indices = Expand(step.q_positions, indices);
  Expand(step.k_positions, indices);
  return mask;
}

// Launches run(shape, operands, scratch) with scratch memory, which goes back after it in stream
// order. What rows see is found there, too: scratch memory begins with it.
absl::Status LaunchStep(Device& device, const char* kernel, const AttentionShape& shape,
                        const AttentionOperands& operands, const AttentionStep& step,
                        int64_t scratch_bytes, decltype(&RunAttention) run) {
  const int64_t seen_bytes = (shape.q_rows * static_cast<int64_t>(sizeof(SeenKeys)) + 63) / 64 * 64;
  const int64_t bytes =
      seen_bytes + scratch_bytes + GlobalIndices(shape) * static_cast<int64_t>(sizeof(uint32_t));
  DT_ASSIGN_OR_RETURN(void* const scratch, device.Allocate(bytes));
  const absl::Status status = device.Launch(kernel, [=] {
    SeenKeys* const seen = static_cast<SeenKeys*>(scratch);
    FindSeenKeys(step, seen);
    AttentionShape with_seen = shape;
    with_seen.seen = seen;
    char* const rest = static_cast<char*>(scratch) + seen_bytes;
    DropoutMask mask;
    if (shape.drops) {
      mask = MaskOf(step, reinterpret_cast<uint32_t*>(rest + scratch_bytes));
      with_seen.dropout = &mask;
    }
    run(with_seen, operands, rest);
  });
  device.Free(scratch, bytes);
  return status;
}

void SetCarry(const AttentionCarry& carry, AttentionShape& shape, AttentionOperands& operands) {
  shape.carried = true;
  operands.carry = OperandOf(carry.o);
  operands.max = StatisticsOf(carry.max);
  operands.sum = StatisticsOf(carry.sum);
  CheckStatistics(shape, carry.max);
  CheckStatistics(shape, carry.sum);
  DT_CHECK(carry.o.dtype() == Wide(shape) &&
           carry.o.shape() == Dims({shape.batch, shape.q_rows, shape.q_heads, shape.dim}));
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
  AttentionShape shape = ShapeOf(q, k, v, step);
  AttentionOperands operands;
  operands.q = OperandOf(q);
  operands.k = OperandOf(k);
  operands.v = OperandOf(v);
  DT_CHECK(carry != nullptr || (step.first && step.last));
  if (!step.first || !step.last) SetCarry(*carry, shape, operands);
  shape.out_dtype = Wide(shape);
  if (step.last) {
    CheckStatistics(shape, lse);
    DT_CHECK(o.shape() == q.shape() && IsResultType(shape, o.dtype()));
    shape.out_dtype = o.dtype();
    operands.o = OperandOf(o);
    operands.lse = StatisticsOf(lse);
  }
  if (shape.batch * shape.q_heads * shape.q_rows == 0) return absl::OkStatus();
  return LaunchStep(device, "attention", shape, operands, step, AttentionScratchBytes(shape),
                    &RunAttention);
}

absl::Status AttentionDelta(Device& device, const Tensor& o, const Tensor& dout,
                            const Tensor& delta) {
  AttentionShape shape;
  shape.dtype = dout.dtype();
  shape.batch = dout.size(0);
  shape.q_rows = dout.size(1);
  shape.q_heads = dout.size(2);
  shape.dim = dout.size(3);
  DT_CHECK(o.shape() == dout.shape() && o.dtype() == dout.dtype());
  CheckStatistics(shape, delta);
  AttentionOperands operands;
  operands.o = OperandOf(o);
  operands.dout = OperandOf(dout);
  operands.delta = StatisticsOf(delta);
  return device.Launch("attention_delta", [=] { RunAttentionDelta(shape, operands); });
}

absl::Status AttentionGrad(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& lse, const Tensor& delta, const Tensor& dout,
                           const AttentionStep& step, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv) {
  AttentionShape shape = ShapeOf(q, k, v, step);
  shape.out_dtype = dq.dtype();
  CheckStatistics(shape, lse);
  CheckStatistics(shape, delta);
  DT_CHECK(dout.shape() == q.shape() && dq.shape() == q.shape());
  DT_CHECK(dk.shape() == k.shape() && dv.shape() == k.shape());
  DT_CHECK(dout.dtype() == shape.dtype && IsResultType(shape, dq.dtype()));
  DT_CHECK(dk.dtype() == dq.dtype() && dv.dtype() == dq.dtype());
  DT_CHECK((step.first && step.last) || dq.dtype() == Wide(shape));
  if (dq.numel() == 0 && dk.numel() == 0) return absl::OkStatus();
  AttentionOperands operands;
  operands.q = OperandOf(q);
  operands.k = OperandOf(k);
  operands.v = OperandOf(v);
  operands.lse = StatisticsOf(lse);
  operands.delta = StatisticsOf(delta);
  operands.dout = OperandOf(dout);
  operands.dq = OperandOf(dq);
  operands.dk = OperandOf(dk);
  operands.dv = OperandOf(dv);
  return LaunchStep(device, "attention_grad", shape, operands, step,
                    AttentionGradScratchBytes(shape), &RunAttentionGrad);
}

absl::Status MergeAttention(Device& device, absl::Span<const AttentionPart> parts, const Tensor& o,
                            const Tensor& lse) {
  DT_CHECK(!parts.empty());
  AttentionShape shape;
  shape.dtype = shape.out_dtype = o.dtype();
  shape.batch = o.size(0);
  shape.q_rows = o.size(1);
  shape.q_heads = o.size(2);
  shape.dim = o.size(3);
  CheckStatistics(shape, lse);
  AttentionMergeParts operands;
  for (const AttentionPart& part : parts) {
    CheckStatistics(shape, part.lse);
    DT_CHECK(part.o.dtype() == Wide(shape) && part.o.shape() == o.shape());
    operands.o.push_back(OperandOf(part.o));
    operands.lse.push_back(StatisticsOf(part.lse));
  }
  const AttentionOperand out = OperandOf(o), out_lse = StatisticsOf(lse);
  const int64_t bytes = static_cast<int64_t>(parts.size()) * SizeOf(lse.dtype());
  DT_ASSIGN_OR_RETURN(void* const scratch, device.Allocate(bytes));
  const absl::Status status = device.Launch(
      "attention_merge", [=] { RunAttentionMerge(shape, operands, out, out_lse, scratch); });
  device.Free(scratch, bytes);
  return status;
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
                       WholeAttention(scale, causal, q.size(1), k.size(1)), dq, dk, dv);
}

}  // namespace dtensor::kernels
