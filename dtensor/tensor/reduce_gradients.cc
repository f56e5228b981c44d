#include "dtensor/tensor/reduce_gradients.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/noted_plan.h"
#include "dtensor/tensor/tape.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

using PlanPtr = std::shared_ptr<const RankRedistributionPlan>;

// Gradients that are reduced in one collective.
struct Group {
  std::vector<PlanPtr> kept;
  std::vector<const RankRedistributionPlan*> plans;
  std::vector<Tensor> sources;
  std::vector<LeafGradient> members;
  std::vector<SpecPtr> targets;
  uint64_t lineage = 0;  // of all its gradients
};

}  // namespace

absl::Status CheckGradientThere(absl::string_view who, const TensorImplPtr& leaf) {
  if (leaf == nullptr || leaf->grad == nullptr || CheckNotConsumed(*leaf->grad).ok()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": the gradient of a leaf ", leaf->spec->ToString(), ", a tensor ",
                   leaf->grad->spec->ToString(),
                   ", was redistributed in place, and is no more; ClearGrad() first"));
}

absl::StatusOr<GradientReduction> ReductionOf(const TensorImpl& leaf, const TensorImpl& gradient,
                                              const ReduceGradientsOptions& options) {
  Context& context = *leaf.context;
  const DType kept = gradient.spec->dtype, own = leaf.spec->dtype;
  GradientReduction reduction{gradient.local};
  DT_ASSIGN_OR_RETURN(reduction.target, context.Intern(leaf.spec->layout, leaf.spec->shape, kept));
  if (reduction.target == gradient.spec) return reduction;
  DT_ASSIGN_OR_RETURN(reduction.plan, context.Plan(gradient.spec, reduction.target));
  if (!options.terms_in_leaf_dtype || kept == own || reduction.plan->plan().moves_nothing()) {
    return reduction;
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr terms,
                      context.Intern(gradient.spec->layout, leaf.spec->shape, own));
  DT_ASSIGN_OR_RETURN(reduction.plan, context.Plan(terms, reduction.target));
  auto narrow = Tensor::Empty(context.device(), own, terms->local_shape);
  if (!narrow.ok()) return context.communicator().Fail(narrow.status());
  DT_RETURN_IF_ERROR(
      kernels::Unary(context.device(), kernels::UnaryOp::kCopy, reduction.source, *narrow));
  reduction.source = *std::move(narrow);
  return reduction;
}

namespace {

absl::Status ReduceTogether(const Group& group, absl::string_view who) {
  Context& context = *group.members[0].leaf->context;
  const TraceReason reason(context.tracer(), TraceCause::kReduceGradients);
  DT_ASSIGN_OR_RETURN(
      std::vector<Tensor> reduced,
      RunCoalesced(context, group.plans, group.sources, {who, group.lineage, kGradientLineage}));
  for (size_t i = 0; i < reduced.size(); ++i) {
    TensorImplPtr& gradient = *group.members[i].gradient;
    const Lineage lineage = gradient->lineage;
    gradient = MakeImpl(context, group.targets[i], std::move(reduced[i]), /*row_major=*/false);
    gradient->lineage = lineage;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReduceToLeaves(absl::Span<const LeafGradient> all, absl::string_view who,
                            const ReduceGradientsOptions& options) {
  // In order of first use, the same on every rank.
  std::vector<std::pair<std::string, Group>> groups;
  for (const LeafGradient& one : all) {
    const TensorImpl& gradient = **one.gradient;
    if (gradient.spec == one.leaf->spec) continue;
    DT_ASSIGN_OR_RETURN(GradientReduction reduction, ReductionOf(*one.leaf, gradient, options));
    if (reduction.plan == nullptr) continue;
    const std::string key = CoalescingKey(*reduction.plan);
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == key; });
    if (it == groups.end()) it = groups.insert(groups.end(), {key, Group()});
    Group& group = it->second;
    group.plans.push_back(reduction.plan.get());
    group.kept.push_back(std::move(reduction.plan));
    group.sources.push_back(std::move(reduction.source));
    group.members.push_back(one);
    group.targets.push_back(std::move(reduction.target));
    group.lineage = MixLineage(group.lineage, gradient.lineage.id);
  }
  for (const auto& [key, group] : groups) DT_RETURN_IF_ERROR(ReduceTogether(group, who));
  return absl::OkStatus();
}

absl::Status ReduceGradients(absl::Span<const DistributedTensor> leaves,
                             const ReduceGradientsOptions& options) {
  for (const DistributedTensor& leaf : leaves) {
    if (!leaf.defined()) {
      return InvalidArgument({"ReduceGradients: leaf ", absl::StrCat(&leaf - leaves.data()),
                              " (from 0) of ", absl::StrCat(leaves.size()),
                              " is undefined; leave it out"});
    }
    if (&leaf.context() != &leaves[0].context()) {
      return InvalidArgument({"ReduceGradients: leaves belong to two Contexts"});
    }
  }
  std::vector<LeafGradient> all;
  for (const DistributedTensor& leaf : leaves) {
    DT_RETURN_IF_ERROR(CheckGradientThere("ReduceGradients", leaf.impl()));
    if (leaf.impl()->grad != nullptr) all.push_back({leaf.impl(), &leaf.impl()->grad});
  }
  return ReduceToLeaves(all, "ReduceGradients", options);
}

}  // namespace dtensor
