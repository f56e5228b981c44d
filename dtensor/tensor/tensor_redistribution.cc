// Redistributions of tensors: what they remember, put off, and record. The plans' execution is
// dtensor/redistribution/plan_executor.h.
//
//   Redistribute()          RedistributedValue -> Move -> RunOrPutOff   remembered; may be late
//     with options          RedistributeBy -> RunOrSendLater            never remembered
//   an operator's operand   RedistributeTo, RedistributeLate -> RedistributeAnyhow -> Move
//   RedistributeKept()      KeptOnMesh -> RedistributeBy                kept until it is written
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/collective_results.h"
#include "dtensor/tensor/late_send.h"
#include "dtensor/tensor/late_values.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/noted_plan.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

namespace {

// Whether the target is on another mesh. Then ranks of that mesh may have an object without
// elements as the source, so nothing may depend on what the source remembers, on its strides, or on
// its lineage.
bool ChangesMesh(const TensorImpl& impl, const Spec& target) {
  return impl.spec->mesh_digest != target.mesh_digest;
}

// The remembered redistribution to `target`, if it is of the present values of `impl` and was not
// written to; else null.
TensorImplPtr Recall(const TensorImpl& impl, const Spec* target) {
  if (ChangesMesh(impl, *target)) return nullptr;  // KeptOnMesh has others, of its own
  const uint64_t version = AliasRoot(impl).version();
  for (const TensorImpl::Remembered& known : impl.remembered) {
    if (known.spec != target || known.version != version) continue;
    const TensorImplPtr& moved = known.moved;
    // Checked first, because a tensor that was consumed in place has no values, so no version of
    // them.
    const bool stale = moved->unsettled != nullptr && moved->unsettled->late == nullptr;
    return stale || moved->local.version() > 0 ? nullptr : moved;
  }
  return nullptr;
}

// The result of a redistribution is row-major if its source is, unless it is a view of a part.
bool StaysRowMajor(const TensorImpl& source, const Spec& target,
                   const RankRedistributionPlan& plan) {
  return source.row_major && !plan.plan().is_view() && !ChangesMesh(source, target);
}

// Whether the result may share memory in which several elements have one place. Not whether it does
// so on this rank, which may have one of these elements alone.
bool StaysExpanded(const TensorImpl& source, const RankRedistributionPlan& plan) {
  return source.is_expanded && plan.plan().is_view();
}

// A tensor that moves to another mesh gets a new lineage, counted there. If all have what they
// need, no rank exchanges anything: that is no change for the order of exchanges.
Lineage MovedLineage(const TensorImpl& impl, const Spec& target, const RedistributionPlan& plan) {
  if (!ChangesMesh(impl, target)) return impl.lineage;
  if (!plan.moves_nothing()) impl.context->NoteMeshChange();
  return impl.context->NextLineage(target, "Redistribute");
}

// The tensor whose `remembered` serves `impl`: its twin, or itself.
const TensorImplPtr& Memory(const TensorImplPtr& impl) {
  const TensorImplPtr& twin = impl->twin;
  if (twin == nullptr || (twin->unsettled != nullptr && twin->unsettled->consumed)) return impl;
  return StillEqual(*impl, *twin, impl->twin_version) ? twin : impl;
}

// Names a node of a redistribution to another mesh.
const OpDef kChangeOfMesh = {.name = "Redistribute"};

// Gives `moved`, which `impl` was redistributed to, its edge, and why gradients end where they do.
// On one mesh they are those of `impl`.
absl::Status LinkMoved(const TensorImplPtr& impl, TensorImpl& moved) {
  Context& context = *impl->context;
  if (!context.recording()) return absl::OkStatus();
  moved.stopped_by = impl->stopped_by;
  moved.loses_gradient = impl->loses_gradient;
  moved.edge = EdgeOf(impl);
  if (!moved.edge.wanted() || !ChangesMesh(*impl, *moved.spec)) return absl::OkStatus();
  const auto node = std::make_shared<Node>();
  const CountedPtr<Decision> decision(new Decision);
  const auto keep = [&](SpecPtr spec) {
    decision->kept.push_back(std::move(spec));
    return decision->kept.back().get();
  };
  const auto dual_of = [&](const Spec& spec) {
    return context.Intern(spec.layout.Dual(), spec.shape, spec.dtype);
  };
  DT_ASSIGN_OR_RETURN(SpecPtr gradient, dual_of(*impl->spec));
  DT_ASSIGN_OR_RETURN(SpecPtr result_gradient, dual_of(*moved.spec));
  decision->op = &kChangeOfMesh;
  decision->operands.push_back(keep(impl->spec));
  decision->gradients.push_back(keep(std::move(gradient)));
  decision->results.push_back(keep(moved.spec));
  decision->result_gradient_specs.push_back(keep(std::move(result_gradient)));
  node->decision = DecisionPtr(decision.get());
  node->sequence = context.NextSequence();
  node->lineage = moved.lineage.id;
  node->scope = context.scope();
  node->changes_mesh = true;
  context.NoteMeshChange();
  node->edges.push_back(std::move(moved.edge));
  moved.edge = {node, 0, nullptr};
  return absl::OkStatus();
}

}  // namespace

ExchangeCaller RedistributeCaller(const TensorImpl& impl, const Spec& target) {
  if (!ChangesMesh(impl, target)) return {"Redistribute", impl.lineage.id, impl.lineage};
  // Ranks that disagree on this would disagree in Backward on what moves back.
  const bool recorded = impl.context->recording() && WantsGradient(impl);
  return {recorded ? "Redistribute with a gradient" : "Redistribute", recorded, impl.lineage};
}

std::shared_ptr<LateGather> LateGatherOf(const TensorImpl& impl) {
  LateValues* const late = impl.unsettled == nullptr ? nullptr : impl.unsettled->late.get();
  if (late == nullptr || late->made() || late->gather() == nullptr) return nullptr;
  return {impl.unsettled->late, late->gather()};
}

namespace {

// The entry in which `impl` remembers, or will remember, its redistribution to `target`.
TensorImpl::Remembered& PlaceOf(TensorImpl& impl, const Spec* target) {
  for (TensorImpl::Remembered& old : impl.remembered) {
    if (old.spec == target) return old;
  }
  return impl.remembered.emplace_back();
}

LateProduct* LateProductOf(const TensorImpl& impl) {
  LateValues* const late = impl.unsettled == nullptr ? nullptr : impl.unsettled->late.get();
  return late == nullptr || late->made() ? nullptr : late->product();
}

// If `impl` is a product that was put off, made or not: its reduce-scatter to `target` in chunks.
// Else null. Follows from metadata alone.
absl::StatusOr<std::shared_ptr<const RankChunks>> ProductInChunks(const TensorImpl& impl,
                                                                  const Spec* target) {
  std::shared_ptr<const RankChunks> chunks;
  if (impl.put_off == nullptr || ChangesMesh(impl, *target)) return chunks;
  DT_ASSIGN_OR_RETURN(chunks, ScatterInChunks(*impl.context, impl.spec, target));
  if (chunks != nullptr && !ReadsRows(*impl.put_off, chunks->schedule().dim())) chunks = nullptr;
  return chunks;
}

// Settles `impl`, unless it is a product that will be made while it is reduce-scattered to
// `target`. Sets `chunks` to that reduce-scatter, also if the product is made already.
absl::Status SettleFor(TensorImpl& impl, const Spec* target,
                       std::shared_ptr<const RankChunks>& chunks) {
  DT_ASSIGN_OR_RETURN(chunks, ProductInChunks(impl, target));
  const bool made_meanwhile = chunks != nullptr && LateProductOf(impl) != nullptr;
  return made_meanwhile ? absl::OkStatus() : Settle(impl);
}

absl::StatusOr<Tensor> ScatterProduct(TensorImpl& impl, const RankChunks& chunks,
                                      const ExchangeCaller& caller) {
  LateProduct* const product = LateProductOf(impl);
  if (product == nullptr) return Scatter(*impl.context, chunks, impl.local, caller);
  return product->MakeAndScatter(chunks, caller);
}

// Runs `plan`, or puts it off as a LateGather. Sets `local` and, if it was put off, `late`.
absl::Status RunOrPutOff(TensorImpl& impl, const Spec* target,
                         const std::shared_ptr<const RankRedistributionPlan>& plan,
                         const ExchangeCaller& caller, bool may_be_late, Tensor& local,
                         LateValuesPtr& late) {
  Context& context = *impl.context;
  std::shared_ptr<const RankChunks> chunks;
  DT_RETURN_IF_ERROR(SettleFor(impl, target, chunks));
  if (chunks != nullptr) {
    DT_ASSIGN_OR_RETURN(local, ScatterProduct(impl, *chunks, caller));
    return Settle(impl);
  }
  may_be_late = may_be_late && impl.spec->on_mesh && !ChangesMesh(impl, *target);
  if (may_be_late && !KeepsResults(context)) {
    DT_ASSIGN_OR_RETURN(chunks, GatherInChunks(context, impl.spec, target));
  }
  if (chunks == nullptr) {
    DT_ASSIGN_OR_RETURN(local, RunOrSendLater(impl, impl.local, plan, caller));
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(late, LateGather::Create(context, chunks, impl.local, caller));
  local = late->values();
  context.AddLateRead(AliasRoot(impl), late);
  return absl::OkStatus();
}

// Redistributes `impl` to `target` and remembers the result, if `impl` may remember. If `impl` is a
// product that was put off, it is made on the way.
absl::StatusOr<TensorImplPtr> Move(TensorImpl& impl, const Spec* target,
                                   const ExchangeCaller& caller, bool may_be_late) {
  Context& context = *impl.context;
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(impl.spec, target));
  const CollectiveCall call{impl.lineage.id, target};
  const bool changes_mesh = ChangesMesh(impl, *target);
  const bool moves = !plan->plan().moves_nothing() && !changes_mesh;
  Tensor local;
  LateValuesPtr late;
  if (!moves || !TakeResults(context, call, {&local, 1})) {
    DT_RETURN_IF_ERROR(RunOrPutOff(impl, target, plan, caller, may_be_late, local, late));
    if (moves) KeepResults(context, call, {&local, 1});
  }
  TensorImplPtr moved =
      MakeImpl(context, target, std::move(local), StaysRowMajor(impl, *target, *plan));
  if (late != nullptr) {
    moved->unsettled = std::make_unique<Unsettled>();
    moved->unsettled->late = std::move(late);
  }
  moved->lineage = MovedLineage(impl, *target, plan->plan());
  moved->is_expanded = StaysExpanded(impl, *plan);
  moved->moves = changes_mesh ? 1 : std::min(impl.moves + 1, TensorImpl::kMostMoves);
  if (!changes_mesh && impl.remembers()) {
    PlaceOf(impl, target) = {target, AliasRoot(impl).version(), moved};
  }
  return moved;
}

// A value with the elements of `source`, which a user may write to.
TensorImplPtr ValueOf(const TensorImplPtr& source) {
  TensorImplPtr value =
      MakeImpl(*source->context, source->spec, source->local.Borrow(), source->row_major);
  value->lineage = source->lineage;
  value->is_expanded = source->is_expanded;
  value->twin = Memory(source);
  value->twin_version = AliasRoot(*value->twin).version();
  return value;
}

// Settles `impl`, unless it can be made while it is redistributed to `target`.
absl::Status SettleToMove(TensorImpl& impl, const Spec* target) {
  std::shared_ptr<const RankChunks> chunks;
  return SettleFor(impl, target, chunks);
}

absl::StatusOr<TensorImplPtr> RedistributeAnyhow(const TensorImplPtr& impl, const Spec* target,
                                                 const ExchangeCaller& caller, bool may_be_late) {
  if (impl->spec == target) return impl;
  DT_RETURN_IF_ERROR(SettleToMove(*impl, target));
  const TensorImplPtr& memory = Memory(impl);
  if (memory != impl) return RedistributeAnyhow(memory, target, caller, may_be_late);
  const TensorImplPtr known = Recall(*impl, target);
  if (known == nullptr) return Move(*impl, target, caller, may_be_late);
  if (!known->is_handed_out) return known;
  DT_RETURN_IF_ERROR(Settle(*known));
  return ValueOf(known);
}

}  // namespace

absl::StatusOr<TensorImplPtr> RedistributeTo(const TensorImplPtr& impl, const Spec* target,
                                             const ExchangeCaller& caller) {
  DT_ASSIGN_OR_RETURN(TensorImplPtr moved,
                      RedistributeAnyhow(impl, target, caller, /*may_be_late=*/false));
  DT_RETURN_IF_ERROR(Settle(*moved));
  return moved;
}

absl::StatusOr<TensorImplPtr> RedistributeLate(const TensorImplPtr& impl, const Spec* target,
                                               const ExchangeCaller& caller) {
  return RedistributeAnyhow(impl, target, caller, /*may_be_late=*/true);
}

absl::StatusOr<TensorImplPtr> RedistributedValue(const TensorImplPtr& impl, const Spec* target,
                                                 const ExchangeCaller& caller, bool may_be_late) {
  DT_RETURN_IF_ERROR(SettleToMove(*impl, target));
  const TensorImplPtr& memory = Memory(impl);
  if (memory != impl) DT_RETURN_IF_ERROR(Settle(*memory));
  TensorImplPtr value;
  if (memory->spec == target) {
    DT_RETURN_IF_ERROR(Settle(*memory));
    value = ValueOf(memory);
  } else if (const TensorImplPtr known = Recall(*memory, target); known != nullptr) {
    DT_RETURN_IF_ERROR(Settle(*known));
    value = ValueOf(known);
  } else {
    DT_ASSIGN_OR_RETURN(value, Move(*memory, target, caller, may_be_late));
    value->is_handed_out = true;
  }
  DT_RETURN_IF_ERROR(LinkMoved(impl, *value));
  return value;
}

namespace {

// Takes the memory of `impl`, to be written to, and marks `impl` as consumed. Returns a copy if
// others see that memory.
absl::StatusOr<Tensor> Consume(TensorImpl& impl) {
  Context& context = *impl.context;
  DT_RETURN_IF_ERROR(context.FinishReads(AliasRoot(impl)));
  // No elements, but as any tensor of the device it keeps the Context alive.
  auto nothing = Tensor::Empty(context.device(), impl.spec->dtype, {0});
  if (!nothing.ok()) return context.communicator().Fail(nothing.status());
  Tensor local = std::exchange(impl.local, *std::move(nothing));
  impl.remembered.clear();
  impl.twin = nullptr;
  impl.unsettled = std::make_unique<Unsettled>();
  impl.unsettled->consumed = true;
  if (local.is_only_user() && !local.overlaps_itself()) return local;
  auto copy = kernels::Duplicate(context.device(), local);
  if (!copy.ok()) return context.communicator().Fail(copy.status());
  return copy;
}

}  // namespace

absl::StatusOr<TensorImplPtr> RedistributeBy(const TensorImplPtr& impl, const Spec* target,
                                             std::shared_ptr<const RankRedistributionPlan> plan,
                                             bool async, const ExchangeCaller& caller) {
  DT_RETURN_IF_ERROR(Settle(*impl));
  Context& context = *impl->context;
  TensorImplPtr moved = MakeImpl(context, target, Tensor(), StaysRowMajor(*impl, *target, *plan));
  moved->lineage = MovedLineage(*impl, *target, plan->plan());
  moved->is_expanded = StaysExpanded(*impl, *plan);
  DT_RETURN_IF_ERROR(LinkMoved(impl, *moved));
  Tensor source, root;
  if (plan->plan().in_place()) {
    DT_ASSIGN_OR_RETURN(source, Consume(*impl));
  } else {
    source = impl->local;
    root = AliasRoot(*impl);
  }
  if (!async) {
    DT_ASSIGN_OR_RETURN(moved->local, RunOrSendLater(*impl, source, plan, caller));
    return moved;
  }
  if (plan->plan().moves_nothing()) root = Tensor();
  moved->unsettled = std::make_unique<Unsettled>();
  DT_ASSIGN_OR_RETURN(moved->unsettled->pending,
                      BeginPlan(context, std::move(plan), source, caller));
  context.AddRead(root, moved->unsettled->pending);
  return moved;
}

absl::StatusOr<TensorImplPtr> KeptOnMesh(const TensorImplPtr& leaf, const Spec* target) {
  Context& context = *leaf->context;
  if (leaf->edge.wanted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("RedistributeKept: ", leaf->spec->ToString(),
                     " is the result of a recorded operator, no leaf; Redistribute() it"));
  }
  DT_RETURN_IF_ERROR(Settle(*leaf));
  const uint64_t version = AliasRoot(*leaf).version();
  const auto known = absl::c_find_if(leaf->remembered, [&](const TensorImpl::Remembered& one) {
    return one.spec == target && one.version == version;
  });
  TensorImplPtr moved = known == leaf->remembered.end() ? nullptr : known->moved;
  if (moved == nullptr) {
    const NoGrad no_grad(context);  // an edge would lead to the leaf, which keeps this
    DT_ASSIGN_OR_RETURN(auto plan, context.Plan(leaf->spec, target));
    const ExchangeCaller caller = RedistributeCaller(*leaf, *target);
    DT_ASSIGN_OR_RETURN(moved,
                        RedistributeBy(leaf, target, std::move(plan), /*async=*/true, caller));
    PlaceOf(*leaf, target) = {target, version, moved};
  }
  const auto needs_this_rank = [&] {
    const auto& unsettled = moved->unsettled;
    return unsettled != nullptr && unsettled->pending != nullptr &&
           unsettled->pending->delivery() == Delivery::kInFinish;
  };
  if (target->on_mesh || needs_this_rank()) DT_RETURN_IF_ERROR(Settle(*moved));
  Tensor local;
  if (target->on_mesh) {
    local = moved->local.Borrow();
  } else {
    DT_ASSIGN_OR_RETURN(local, internal::NewLocal(context, target));
  }
  TensorImplPtr value = MakeImpl(context, target, std::move(local), /*row_major=*/false);
  value->lineage = moved->lineage;
  value->pinned = leaf->pinned;
  DT_RETURN_IF_ERROR(LinkMoved(leaf, *value));
  return value;
}

}  // namespace dtensor
