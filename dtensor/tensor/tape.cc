#include "dtensor/tensor/tape.h"

#include <iterator>
#include <utility>

#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/late_send.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/trace/trace_recorder.h"

namespace dtensor {

absl::Status Tape::Run(const Edge& root, Contribution first) {
  const TraceSpan span(context_.tracer(), TraceKind::kSpan, options_.who);
  const TracePhaseScope phase(context_.tracer(), TracePhase::kBackward);
  DT_RETURN_IF_ERROR(Deliver(root, std::move(first)));
  while (!pending_.empty()) {
    auto last = std::prev(pending_.end());
    Pending pending = std::move(last->second);
    pending_.erase(last);
    DT_RETURN_IF_ERROR(Visit(pending.node, pending.slots));
  }
  DT_RETURN_IF_ERROR(context_.FinishLateSends());
  if (options_.defers) return absl::OkStatus();
  DT_RETURN_IF_ERROR(FinishGroups());
  return FinishBuckets();
}

absl::Status MakeNow(Contribution& sum) {
  if (sum.late == nullptr) return absl::OkStatus();
  return std::exchange(sum.late, nullptr)->Make();
}

// The term that comes last may be made late, while the whole sum is communicated.
absl::Status Tape::AddTo(Contribution& sum, Contribution more) {
  DT_RETURN_IF_ERROR(MakeNow(sum));
  Tensor into = sum.local;
  if (!sum.owned) {
    DT_ASSIGN_OR_RETURN(into, internal::NewLocal(context_, sum.spec.get()));
  }
  if (more.late != nullptr) {
    sum.late = LateSum(context_, sum.local, into, std::move(more.late));
  } else {
    DT_RETURN_IF_ERROR(
        kernels::Binary(context_.device(), kernels::BinaryOp::kAdd, sum.local, more.local, into));
  }
  sum.local = std::move(into);
  sum.owned = true;
  return absl::OkStatus();
}

absl::Status Tape::Accumulate(Slot& slot, Contribution more) {
  for (Contribution& sum : slot) {
    if (sum.spec == more.spec) return AddTo(sum, std::move(more));
  }
  slot.push_back(std::move(more));
  return absl::OkStatus();
}

// To the type in which the leaf's gradient is kept.
absl::Status Tape::ConvertFor(const TensorImpl& leaf, Contribution& more) {
  const DType dtype = leaf.grad_dtype.value_or(more.spec->dtype);
  if (dtype == more.spec->dtype) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(SpecPtr spec, context_.Intern(more.spec->layout, more.spec->shape, dtype));
  DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context_, spec.get()));
  DT_RETURN_IF_ERROR(kernels::Unary(context_.device(), kernels::UnaryOp::kCopy, more.local, local));
  more = {std::move(spec), std::move(local), true};
  return absl::OkStatus();
}

// The entry of an operator that will be visited.
Tape::Pending& Tape::PendingOf(const std::shared_ptr<Node>& node) {
  Pending& pending = pending_[node->sequence];
  if (pending.node == nullptr) {
    pending.node = node;
    pending.slots.resize(node->decision->results.size());
  }
  return pending;
}

// Adds it at the place to which the edge leads.
absl::Status Tape::AddAt(const Edge& edge, Contribution more) {
  if (edge.leaf != nullptr) {
    DT_RETURN_IF_ERROR(MakeNow(more));
    DT_RETURN_IF_ERROR(ConvertFor(*edge.leaf, more));
    auto [it, fresh] = arrived_.try_emplace(PlaceOf(edge));
    if (fresh) leaves_.push_back(edge.leaf);
    return Accumulate(it->second, std::move(more));
  }
  if (edge.node == nullptr) return absl::OkStatus();
  return Accumulate(PendingOf(edge.node).slots[edge.index], std::move(more));
}

// Called when everything that comes along the edge was added.
absl::Status Tape::Arrived(const Edge& edge) {
  return edge.leaf == nullptr ? absl::OkStatus() : Complete(walk_.gathers().Arrived(edge.leaf));
}

absl::Status Tape::Deliver(const Edge& edge, Contribution more) {
  if (options_.defers && edge.leaf != nullptr) {
    DT_RETURN_IF_ERROR(MakeNow(more));
    deferred_.push_back({.edge = edge, .arrived = {std::move(more)}});
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(AddAt(edge, std::move(more)));
  return Arrived(edge);
}

absl::Status Tape::MoveTo(Contribution& sum, const Spec* wanted, const ExchangeCaller& caller) {
  if (sum.late != nullptr) {
    DT_ASSIGN_OR_RETURN(const auto chunks, ScatterInChunks(context_, sum.spec, wanted));
    const bool in_chunks = chunks != nullptr && sum.late->HasRows(chunks->schedule().dim());
    if (in_chunks) {
      DT_ASSIGN_OR_RETURN(sum.local,
                          std::exchange(sum.late, nullptr)->MakeAndScatter(*chunks, caller));
      sum.owned = true;
      sum.spec = wanted;
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(MakeNow(sum));
  }
  DT_ASSIGN_OR_RETURN(const auto plan, context_.Plan(sum.spec, wanted));
  DT_ASSIGN_OR_RETURN(sum.local, RunOrSend(context_, plan, sum.local, caller));
  sum.owned = false;
  sum.spec = wanted;
  return absl::OkStatus();
}

// The sum of all contributions in one layout. Those that are Partial are reduced on the way.
absl::StatusOr<Tensor> Tape::Settle(Slot& slot, const Spec* wanted, const ExchangeCaller& caller) {
  Slot settled;
  for (Contribution& sum : slot) {
    if (sum.spec != wanted) DT_RETURN_IF_ERROR(MoveTo(sum, wanted, caller));
    DT_RETURN_IF_ERROR(MakeNow(sum));
    DT_RETURN_IF_ERROR(Accumulate(settled, std::move(sum)));
  }
  slot.clear();
  if (!settled.empty()) return std::move(settled[0].local);
  DT_ASSIGN_OR_RETURN(Tensor zero, internal::NewLocal(context_, wanted));
  DT_RETURN_IF_ERROR(kernels::Fill(context_.device(), zero, 0));
  return zero;
}

absl::Status Tape::Store() {
  std::vector<TensorImplPtr> gradients;
  for (const TensorImplPtr& leaf : leaves_) {
    Slot& slot = SlotOf(leaf);
    uint64_t lineage = LineageOn(*leaf->spec, leaf->lineage.id);
    if (leaf->grad != nullptr) {
      lineage = MixLineage(lineage, leaf->grad->lineage.id);
      if (!added_.contains(leaf.get())) {
        slot.insert(slot.begin(), {leaf->grad->spec, leaf->grad->local, false});
      }
    }
    DT_ASSIGN_OR_RETURN(TensorImplPtr gradient, Sum(leaf, slot, lineage));
    gradients.push_back(std::move(gradient));
  }
  for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i]->grad = std::move(gradients[i]);
  return absl::OkStatus();
}

absl::StatusOr<TensorImplPtr> Tape::GradientOf(const Edge& edge, const TensorImplPtr& tensor) {
  const auto it = arrived_.find(PlaceOf(edge));
  if (it == arrived_.end()) return nullptr;
  Slot slot = it->second;  // it may be asked for again
  for (Contribution& sum : slot) sum.owned = false;
  return Sum(tensor, slot, LineageOn(*tensor->spec, tensor->lineage.id));
}

// The gradient of `tensor`. If all contributions have one layout, it has that layout; else the
// tensor's own. It is a value, because the same memory may have arrived at other places too.
absl::StatusOr<TensorImplPtr> Tape::Sum(const TensorImplPtr& tensor, Slot& slot, uint64_t lineage) {
  Slot sum;
  for (Contribution& part : slot) DT_RETURN_IF_ERROR(Accumulate(sum, std::move(part)));
  SpecPtr spec = sum[0].spec;
  if (sum.size() > 1) {
    DT_ASSIGN_OR_RETURN(
        spec, context_.Intern(tensor->spec->layout, tensor->spec->shape, sum[0].spec->dtype));
  }
  const TraceReason reason(context_.tracer(), TraceCause::kLeafGradient);
  DT_ASSIGN_OR_RETURN(Tensor local, Settle(sum, spec, {options_.who, lineage, kGradientLineage}));
  if (local.overlaps_itself()) {
    auto copy = kernels::Duplicate(context_.device(), local);
    if (!copy.ok()) return context_.communicator().Fail(copy.status());
    local = *std::move(copy);
  } else if (!local.is_only_user()) {
    local = local.Borrow();
  }
  TensorImplPtr gradient = MakeImpl(context_, spec, std::move(local), /*row_major=*/false);
  gradient->lineage = {lineage, kGradientLineage.maker};
  return gradient;
}

}  // namespace dtensor
