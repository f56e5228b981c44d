// Tape: gradients that are reduced during the walk, and at its end.
#include <utility>

#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/reduce_gradients.h"
#include "dtensor/tensor/tape.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {

// Called when all of these leaves' gradients have arrived.
absl::Status Tape::Complete(const GatherWalk::Completed& completed) {
  if (completed.leaf != nullptr && options_.bucket_bytes > 0) {
    DT_RETURN_IF_ERROR(AddToBucket(completed.leaf));
  }
  return completed.group.empty() ? absl::OkStatus() : ReduceEarly(completed.group);
}

// Includes the gradient that the leaf already has, unless that is reduced and the new one is a
// single sum: then Store() adds it afterwards. So sums are made in the same order as without
// buckets.
absl::Status Tape::AddToBucket(const TensorImplPtr& leaf) {
  Slot slot = std::exchange(SlotOf(leaf), {});
  uint64_t lineage = LineageOn(*leaf->spec, leaf->lineage.id);
  const bool reduced = leaf->grad != nullptr && leaf->grad->spec->layout == leaf->spec->layout;
  const bool adds = leaf->grad != nullptr && (!reduced || slot.size() > 1);
  // Only once, even if more of its gradient arrives after it was complete.
  if (adds && added_.insert(leaf.get()).second) {
    slot.insert(slot.begin(), {leaf->grad->spec, leaf->grad->local, false});
    lineage = MixLineage(lineage, leaf->grad->lineage.id);
  }
  DT_ASSIGN_OR_RETURN(TensorImplPtr gradient, Sum(leaf, slot, lineage));
  in_buckets_.insert(leaf.get());
  return buckets_.Add(leaf, std::move(gradient));
}

absl::Status Tape::FinishBuckets() {
  if (options_.bucket_bytes == 0) return absl::OkStatus();
  // Leaves that are still waited for, because an operator on the way to them got no gradient.
  for (const TensorImplPtr& leaf : leaves_) {
    if (ReducesTogether(*leaf) || in_buckets_.contains(leaf.get())) continue;
    DT_RETURN_IF_ERROR(AddToBucket(leaf));
  }
  DT_RETURN_IF_ERROR(buckets_.Finish());
  for (GradientBuckets::Reduced& reduced : buckets_.TakeReduced()) {
    const bool owned = reduced.local.is_only_user();
    SlotOf(reduced.leaf).push_back({std::move(reduced.spec), std::move(reduced.local), owned});
  }
  return absl::OkStatus();
}

// Leaves in groups that are still waited for, for the same reason: reduces what has arrived, group
// by group.
absl::Status Tape::FinishGroups() {
  std::vector<std::vector<TensorImplPtr>> groups;
  HashMap<const GatherGroup*, size_t> places;
  for (const TensorImplPtr& leaf : leaves_) {
    if (!ReducesTogether(*leaf) || !walk_.gathers().Waits(leaf)) continue;
    const size_t place = places.try_emplace(leaf->gather->group, groups.size()).first->second;
    if (place == groups.size()) groups.emplace_back();
    groups[place].push_back(leaf);
  }
  for (const std::vector<TensorImplPtr>& group : groups) DT_RETURN_IF_ERROR(ReduceEarly(group));
  return absl::OkStatus();
}

// Reduces what has arrived at these leaves to their own layouts.
absl::Status Tape::ReduceEarly(const std::vector<TensorImplPtr>& leaves) {
  std::vector<TensorImplPtr> gradients(leaves.size());
  std::vector<LeafGradient> all;
  std::vector<bool> views;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const TensorImpl& leaf = *leaves[i];
    Slot slot = std::exchange(SlotOf(leaves[i]), {});
    const uint64_t lineage = LineageOn(*leaf.spec, leaf.lineage.id);
    DT_ASSIGN_OR_RETURN(gradients[i], Sum(leaves[i], slot, lineage));
    const SpecPtr from = gradients[i]->spec;
    DT_ASSIGN_OR_RETURN(const SpecPtr to,
                        context_.Intern(leaf.spec->layout, leaf.spec->shape, from->dtype));
    DT_ASSIGN_OR_RETURN(const auto plan, context_.Plan(from, to));
    views.push_back(from != to && plan->plan().is_view());
    all.push_back({leaves[i], &gradients[i]});
  }
  const WorkScope scope(context_, leaves[0]->gather->group->ScopeIn(context_));
  DT_RETURN_IF_ERROR(ReduceToLeaves(all, options_.who));
  for (size_t i = 0; i < leaves.size(); ++i) {
    const SpecPtr spec = gradients[i]->spec;
    Tensor local = std::move(gradients[i]->local);
    gradients[i] = nullptr;
    if (views[i]) {  // a view would keep the whole memory
      auto copy = kernels::Duplicate(context_.device(), local);
      if (!copy.ok()) return context_.communicator().Fail(copy.status());
      local = *std::move(copy);
    }
    const bool owned = local.is_only_user();
    SlotOf(leaves[i]).push_back({spec, std::move(local), owned});
  }
  return absl::OkStatus();
}

}  // namespace dtensor
