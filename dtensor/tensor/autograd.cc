#include "dtensor/tensor/autograd.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

// One sum of gradients in one layout.
struct Contribution {
  SpecPtr spec;
  Tensor local;
  bool owned;  // nobody else reads `local`: more may be added in place
};
constexpr Lineage kGradient = {.maker = "Backward"};
// What has arrived for one tensor: one Contribution for each layout, in order of arrival.
using Slot = absl::InlinedVector<Contribution, 1>;

class Tape {
 public:
  Tape(Context& context, uint64_t loss) : context_(context), lineage_(loss) {}

  absl::Status Run(const TensorImplPtr& loss) {
    DT_RETURN_IF_ERROR(CheckReachable(EdgeOf(loss).node.get()));
    DT_ASSIGN_OR_RETURN(const SpecPtr dual, context_.Intern(loss->spec->layout.Dual(),
                                                            loss->spec->shape, loss->spec->dtype));
    DT_ASSIGN_OR_RETURN(Tensor one, NewTensor(dual));
    DT_RETURN_IF_ERROR(kernels::Fill(context_.device(), one, 1));
    DT_RETURN_IF_ERROR(Deliver(EdgeOf(loss), {dual, std::move(one), true}));
    while (!pending_.empty()) {
      auto last = std::prev(pending_.end());
      Pending pending = std::move(last->second);
      pending_.erase(last);
      DT_RETURN_IF_ERROR(Visit(*pending.node, pending.slots));
    }
    return Store();
  }

 private:
  struct Pending {
    std::shared_ptr<Node> node;
    absl::InlinedVector<Slot, 2> slots;  // of the node's results
  };

  absl::StatusOr<Tensor> NewTensor(const Spec* spec) {
    auto tensor = Tensor::Empty(context_.device(), spec->dtype, spec->local_shape);
    if (!tensor.ok()) return context_.communicator().Fail(tensor.status());
    return tensor;
  }

  absl::Status Accumulate(Slot& slot, Contribution more) {
    for (Contribution& sum : slot) {
      if (sum.spec != more.spec) continue;
      if (!sum.owned) {
        DT_ASSIGN_OR_RETURN(Tensor fresh, NewTensor(sum.spec));
        DT_RETURN_IF_ERROR(kernels::Binary(context_.device(), kernels::BinaryOp::kAdd, sum.local,
                                           more.local, fresh));
        sum.local = std::move(fresh);
        sum.owned = true;
        return absl::OkStatus();
      }
      return kernels::Binary(context_.device(), kernels::BinaryOp::kAdd, sum.local, more.local,
                             sum.local);
    }
    slot.push_back(std::move(more));
    return absl::OkStatus();
  }

  absl::Status Deliver(const Edge& edge, Contribution more) {
    if (edge.leaf != nullptr) {
      auto [it, fresh] = leaf_slots_.try_emplace(edge.leaf.get());
      if (fresh) leaves_.push_back(edge.leaf);
      return Accumulate(it->second, std::move(more));
    }
    if (edge.node == nullptr) return absl::OkStatus();
    Pending& pending = pending_[edge.node->sequence];
    if (pending.node == nullptr) {
      pending.node = edge.node;
      pending.slots.resize(edge.node->decision->results.size());
    }
    return Accumulate(pending.slots[edge.index], std::move(more));
  }

  // The sum of all contributions in one layout. Those that are Partial are reduced on the way.
  absl::StatusOr<Tensor> Settle(Slot& slot, const Spec* wanted, const ExchangeCaller& caller) {
    Slot settled;
    for (Contribution& sum : slot) {
      if (sum.spec != wanted) {
        DT_ASSIGN_OR_RETURN(const auto plan, context_.Plan(sum.spec, wanted));
        DT_ASSIGN_OR_RETURN(sum.local,
                            ExecutePlan(*plan, sum.local, context_.communicator(), caller));
        sum.owned = false;
        sum.spec = wanted;
      }
      DT_RETURN_IF_ERROR(Accumulate(settled, std::move(sum)));
    }
    slot.clear();
    if (!settled.empty()) return std::move(settled[0].local);
    DT_ASSIGN_OR_RETURN(Tensor zero, NewTensor(wanted));
    DT_RETURN_IF_ERROR(kernels::Fill(context_.device(), zero, 0));
    return zero;
  }

  static absl::Status Written(const Node& node, absl::string_view what, size_t i,
                              const Spec* spec) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Backward: ", what, " ", i, " of ", node.decision->op->name, " (", spec->ToString(),
        "), or an alias of it, was written after the operator ran; call Backward before the "
        "optimizer's step"));
  }

  static absl::Status CheckUnwritten(const Node& node) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (!node.operands[i].defined()) continue;
      const auto base = std::find_if(node.bases.begin(), node.bases.end(), [&](const auto& known) {
        return known.first == static_cast<int>(i);
      });
      const Tensor& root = base == node.bases.end() ? node.operands[i] : base->second;
      if (root.version() == node.versions[i]) continue;
      return Written(node, "operand", i, node.decision->operands[i]);
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      if (!node.results[r].defined() || node.results[r].version() == 0) continue;
      return Written(node, "result", r, node.decision->results[r]);
    }
    return absl::OkStatus();
  }

  // Refuses, before anything runs, what a walk from `root` (null: from a leaf) would meet.
  static absl::Status CheckReachable(const Node* root) {
    absl::flat_hash_set<const Node*> seen = {nullptr, root};
    std::vector<const Node*> open;
    if (root != nullptr) open.push_back(root);
    while (!open.empty()) {
      const Node& node = *open.back();
      open.pop_back();
      if (node.consumed) {
        return absl::FailedPreconditionError(
            absl::StrCat("Backward: ", node.decision->op->name,
                         " was walked by an earlier Backward; add the losses and call it once"));
      }
      DT_RETURN_IF_ERROR(CheckUnwritten(node));
      for (const Edge& edge : node.edges) {
        if (seen.insert(edge.node.get()).second) open.push_back(edge.node.get());
      }
    }
    return absl::OkStatus();
  }

  // The axes on which the lone contribution is Partial while `dual` is replicated, if the operator
  // passes such gradients on and nothing else differs; empty otherwise.
  AxisList PassedAxes(const Decision& decision, const Slot& slot) {
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

  absl::Status Visit(Node& node, absl::InlinedVector<Slot, 2>& slots) {
    const Decision& decision = *node.decision;
    const OpDef& op = *decision.op;
    const AxisList passed = PassedAxes(decision, slots[0]);
    absl::InlinedVector<Tensor, 2> result_gradients;
    const ExchangeCaller caller(op.name, MixLineage(lineage_, node.lineage), kGradient);
    for (size_t r = 0; r < slots.size(); ++r) {
      const Spec* wanted =
          passed.empty() ? decision.result_gradient_specs[r] : slots[r][0].spec.get();
      DT_ASSIGN_OR_RETURN(Tensor gradient, Settle(slots[r], wanted, caller));
      result_gradients.push_back(std::move(gradient));
    }
    absl::InlinedVector<Tensor, 3> gradients(node.edges.size());
    absl::InlinedVector<SpecPtr, 3> specs(node.edges.size());
    Device& device = context_.device();
    GradCall call{context_,
                  decision,
                  SavedTensors(device, node.operands, decision.operands),
                  SavedTensors(device, node.results, decision.results),
                  result_gradients,
                  OperandGradients(absl::MakeSpan(gradients)),
                  node.values,
                  caller.lineage};
    for (size_t i = 0; i < node.edges.size(); ++i) {
      if (!node.edges[i].wanted()) continue;
      call.wanted |= 1u << i;
      specs[i] = decision.gradients[i];
      if (!passed.empty()) {
        DT_ASSIGN_OR_RETURN(const Layout layout, specs[i]->layout.WithPartial(passed));
        DT_ASSIGN_OR_RETURN(specs[i], context_.Intern(layout, specs[i]->shape, specs[i]->dtype));
      }
      if (!op.sets_gradients) {
        DT_ASSIGN_OR_RETURN(gradients[i], NewTensor(specs[i]));
      }
    }
    absl::Status status = decision.functions.backward(call);
    if (status.ok()) status = CheckBackward(call, specs);
    if (!status.ok()) return context_.communicator().Fail(status);
    for (size_t i = 0; i < node.edges.size(); ++i) {
      if (!node.edges[i].wanted()) continue;
      DT_RETURN_IF_ERROR(
          Deliver(node.edges[i], {specs[i], std::move(gradients[i]), !op.sets_gradients}));
    }
    node.consumed = true;
    node.operands.clear();
    node.results.clear();
    node.bases.clear();
    node.edges.clear();
    return absl::OkStatus();
  }

  // All or nothing.
  absl::Status Store() {
    std::vector<TensorImplPtr> gradients;
    for (const TensorImplPtr& leaf : leaves_) {
      DT_ASSIGN_OR_RETURN(TensorImplPtr gradient, SumFor(leaf));
      gradients.push_back(std::move(gradient));
    }
    for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i]->grad = std::move(gradients[i]);
    return absl::OkStatus();
  }

  // What arrived at a leaf and its grad(); several layouts meet in the leaf's own. A value: the
  // same tensor may have arrived at another leaf too.
  absl::StatusOr<TensorImplPtr> SumFor(const TensorImplPtr& leaf) {
    Slot& slot = leaf_slots_[leaf.get()];
    if (leaf->grad != nullptr)
      slot.insert(slot.begin(), {leaf->grad->spec, leaf->grad->local, false});
    Slot sum;
    for (Contribution& part : slot) DT_RETURN_IF_ERROR(Accumulate(sum, std::move(part)));
    const SpecPtr spec = sum.size() == 1 ? sum[0].spec : leaf->spec;
    uint64_t lineage = MixLineage(lineage_, leaf->lineage.id);
    if (leaf->grad != nullptr) lineage = MixLineage(lineage, leaf->grad->lineage.id);
    DT_ASSIGN_OR_RETURN(Tensor local, Settle(sum, spec, {"Backward", lineage, kGradient}));
    if (local.overlaps_itself()) {
      auto copy = kernels::Duplicate(context_.device(), local);
      if (!copy.ok()) return context_.communicator().Fail(copy.status());
      local = *std::move(copy);
    } else if (!local.is_only_user()) {
      local = local.Borrow();
    }
    TensorImplPtr gradient = MakeImpl(context_, spec, std::move(local), /*row_major=*/false);
    gradient->lineage = {lineage, kGradient.maker};
    return gradient;
  }

  Context& context_;
  const uint64_t lineage_;               // of the loss
  std::map<uint64_t, Pending> pending_;  // by creation order: the last is next, on every rank
  std::vector<TensorImplPtr> leaves_;    // in order of arrival
  absl::flat_hash_map<const TensorImpl*, Slot> leaf_slots_;
};

}  // namespace

absl::Status Backward(const TensorOr& loss) {
  if (!loss.ok()) return loss.status();
  if (!loss->defined()) return InvalidArgument({"Backward: the loss is undefined"});
  const Spec& spec = loss->spec();
  if (NumElements(spec.shape) != 1 || !IsFloat(spec.dtype)) {
    return InvalidArgument({"Backward: the loss must be one floating number, got ", spec.ToString(),
                            "; take its Sum or Mean first"});
  }
  if (ReducesByAnotherOpThanSum(spec.layout, Layout::Replicated(spec.mesh(), spec.ndim()))) {
    return NoGradientPasses("Backward", "the loss", spec);
  }
  if (const OpDef* stopped_by = loss->impl()->stopped_by; stopped_by != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("Backward: no gradient reaches what led to the loss: the operator ",
                     stopped_by->name, " has no backward"));
  }
  if (!EdgeOf(loss->impl()).wanted()) {
    return absl::FailedPreconditionError(
        "Backward: nothing was recorded; set_requires_grad(true) on the parameters, and keep "
        "recording on");
  }
  return Tape(loss->context(), loss->impl()->lineage.id).Run(loss->impl());
}

absl::Status ReduceGradients(absl::Span<const DistributedTensor> leaves) {
  struct Group {
    std::vector<std::shared_ptr<const RankRedistributionPlan>> kept;
    std::vector<const RankRedistributionPlan*> plans;
    std::vector<Tensor> sources;
    std::vector<TensorImplPtr> leaves;
    uint64_t lineage = 0;  // of all the gradients
  };
  std::vector<std::pair<std::string, Group>>
      groups;  // in order of first use, the same on every rank
  for (const DistributedTensor& leaf : leaves) {
    if (!leaf.defined()) return InvalidArgument({"ReduceGradients: a leaf is undefined"});
    if (&leaf.context() != &leaves[0].context()) {
      return InvalidArgument({"ReduceGradients: leaves belong to two Contexts"});
    }
  }
  for (const DistributedTensor& leaf : leaves) {
    const TensorImplPtr& impl = leaf.impl();
    if (impl->grad == nullptr || impl->grad->spec == impl->spec) continue;
    DT_ASSIGN_OR_RETURN(const auto plan, leaf.context().Plan(impl->grad->spec, impl->spec));
    const std::string key = CoalescingKey(*plan);
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == key; });
    if (it == groups.end()) it = groups.insert(groups.end(), {key, Group()});
    it->second.kept.push_back(plan);
    it->second.plans.push_back(plan.get());
    it->second.sources.push_back(impl->grad->local);
    it->second.leaves.push_back(impl);
    it->second.lineage = MixLineage(it->second.lineage, impl->grad->lineage.id);
  }
  for (auto& [key, group] : groups) {
    Context& context = *group.leaves[0]->context;
    DT_ASSIGN_OR_RETURN(std::vector<Tensor> reduced,
                        ExecuteCoalesced(group.plans, group.sources, context.communicator(),
                                         {"ReduceGradients", group.lineage, kGradient}));
    for (size_t i = 0; i < reduced.size(); ++i) {
      const Lineage lineage = group.leaves[i]->grad->lineage;
      group.leaves[i]->grad = MakeImpl(context, group.leaves[i]->spec, std::move(reduced[i]),
                                       /*row_major=*/false);
      group.leaves[i]->grad->lineage = lineage;
    }
  }
  return absl::OkStatus();
}

}  // namespace dtensor
