// Tape: gradients of leaves that are put off until RunDeferred(), so that a walk first computes
// what others wait for (DeferredGradients, autograd.h).
#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/reduce_gradients.h"
#include "dtensor/tensor/tape.h"
#include "dtensor/tensor/work_scope.h"
#include "dtensor/trace/trace_recorder.h"

namespace dtensor {

// The operands that the gradients `wanted` read, as bits; all, where the operator does not say.
uint32_t ReadFor(const OpDef& op, uint32_t wanted) {
  uint32_t read = 0;
  for (size_t i = 0; wanted >> i != 0; ++i) {
    if ((wanted >> i & 1) == 0) continue;
    const uint32_t separate = i < op.separate_gradients.size() ? op.separate_gradients[i] : 0;
    if (separate == 0) return ~uint32_t{0};
    read |= separate;
  }
  return read;
}

uint32_t Tape::PutOffBits(const Node& node) const {
  const Decision& decision = *node.decision;
  if (!options_.defers || !decision.on_mesh) return 0;
  const auto& separate = decision.op->separate_gradients;
  uint32_t bits = 0;
  for (size_t i = 0; i < std::min(separate.size(), decision.gradients.size()); ++i) {
    if (separate[i] == 0 || node.edges[i].leaf == nullptr) continue;
    if (walk_.Wants(node.edges[i])) bits |= 1u << i;
  }
  return bits;
}

// The node keeps what the gradients of these bits are computed from. Its gathered operands are
// gathered again for them. Gradients of other leaves that it has made arrive together with them, so
// in the order of its operands.
void Tape::PutOff(const std::shared_ptr<Node>& node, uint32_t bits, Call& made) {
  Deferred& deferred = deferred_.emplace_back();
  deferred.node = node;
  deferred.edges.assign(node->edges.begin(), node->edges.end());
  deferred.call.wanted = bits;
  deferred.call.result_gradients = made.result_gradients;
  deferred.call.specs = made.specs;
  deferred.call.gradients.resize(made.specs.size());
  for (size_t i = 0; i < made.specs.size(); ++i) {
    if ((made.wanted >> i & 1) == 0 || node->edges[i].leaf == nullptr) continue;
    deferred.call.gradients[i] = std::move(made.gradients[i]);
    made.wanted &= ~(1u << i);
  }
  node->consumed = true;
  node->results.clear();
  const uint32_t read = ReadFor(*node->decision->op, bits);
  for (size_t i = 0; i < node->operands.size(); ++i) {
    if ((read >> i & 1) == 0) node->operands[i] = Tensor();
  }
  std::erase_if(node->saved_sources,
                [&](const SavedSource& saved) { return (read >> saved.operand & 1) == 0; });
}

absl::Status Tape::RunDeferred() {
  constexpr absl::string_view kWho = "DeferredGradients::Finish";
  GatherWalk gathers;
  for (const Deferred& deferred : deferred_) {
    DT_RETURN_IF_ERROR(CheckGradientThere(kWho, deferred.edge.leaf));
    for (const Edge& edge : deferred.edges) {
      DT_RETURN_IF_ERROR(CheckGradientThere(kWho, edge.leaf));
    }
    if (deferred.node == nullptr) continue;
    DT_RETURN_IF_ERROR(CheckUnwritten(kWho, *deferred.node));
    gathers.Count(*deferred.node, /*reduces=*/false);
  }
  const TraceSpan span(context_.tracer(), TraceKind::kSpan, options_.who);
  const TracePhaseScope phase(context_.tracer(), TracePhase::kBackward);
  for (Deferred& deferred : deferred_) {
    if (deferred.node != nullptr) {
      DT_RETURN_IF_ERROR(RunPutOff(deferred, gathers));
    } else {
      for (Contribution& more : deferred.arrived) {
        DT_RETURN_IF_ERROR(AddAt(deferred.edge, std::move(more)));
      }
      DT_RETURN_IF_ERROR(Arrived(deferred.edge));
    }
    deferred = {};  // frees what it kept
  }
  deferred_.clear();
  DT_RETURN_IF_ERROR(FinishGroups());
  return FinishBuckets();
}

absl::Status Tape::RunPutOff(Deferred& deferred, GatherWalk& gathers) {
  Node& node = *deferred.node;
  Call& made = deferred.call;
  const WorkScope scope(context_, node.scope);
  const TraceSpan span(context_.tracer(), TraceKind::kOperator, node.decision->op->name);
  DT_RETURN_IF_ERROR(gathers.Restore(node));
  for (size_t i = 0; i < made.specs.size(); ++i) {
    if ((made.wanted >> i & 1) == 0) continue;
    DT_ASSIGN_OR_RETURN(made.gradients[i], internal::NewLocal(context_, made.specs[i].get()));
  }
  GradCall call = GradCallOf(node, made);
  absl::Status status = node.decision->functions.backward(call);
  if (status.ok()) status = CheckBackward(call, made.specs);
  if (!status.ok()) return FailIn(context_, *node.decision->op, status);
  gathers.Release(node);
  ClearSaved(node);
  for (size_t i = 0; i < made.specs.size(); ++i) {
    if (!made.gradients[i].defined()) continue;
    const Edge& edge = deferred.edges[i];
    DT_RETURN_IF_ERROR(AddAt(edge, {made.specs[i], std::move(made.gradients[i]), true}));
    DT_RETURN_IF_ERROR(Arrived(edge));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
