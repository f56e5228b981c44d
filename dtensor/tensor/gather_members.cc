#include "dtensor/tensor/gather_members.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/noted_plan.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {
namespace {

// Leaves that are gathered in one exchange.
struct Exchange {
  std::string key;
  std::vector<std::shared_ptr<const RankRedistributionPlan>> plans;
  std::vector<Tensor> sources;
  std::vector<TensorImplPtr> leaves, gathered;
  uint64_t lineage = 0;
};

absl::Status Begin(Exchange& exchange) {
  Context& context = *exchange.leaves[0]->context;
  const WorkScope scope(context, exchange.leaves[0]->gather->group->ScopeIn(context));
  const bool reads = !exchange.plans[0]->plan().moves_nothing();
  const ExchangeCaller caller("Gather", exchange.lineage, exchange.leaves[0]->lineage);
  const TraceReason reason(context.tracer(), TraceCause::kGather);
  DT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRedistribution> pending,
                      BeginCoalesced(context, exchange.plans, exchange.sources, caller));
  for (size_t i = 0; i < exchange.leaves.size(); ++i) {
    Unsettled& unsettled = *(exchange.gathered[i]->unsettled = std::make_unique<Unsettled>());
    unsettled.pending = pending;
    unsettled.pending_result = i;
    if (reads) context.AddRead(AliasRoot(*exchange.leaves[i]), pending);
  }
  return absl::OkStatus();
}

// Begins to gather `member` together with the others of its exchange.
absl::StatusOr<TensorImplPtr> Join(GatherMember& member, std::vector<Exchange>& exchanges) {
  const TensorImplPtr leaf = member.leaf.lock();
  DT_CHECK(leaf != nullptr);
  DT_RETURN_IF_ERROR(Settle(*leaf));
  DT_ASSIGN_OR_RETURN(auto plan, leaf->context->Plan(leaf->spec, member.used));
  TensorImplPtr gathered =
      MakeImpl(*leaf->context, member.used, Tensor(), leaf->row_major && !plan->plan().is_view());
  gathered->lineage = leaf->lineage;
  gathered->pinned = true;  // so that it does not remember redistributions
  member.gathered = gathered;
  member.version = AliasRoot(*leaf).version();
  const std::string key = CoalescingKey(*plan);
  auto it = std::find_if(exchanges.begin(), exchanges.end(),
                         [&](const Exchange& exchange) { return exchange.key == key; });
  if (it == exchanges.end()) it = exchanges.insert(it, Exchange{.key = key});
  it->plans.push_back(std::move(plan));
  it->sources.push_back(leaf->local);
  it->leaves.push_back(leaf);
  it->gathered.push_back(gathered);
  it->lineage = MixLineage(it->lineage, leaf->lineage.id);
  return gathered;
}

}  // namespace

TensorImplPtr GatherMember::Current() const {
  TensorImplPtr now = gathered.lock();
  const TensorImplPtr of = leaf.lock();
  if (now == nullptr || of == nullptr) return nullptr;
  const bool written = now->local.defined() && now->local.version() > 0;
  return !written && AliasVersion(*of) == version ? now : nullptr;
}

absl::StatusOr<std::vector<TensorImplPtr>> BeginGather(absl::Span<GatherMember* const> members) {
  std::vector<TensorImplPtr> all;
  std::vector<Exchange> exchanges;
  for (GatherMember* member : members) {
    TensorImplPtr gathered = member->Current();
    if (gathered == nullptr) {
      DT_ASSIGN_OR_RETURN(gathered, Join(*member, exchanges));
    }
    all.push_back(std::move(gathered));
  }
  for (Exchange& exchange : exchanges) DT_RETURN_IF_ERROR(Begin(exchange));
  return all;
}

bool ReducesTogether(const TensorImpl& leaf) {
  return leaf.gather != nullptr && leaf.gather->group->level() != ShardLevel::kOptimizer;
}

void GatherWalk::CountEdge(const Edge& edge) {
  if (edge.leaf == nullptr) return;
  Awaited& awaited = leaves_[edge.leaf.get()];
  awaited.leaf = edge.leaf;
  const bool first = awaited.edges++ == 0;
  if (first && ReducesTogether(*edge.leaf)) ++arrivals_[edge.leaf->gather->group].leaves;
}

void GatherWalk::Count(const Node& node, bool reduces) {
  for (const Edge& edge : node.edges) {
    if (reduces) CountEdge(edge);
  }
  for (const SavedSource& saved : node.saved_sources) {
    GatherMember* const member = saved.source->gather.get();
    Held& held = member == nullptr ? sources_[UseOf(node, saved)] : held_[member];
    held.source = saved.source;
    const bool first = held.uses++ == 0;
    if (member == nullptr) continue;
    Need& need =
        counted_.try_emplace(member->group, Need{.counted = counted_.size()}).first->second;
    need.sequence = std::max(need.sequence, node.sequence);
    if (first) need.members.push_back(member);
  }
}

void GatherWalk::Order() {
  std::vector<std::pair<GatherGroup*, Need>> order(counted_.begin(), counted_.end());
  counted_.clear();
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(b.second.sequence, a.second.counted) <
           std::pair(a.second.sequence, b.second.counted);
  });
  for (auto& [group, need] : order) {
    if (need.members.empty()) continue;  // all were added to needs_ before
    for (GatherMember* member : need.members) held_[member].place = needs_.size();
    needs_.push_back(std::move(need));
  }
}

absl::Status GatherWalk::Begin(Need& need) {
  if (need.begun) return absl::OkStatus();
  need.begun = true;
  DT_ASSIGN_OR_RETURN(std::vector<TensorImplPtr> gathered, BeginGather(need.members));
  for (size_t i = 0; i < gathered.size(); ++i) {
    held_[need.members[i]].gathered = std::move(gathered[i]);
  }
  return absl::OkStatus();
}

GatherWalk::SourceUse GatherWalk::UseOf(const Node& node, const SavedSource& saved) {
  return {saved.source.get(), node.decision->operands[saved.operand]};
}

absl::Status GatherWalk::Restore(Node& node, uint32_t read) {
  if (!counted_.empty()) Order();
  for (const SavedSource& saved : node.saved_sources) {
    const bool is_leaf = saved.source->gather != nullptr;
    if (!is_leaf && (read >> saved.operand & 1) == 0) continue;
    DT_RETURN_IF_ERROR(is_leaf ? RestoreLeaf(node, saved) : RestoreSource(node, saved));
  }
  return absl::OkStatus();
}

absl::Status GatherWalk::RestoreLeaf(Node& node, const SavedSource& saved) {
  GatherMember* const member = saved.source->gather.get();
  const size_t place = held_[member].place;
  DT_RETURN_IF_ERROR(Begin(needs_[place]));
  for (GatherMember* one : needs_[place].members) {
    const TensorImplPtr& gathered = held_[one].gathered;
    if (gathered != nullptr) DT_RETURN_IF_ERROR(Settle(*gathered));
  }
  if (place + 1 < needs_.size()) DT_RETURN_IF_ERROR(Begin(needs_[place + 1]));
  if (node.replay != nullptr) return absl::OkStatus();
  const Spec* const wanted = node.decision->operands[saved.operand];
  const ExchangeCaller caller("Backward", node.lineage, saved.source->lineage);
  const TraceReason reason(saved.source->context->tracer(), TraceCause::kGatherAgain);
  DT_ASSIGN_OR_RETURN(const TensorImplPtr operand,
                      RedistributeTo(held_[member].gathered, wanted, caller));
  node.operands[saved.operand] = operand->local;
  return absl::OkStatus();
}

absl::Status GatherWalk::RestoreSource(Node& node, const SavedSource& saved) {
  Held& held = sources_[UseOf(node, saved)];
  if (held.gathered == nullptr) {
    const Spec* const wanted = node.decision->operands[saved.operand];
    const ExchangeCaller caller("Backward", node.lineage, saved.source->lineage);
    const TraceReason reason(saved.source->context->tracer(), TraceCause::kGatherAgain);
    DT_ASSIGN_OR_RETURN(held.gathered, RedistributeTo(saved.source, wanted, caller));
  }
  node.operands[saved.operand] = held.gathered->local;
  return absl::OkStatus();
}

void GatherWalk::Release(Node& node) {
  for (const SavedSource& saved : node.saved_sources) {
    if (node.replay == nullptr) node.operands[saved.operand] = Tensor();
    GatherMember* const member = saved.source->gather.get();
    Held& held = member == nullptr ? sources_[UseOf(node, saved)] : held_[member];
    if (--held.uses == 0) held.gathered = held.source = nullptr;
  }
}

GatherWalk::Completed GatherWalk::Arrived(const TensorImplPtr& leaf) {
  return Complete(leaf, /*arrived=*/true);
}

std::vector<GatherWalk::Completed> GatherWalk::Replaced(const Node& node) {
  std::vector<Completed> all;
  for (const Edge& edge : node.edges) {
    if (edge.leaf != nullptr) all.push_back(Complete(edge.leaf, /*arrived=*/false));
  }
  return all;
}

bool GatherWalk::Waits(const TensorImplPtr& leaf) const {
  const auto found = leaves_.find(leaf.get());
  if (found == leaves_.end()) return false;
  const auto arrivals = arrivals_.find(leaf->gather->group);
  return found->second.arrived ||
         (arrivals != arrivals_.end() && absl::c_linear_search(arrivals->second.complete, leaf));
}

// Counts one edge to `leaf` as done. `arrived`: a gradient came along it.
GatherWalk::Completed GatherWalk::Complete(const TensorImplPtr& leaf, bool arrived) {
  const auto found = leaves_.find(leaf.get());
  if (found == leaves_.end()) return {};  // this walk does not reduce
  Awaited& awaited = found->second;
  awaited.arrived |= arrived;
  if (--awaited.edges > 0) return {};
  const bool any = std::exchange(awaited.arrived, false);
  if (!ReducesTogether(*leaf)) return {any ? leaf : nullptr, {}};
  Arrivals& arrivals = arrivals_[leaf->gather->group];
  // List it only once, even if more of its gradient arrives after it was complete.
  const bool listed = absl::c_linear_search(arrivals.complete, leaf);
  if (any && !listed) {
    arrivals.complete.push_back(leaf);
  } else {
    --arrivals.leaves;
  }
  const bool last = static_cast<int>(arrivals.complete.size()) == arrivals.leaves;
  if (!last) return {};
  arrivals.leaves = 0;
  return {nullptr, std::exchange(arrivals.complete, {})};
}

}  // namespace dtensor
