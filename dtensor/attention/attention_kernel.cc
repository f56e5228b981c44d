#include "dtensor/attention/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/attention/attention_op.h"
#include "dtensor/attention/attention_plan.h"
#include "dtensor/attention/attention_rows.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/index_error.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

struct AttentionState : OpState {
  kernels::AttentionStep step;   // over all keys that this rank holds, without CallValues
  std::optional<RankRing> ring;  // if both sequences are sharded by the same axes
  bool merges = false;           // if other axes shard the keys

  // The mask's documents are also stored in the decision's attributes, so they count twice.
  int64_t bytes() const override {
    const auto of_mask = static_cast<int64_t>(step.mask.starts().size() * sizeof(int64_t));
    return 2 * of_mask + (ring ? ring->schedule().OwnBytes() : 0);
  }
};

const AttentionState& StateOf(const Decision& decision) {
  return static_cast<const AttentionState&>(*decision.state);
}

// Of this rank's batch entries: the offsets of the call, and the lengths of operand 3, if there is
// one. On meta there are no lengths to read: all keys count. Errors: kOutOfRange for a length that
// is negative or above t.
template <typename Call>
absl::StatusOr<AttentionRows> RowsOf(const Call& call) {
  const IndexSet entries = call.OperandIndices(0, 0);
  AttentionRows rows;
  if (!call.values.row_offsets.empty()) {
    for (int64_t r = 0; r < entries.size(); ++r) {
      rows.offsets.push_back(call.values.row_offsets[entries.At(r)]);
    }
  }
  if (call.decision.operands.size() < 4 || call.device().is_meta()) return rows;
  const int64_t s = call.decision.operands[0]->shape[1], t = call.decision.operands[1]->shape[1];
  const bool end_together =
      call.template attrs<AttentionAttrs>().query_offset == AttentionProblem::kEndTogether;
  const int64_t first_key = end_together ? std::max<int64_t>(0, s - t) : 0;
  DT_ASSIGN_OR_RETURN(rows.ends, ReadIds(call.operands[3]));
  for (int64_t r = 0; r < entries.size(); ++r) {
    const int64_t length = rows.ends[r];
    if (length < 0 || length > t) {
      return ToStatus(IndexError{"the length of the keys,", length, entries.At(r), t + 1});
    }
    rows.ends[r] += first_key;
  }
  return rows;
}

kernels::AttentionStep StepOf(const AttentionState& state, const CallValues& values) {
  kernels::AttentionStep step = state.step;
  step.dropout.seed = values.seed;
  if (values.offset != 0) step.q_positions = step.q_positions.Shifted(values.offset);
  return step;
}

// Also needed if x has no elements: an empty shard may have any strides.
absl::StatusOr<Tensor> RowMajor(Device& device, const Tensor& x) {
  DT_ASSIGN_OR_RETURN(const Tensor copy, Contiguous(device, x));
  return copy.Reshape(copy.shape());
}

// The kernel needs contiguous rows of head features.
absl::StatusOr<Tensor> WithRows(Device& device, const Tensor& x) {
  if (x.strides()[3] == 1 || x.size(3) == 1) return x;
  return RowMajor(device, x);
}

struct Inputs {
  Tensor q, k, v;
};
// In a ring, peers read k and v directly from memory, so these must be row-major.
template <typename Tensors>
absl::StatusOr<Inputs> Prepare(Device& device, const Tensors& operands, bool ring) {
  Inputs out;
  DT_ASSIGN_OR_RETURN(out.q, WithRows(device, operands[0]));
  const auto& prepare = ring ? RowMajor : WithRows;
  DT_ASSIGN_OR_RETURN(out.k, prepare(device, operands[1]));
  DT_ASSIGN_OR_RETURN(out.v, prepare(device, operands[2]));
  return out;
}

// Computes the results over this rank's keys, packed as [b, s, h, d + 1]. They are gathered with
// one all-gather, and every rank merges them in the same way.
absl::Status ForwardMerged(const OpCall& call, const Inputs& in, const kernels::AttentionStep& step,
                           const AttentionRows& rows) {
  Device& device = call.device();
  const Tensor &o = call.results[0], &lse = call.results[1];
  const int64_t d = o.size(3);
  const auto halves = [d](const Tensor& packed) {
    const Dims& strides = packed.strides();
    return kernels::AttentionPart{packed.Narrow(3, 0, d),
                                  packed.View({packed.size(0), packed.size(2), packed.size(1)},
                                              {strides[0], strides[2], strides[1]}, d)};
  };
  DT_ASSIGN_OR_RETURN(const Tensor packed,
                      Tensor::Empty(device, lse.dtype(), {o.size(0), o.size(1), o.size(2), d + 1}));
  const kernels::AttentionPart mine = halves(packed);
  DT_RETURN_IF_ERROR(AttendInRows(device, rows, in.q, in.k, in.v, step, nullptr, mine.o, mine.lse));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards("t", packed));
  std::vector<kernels::AttentionPart> parts;
  for (int64_t i = 0; i < all.size(0); ++i) {
    DT_ASSIGN_OR_RETURN(const Tensor part, all.Narrow(0, i, 1).Reshape(packed.shape()));
    parts.push_back(halves(part));
  }
  return kernels::MergeAttention(device, parts, o, lse);
}

bool HasNoHeads(const Tensor& q) { return q.size(0) == 0 || q.size(2) == 0; }

}  // namespace

absl::StatusOr<std::shared_ptr<const OpState>> PrepareAttention(const OpStateRequest& request) {
  const Spec &q = *request.operands[0], &k = *request.operands[1];
  const auto& [plan, backward, all_to_all, mask, scale, dropout, query_offset] =
      request.attrs.as<AttentionAttrs>();
  const AttentionProblem problem = {q.layout, k.layout, q.shape,  k.shape,
                                    q.dtype,  mask,     backward, query_offset};
  const int rank = request.rank;
  const auto coordinate = q.mesh().Coordinate(rank);
  const int64_t s = q.shape[1], t = k.shape[1];
  auto state = std::make_shared<AttentionState>();
  state->step.scale = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.shape[3]));
  state->step.mask = mask;
  state->step.q_positions = DimRegion(q.layout, 1, s, coordinate).Shifted(problem.first_query());
  state->step.k_positions = DimRegion(k.layout, 1, t, coordinate).Shifted(problem.first_key());
  state->step.dropout = {dropout, /*seed=*/0, DimRegion(q.layout, 0, q.shape[0], coordinate),
                         DimRegion(q.layout, 2, q.shape[2], coordinate)};
  if (StreamedAxes(problem).empty()) {
    state->merges = IsSplit(k.layout.dim(1));
    return state;
  }
  const RingProblem ring = RingOf(problem, rank);
  // If this rank has no heads, no rank of its ring has any, and nothing moves.
  if (ring.batch == 0 || ring.heads == 0 || ring.kv_heads == 0) return state;
  DT_ASSIGN_OR_RETURN(RingSchedule schedule, RingSchedule::Create(ring));
  state->ring.emplace(std::move(schedule), rank);
  return state;
}

absl::Status AttentionForward(const OpCall& call) {
  const AttentionState& state = StateOf(call.decision);
  const kernels::AttentionStep step = StepOf(state, call.values);
  const Tensor &o = call.results[0], &lse = call.results[1];
  if (HasNoHeads(o)) return absl::OkStatus();
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const AttentionRows rows, RowsOf(call));
  DT_ASSIGN_OR_RETURN(const Inputs in, Prepare(device, call.operands, state.ring.has_value()));
  if (state.ring) {
    return RunRing(*state.ring, {step.scale, step.dropout, call.lineage, rows}, in.q, in.k, in.v,
                   call.context.communicator(), "Attention", o, lse);
  }
  if (state.merges) return ForwardMerged(call, in, step, rows);
  return AttendInRows(device, rows, in.q, in.k, in.v, step, nullptr, o, lse);
}

// The kernels compute all three gradients; those that are not wanted go to scratch memory.
absl::Status AttentionBackward(const GradCall& call) {
  const AttentionState& state = StateOf(call.decision);
  const kernels::AttentionStep step = StepOf(state, call.values);
  Device& device = call.device();
  absl::InlinedVector<Tensor, 3> gradients(call.gradients.begin(), call.gradients.begin() + 3);
  for (int i = 0; i < 3; ++i) {
    if (call.wants(i)) continue;
    const Tensor& like = call.operands[i];
    DT_ASSIGN_OR_RETURN(gradients[i], Tensor::Empty(device, like.dtype(), like.shape()));
  }
  const Tensor &o = call.results[0], &lse = call.results[1];
  if (HasNoHeads(o)) {  // the gradients of this rank's k and v are 0
    for (const Tensor& gradient : gradients) DT_RETURN_IF_ERROR(kernels::Fill(device, gradient, 0));
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const AttentionRows rows, RowsOf(call));
  DT_ASSIGN_OR_RETURN(const Inputs in, Prepare(device, call.operands, state.ring.has_value()));
  DT_ASSIGN_OR_RETURN(const Tensor dout, WithRows(device, call.result_gradients[0]));
  const Tensor& dlse = call.result_gradients[1];
  if (state.ring) {
    return RunRingBackward(*state.ring, {step.scale, step.dropout, call.lineage, rows}, in.q, in.k,
                           in.v, o, lse, dout, call.context.communicator(), "Attention",
                           gradients[0], gradients[1], gradients[2], dlse);
  }
  DT_ASSIGN_OR_RETURN(const Tensor delta, Tensor::Empty(device, lse.dtype(), lse.shape()));
  DT_RETURN_IF_ERROR(kernels::AttentionDelta(device, o, dout, delta, dlse));
  return AttendInRowsGrad(device, rows, in.q, in.k, in.v, lse, delta, dout, step, gradients[0],
                          gradients[1], gradients[2], dlse.defined() ? nullptr : &o);
}

}  // namespace dtensor::internal
