// Tape: the visit of one operator: its backward, a function that runs again, or a change of mesh.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/replay.h"
#include "dtensor/tensor/tape.h"
#include "dtensor/tensor/work_scope.h"
#include "dtensor/trace/trace_recorder.h"

namespace dtensor {

namespace {

// The lineage with which a gradient moves to another mesh: the ranks of one do not know lineages on
// the other.
constexpr uint64_t kOnTwoMeshes = 0;

}  // namespace

// If the operator passes Partial gradients on, and its only contribution differs from the layout
// that backward wants only by being Partial: the axes on which it is Partial. Otherwise empty.
AxisList Tape::PassedAxes(const Decision& decision, const Slot& slot) {
  if (!decision.op->passes_partial_gradients || decision.results.size() != 1 || slot.size() != 1)
    return {};
  const Layout& layout = slot[0].spec->layout;
  if (!layout.is_partial() || layout.partial_op() != ReduceOp::kSum) return {};
  auto rest = layout.WithPartial({});
  if (!rest.ok() || !(*rest == decision.result_gradient_specs[0]->layout)) return {};
  for (const DimLayout& letter : decision.assignment.letters) {
    for (int axis : AxesOf(letter)) {
      if (layout.use(axis) == Layout::AxisUse::kPartial) return {};
    }
  }
  for (const Spec* gradient : decision.gradients) {
    if (gradient->layout.is_partial()) return {};
  }
  return AxisList(layout.partial_axes().begin(), layout.partial_axes().end());
}

absl::Status Tape::SettleGradients(const Node& node, absl::InlinedVector<Slot, 2>& slots,
                                   const AxisList& passed, const ExchangeCaller& caller,
                                   Call& call) {
  const Decision& decision = *node.decision;
  for (size_t r = 0; r < slots.size(); ++r) {
    if (slots[r].empty() && (decision.op->optional_result_gradients >> r & 1) != 0) {
      call.result_gradients.emplace_back();
      continue;
    }
    const Spec* wanted =
        passed.empty() ? decision.result_gradient_specs[r] : slots[r][0].spec.get();
    const TraceReason reason(context_.tracer(), TraceCause::kGradient, static_cast<int>(r));
    Tensor gradient;
    const bool by_rows = decision.on_mesh && decision.op->rows.has != nullptr &&
                         slots.size() == 1 && slots[r].size() == 1 && slots[r][0].late == nullptr &&
                         walk_.Wants(node.edges[0]) && (PutOffBits(node) & 1) == 0;
    if (by_rows) {
      DT_ASSIGN_OR_RETURN(auto chunks, GatherInChunks(context_, slots[r][0].spec, wanted));
      if (chunks != nullptr && ReadsRows(decision, chunks->schedule().dim())) {
        DT_ASSIGN_OR_RETURN(call.gather, LateGather::Create(context_, std::move(chunks),
                                                            slots[r][0].local, caller));
        gradient = call.gather->values();
      }
    }
    if (call.gather == nullptr) {
      DT_ASSIGN_OR_RETURN(gradient, Settle(slots[r], wanted, caller));
    }
    call.result_gradients.push_back(std::move(gradient));
  }
  return absl::OkStatus();
}

absl::Status Tape::RunRows(const Node& node, GradCall& grad, Call& call) {
  const Decision& decision = *node.decision;
  // Marks the gradient as written: it is computed by rows, of which this rank may have none, or
  // later.
  const auto note = [&] {
    if (grad.wants(0)) grad.gradients[0];
  };
  if (call.gather != nullptr) {
    note();
    const uint32_t wanted = std::exchange(grad.wanted, 1);
    const auto rows = [&](const RowRange& range, bool only_asks) {
      return decision.op->rows.backward(grad, call.gather->dim(), range, only_asks);
    };
    const auto all = [&] { return decision.functions.backward(grad); };
    DT_RETURN_IF_ERROR(call.gather->MakeBeside({rows, all}));
    grad.wanted = wanted & ~1u;
    return absl::OkStatus();
  }
  const Edge& edge = node.edges[0];
  const bool is_late =
      grad.wants(0) && edge.node != nullptr && !walk_.Keeps(*edge.node, edge.index) &&
      call.specs[0] == decision.gradients[0] && MakesGradientLate(context_, decision);
  if (!is_late) return absl::OkStatus();
  note();
  call.late = LateGradient(context_, node.decision,
                           std::vector<Tensor>(node.operands.begin(), node.operands.end()),
                           call.result_gradients[0], call.gradients[0], node.values, grad.lineage);
  grad.wanted &= ~1u;
  return absl::OkStatus();
}

absl::Status Tape::RunBackward(const Node& node, GradCall& grad, Call& call) {
  const uint32_t wanted = grad.wanted;
  absl::Status status = RunRows(node, grad, call);
  if (status.ok() && (grad.wanted != 0 || wanted == 0)) {
    status = node.decision->functions.backward(grad);
  }
  grad.wanted = wanted;
  if (status.ok()) status = CheckBackward(grad, call.specs);
  return status.ok() ? status : FailIn(context_, *node.decision->op, status);
}

// The gradients that the walk wants of a node's operands, and their specs.
absl::Status Tape::FindWanted(const Node& node, const AxisList& passed, Call& made) {
  const Decision& decision = *node.decision;
  made.gradients.resize(decision.gradients.size());
  made.specs.resize(decision.gradients.size());
  for (size_t i = 0; i < made.specs.size(); ++i) {
    if (!walk_.Wants(node.edges[i])) continue;
    made.wanted |= 1u << i;
    made.specs[i] = decision.gradients[i];
    if (passed.empty()) continue;
    DT_ASSIGN_OR_RETURN(const Layout layout, made.specs[i]->layout.WithPartial(passed));
    DT_ASSIGN_OR_RETURN(made.specs[i],
                        context_.Intern(layout, made.specs[i]->shape, made.specs[i]->dtype));
  }
  return absl::OkStatus();
}

GradCall Tape::GradCallOf(const Node& node, Call& made) {
  const Decision& decision = *node.decision;
  Device& device = context_.device();
  return {{context_, decision, node.values, LineageOn(*decision.results[0], node.lineage)},
          SavedTensors(device, node.operands, decision.operands),
          SavedTensors(device, node.results, decision.results),
          made.result_gradients,
          OperandGradients(absl::MakeSpan(made.gradients)),
          made.wanted};
}

absl::Status Tape::Visit(const std::shared_ptr<Node>& visited,
                         absl::InlinedVector<Slot, 2>& slots) {
  Node& node = *visited;
  DT_RETURN_IF_ERROR(Keep(node, slots));
  if (!walk_.Runs(node)) return absl::OkStatus();
  const WorkScope scope(context_, node.scope);
  if (node.replay != nullptr) return RunAgain(node, slots);
  if (node.changes_mesh) return CrossMeshes(node, slots[0]);
  const Decision& decision = *node.decision;
  const OpDef& op = *decision.op;
  const bool on_mesh = decision.on_mesh;
  const TraceSpan span(on_mesh ? context_.tracer() : nullptr, TraceKind::kOperator, op.name);
  const AxisList passed = PassedAxes(decision, slots[0]);
  const ExchangeCaller caller(op.name, LineageOn(*decision.results[0], node.lineage),
                              kGradientLineage);
  Call made;
  DT_RETURN_IF_ERROR(SettleGradients(node, slots, passed, caller, made));
  DT_RETURN_IF_ERROR(FindWanted(node, passed, made));
  const uint32_t all = made.wanted, put_off = PutOffBits(node);
  made.wanted &= ~put_off;
  // What only the put off gradients read is gathered for them.
  const uint32_t read = put_off == 0 ? ~uint32_t{0} : ReadFor(op, made.wanted);
  DT_RETURN_IF_ERROR(walk_.gathers().Restore(node, read));
  for (size_t i = 0; i < made.specs.size(); ++i) {
    const bool is_made = (made.wanted >> i & 1) != 0 && (!op.sets_gradients || !on_mesh);
    if (!is_made) continue;
    DT_ASSIGN_OR_RETURN(made.gradients[i], internal::NewLocal(context_, made.specs[i].get()));
  }
  if (on_mesh && (made.wanted != 0 || all == 0)) {
    GradCall call = GradCallOf(node, made);
    DT_RETURN_IF_ERROR(RunBackward(node, call, made));
  }
  walk_.gathers().Release(node);
  for (size_t i = made.specs.size(); i < node.edges.size(); ++i) {
    if (walk_.Wants(node.edges[i])) PendingOf(node.edges[i].node);
  }
  if (put_off != 0) PutOff(visited, put_off, made);
  DT_RETURN_IF_ERROR(DeliverAll(node, made));
  if (put_off == 0) {
    Forget(node);
  } else {
    node.edges.clear();
  }
  return absl::OkStatus();
}

// Delivers the gradients of a node's operands.
absl::Status Tape::DeliverAll(const Node& node, Call& made) {
  const bool owned = !node.decision->op->sets_gradients;
  for (size_t i = 0; i < made.specs.size(); ++i) {
    if ((made.wanted >> i & 1) == 0) continue;
    DT_RETURN_IF_ERROR(Deliver(node.edges[i], {made.specs[i], std::move(made.gradients[i]), owned,
                                               i == 0 ? std::move(made.late) : nullptr}));
  }
  return absl::OkStatus();
}

// Moves the sum of what arrived to the mesh of the tensor that was redistributed. Afterwards this
// rank sends what it has put off (LateSend), since its peers are done with what came before.
absl::Status Tape::CrossMeshes(const Node& node, Slot& slot) {
  std::optional<Contribution> sum;
  if (!slot.empty() && walk_.Wants(node.edges[0])) {
    DT_ASSIGN_OR_RETURN(sum, MovedBack(node, slot));
  }
  if (walk_.IsLastChange(node)) {
    const Spec *from = node.decision->operands[0], *to = node.decision->results[0];
    DT_RETURN_IF_ERROR(context_.FinishLateSends(from, to));
    DT_RETURN_IF_ERROR(context_.FinishLateSends(to, from));
  }
  return sum.has_value() ? Deliver(node.edges[0], *std::move(sum)) : absl::OkStatus();
}

// Contributions in one layout are moved as they are: the move itself reduces those that are
// Partial.
absl::StatusOr<Contribution> Tape::MovedBack(const Node& node, Slot& slot) {
  const Decision& decision = *node.decision;
  const TraceReason reason(context_.tracer(), TraceCause::kGradient, 0);
  Contribution sum = slot[0];
  if (slot.size() > 1) {
    DT_ASSIGN_OR_RETURN(sum.spec, context_.Intern(decision.result_gradient_specs[0]->layout,
                                                  sum.spec->shape, sum.spec->dtype));
    const uint64_t lineage = LineageOn(*decision.results[0], node.lineage);
    DT_ASSIGN_OR_RETURN(sum.local,
                        Settle(slot, sum.spec.get(), {options_.who, lineage, kGradientLineage}));
    sum.late = nullptr;
  }
  slot.clear();
  DT_RETURN_IF_ERROR(MakeNow(sum));
  if (node.edges[0].leaf != nullptr) DT_RETURN_IF_ERROR(ConvertFor(*node.edges[0].leaf, sum));
  DT_ASSIGN_OR_RETURN(const SpecPtr wanted, context_.Intern(decision.gradients[0]->layout,
                                                            sum.spec->shape, sum.spec->dtype));
  DT_RETURN_IF_ERROR(MoveTo(sum, wanted.get(), {options_.who, kOnTwoMeshes, kGradientLineage}));
  return sum;
}

// Runs the function of a Recompute() again. Its operators are now the last recorded, so they are
// walked next.
absl::Status Tape::RunAgain(Node& node, absl::InlinedVector<Slot, 2>& slots) {
  const uint64_t since = context_.NextSequence();
  DT_RETURN_IF_ERROR(walk_.gathers().Restore(node));
  TensorsOr results;
  {
    const TracePhaseScope phase(context_.tracer(), TracePhase::kRecompute);
    results = node.replay->Run(context_, node.edges, &node.lineage);
  }
  DT_RETURN_IF_ERROR(results.status());
  if (results->size() != slots.size()) {
    return InvalidArgument({"Recompute: the function gave ", absl::StrCat(slots.size()),
                            " results, and when it ran again ", absl::StrCat(results->size())});
  }
  absl::InlinedVector<Edge, 2> edges;
  for (size_t r = 0; r < slots.size(); ++r) {
    const TensorImplPtr& result = (*results)[r].impl();
    if (result->spec != node.decision->results[r]) {
      return InvalidArgument(
          {"Recompute: result ", absl::StrCat(r), " was ", node.decision->results[r]->ToString(),
           ", and is ", result->spec->ToString(), " when the function ran again; it has to do ",
           "the same both times"});
    }
    if (!slots[r].empty()) edges.push_back(EdgeOf(result));
  }
  DT_RETURN_IF_ERROR(node.replay->CheckLeaves(node, *results, since));
  walk_.Extend(edges, since, node);
  walk_.gathers().Release(node);  // the operators of the run hold what they read
  for (const GatherWalk::Completed& completed : walk_.gathers().Replaced(node)) {
    DT_RETURN_IF_ERROR(Complete(completed));
  }
  for (size_t r = 0; r < slots.size(); ++r) {
    const Edge edge = EdgeOf((*results)[r].impl());
    if (slots[r].empty() || !walk_.Wants(edge)) continue;
    if (options_.defers && edge.leaf != nullptr) {
      for (Contribution& sum : slots[r]) DT_RETURN_IF_ERROR(MakeNow(sum));
      deferred_.push_back({.edge = edge, .arrived = std::move(slots[r])});
      continue;
    }
    for (Contribution& sum : slots[r]) DT_RETURN_IF_ERROR(AddAt(edge, std::move(sum)));
    DT_RETURN_IF_ERROR(Arrived(edge));
  }
  Forget(node);
  return absl::OkStatus();
}

void Tape::Forget(Node& node) {
  if (options_.retain) return;
  ClearSaved(node);
  node.edges.clear();
}

// Keeps the gradients of results that are targets. They now have a second reader, so they are not
// owned any more.
absl::Status Tape::Keep(const Node& node, absl::InlinedVector<Slot, 2>& slots) {
  for (size_t r = 0; r < slots.size(); ++r) {
    if (slots[r].empty() || !walk_.Keeps(node, static_cast<int>(r))) continue;
    for (Contribution& sum : slots[r]) {
      DT_RETURN_IF_ERROR(MakeNow(sum));
      sum.owned = false;
    }
    arrived_[{&node, static_cast<int>(r)}] = slots[r];
  }
  return absl::OkStatus();
}

}  // namespace dtensor
