#include "dtensor/tensor/gather_members.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"

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
  const bool reads = !exchange.plans[0]->plan().moves_nothing();
  for (Tensor& source : exchange.sources) {
    // Peers read it while this rank goes on: a lender's next write must not move it.
    if (absl::Status status = source.EndBorrow(); !status.ok())
      return context.communicator().Fail(status);
  }
  const ExchangeCaller caller("Gather", exchange.lineage, exchange.leaves[0]->lineage);
  DT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRedistribution> pending,
                      PendingRedistribution::BeginCoalesced(exchange.plans, exchange.sources,
                                                            context.communicator(), caller));
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
  gathered->pinned = true;  // remembers weakly
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
  return !written && AliasRoot(*of).version() == version ? now : nullptr;
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

void GatherWalk::CountEdge(const Edge& edge) {
  if (edge.leaf == nullptr || edge.leaf->gather == nullptr) return;
  if (edges_[edge.leaf.get()]++ == 0) ++arrivals_[edge.leaf->gather->group].leaves;
}

void GatherWalk::Count(const Node& node, bool reduces) {
  if (node.replay != nullptr) return;  // what it makes when it runs again is counted then
  for (const Edge& edge : node.edges) {
    if (reduces) CountEdge(edge);
  }
  for (const SavedLeaf& saved : node.saved_leaves) {
    GatherMember* const member = saved.leaf->gather.get();
    Need& need = counted_[member->group];
    need.sequence = std::max(need.sequence, node.sequence);
    if (held_[member].uses++ == 0) need.members.push_back(member);
  }
}

void GatherWalk::Order() {
  std::vector<std::pair<GatherGroup*, Need>> order(counted_.begin(), counted_.end());
  counted_.clear();
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.sequence > b.second.sequence; });
  for (auto& [group, need] : order) {
    place_[group] = needs_.size();
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

absl::Status GatherWalk::Restore(Node& node) {
  if (node.saved_leaves.empty()) return absl::OkStatus();
  if (!counted_.empty()) Order();
  for (const SavedLeaf& saved : node.saved_leaves) {
    GatherMember* const member = saved.leaf->gather.get();
    const size_t place = place_.at(member->group);
    DT_RETURN_IF_ERROR(Begin(needs_[place]));
    for (GatherMember* one : needs_[place].members) {
      const TensorImplPtr& gathered = held_[one].gathered;
      if (gathered != nullptr) DT_RETURN_IF_ERROR(Settle(*gathered));
    }
    if (place + 1 < needs_.size()) DT_RETURN_IF_ERROR(Begin(needs_[place + 1]));
    const Spec* const wanted = node.decision->operands[saved.operand];
    const ExchangeCaller caller("Backward", node.lineage, saved.leaf->lineage);
    DT_ASSIGN_OR_RETURN(const TensorImplPtr operand,
                        RedistributeTo(held_[member].gathered, wanted, caller));
    node.operands[saved.operand] = operand->local;
  }
  return absl::OkStatus();
}

void GatherWalk::Release(Node& node) {
  for (const SavedLeaf& saved : node.saved_leaves) {
    node.operands[saved.operand] = Tensor();
    Held& held = held_[saved.leaf->gather.get()];
    if (--held.uses == 0) held.gathered = nullptr;
  }
}

std::vector<TensorImplPtr> GatherWalk::Arrived(const TensorImplPtr& leaf) {
  const auto edges = edges_.find(leaf.get());
  if (edges == edges_.end() || --edges->second > 0) return {};
  GatherGroup* const group = leaf->gather->group;
  Arrivals& arrivals = arrivals_[group];
  arrivals.complete.push_back(leaf);
  const bool last = static_cast<int>(arrivals.complete.size()) == arrivals.leaves;
  if (!last || group->level() == ShardLevel::kOptimizer) return {};
  return std::move(arrivals.complete);
}

}  // namespace dtensor
