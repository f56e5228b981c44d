#include "dtensor/tensor/recompute.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/key_lengths.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/replay.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

// Names the recorded call. The tape runs the function again in place of a backward.
const OpDef kRecomputeOp = {.name = "Recompute"};

absl::Status CheckOperands(absl::Span<const DistributedTensor> operands) {
  if (operands.empty()) return InvalidArgument({"Recompute: there is no operand"});
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].defined()) {
      return InvalidArgument({"Recompute: operand ", absl::StrCat(i), " is undefined"});
    }
    if (&operands[i].context() != &operands[0].context()) {
      return InvalidArgument(
          {"Recompute: operands 0 and ", absl::StrCat(i), " belong to two Contexts"});
    }
    DT_RETURN_IF_ERROR(Settle(*operands[i].impl()));
  }
  return absl::OkStatus();
}

// Leaves, in the order in which they are found.
struct MetLeaves {
  std::vector<TensorImplPtr> wanted;  // those that led to the results
  std::vector<TensorImplPtr> frozen;  // of groups: saved on the way, but want no gradient
};

// Whether it is the result of an operator with a sequence number above `since`.
bool IsMadeSince(uint64_t since, const Edge& edge) {
  return edge.node != nullptr && edge.node->sequence > since;
}

// The leaves that led to `results` by operators with sequence numbers above `since`.
MetLeaves LeavesOf(absl::Span<const DistributedTensor> results, uint64_t since) {
  MetLeaves leaves;
  HashSet<const void*> seen, saved_leaves;
  std::vector<Edge> open;
  for (const DistributedTensor& result : results) {
    const Edge edge = EdgeOf(result.impl());
    if (IsMadeSince(since, edge)) open.push_back(edge);
  }
  while (!open.empty()) {
    const Edge edge = std::move(open.back());
    open.pop_back();
    if (edge.leaf != nullptr && seen.insert(edge.leaf.get()).second) {
      leaves.wanted.push_back(edge.leaf);
    }
    if (!IsMadeSince(since, edge)) continue;
    if (!seen.insert(edge.node.get()).second) continue;
    for (const SavedSource& saved : edge.node->saved_sources) {
      const TensorImplPtr& leaf = saved.source;
      if (leaf->gather == nullptr || !saved_leaves.insert(leaf.get()).second) continue;
      leaves.frozen.push_back(leaf);
    }
    open.insert(open.end(), edge.node->edges.begin(), edge.node->edges.end());
  }
  std::erase_if(leaves.frozen, [&](const auto& leaf) { return seen.contains(leaf.get()); });
  return leaves;
}

// Records that `impl` was read, so that Backward notices later writes to it and knows where its
// gradient goes.
void AddOperand(const TensorImplPtr& impl, Edge edge, Decision& decision, Node& node) {
  const int index = static_cast<int>(node.operands.size());
  decision.operands.push_back(impl->spec.get());
  decision.kept.push_back(impl->spec);
  node.edges.push_back(std::move(edge));
  node.operands.push_back(impl->local);
  const Tensor& root = AliasRoot(*impl);
  if (&root != &impl->local) node.bases.emplace_back(index, root);
  node.versions.push_back(root.version());
}

// The same for a leaf, which may no longer want a gradient. The edge leads to the leaf itself, or
// nowhere if it is frozen. A leaf in a group is also saved as a source, so that it is prefetched
// when the function runs again.
void AddLeaf(const TensorImplPtr& leaf, Edge edge, Decision& decision, Node& node) {
  AddOperand(leaf, std::move(edge), decision, node);
  if (leaf->gather == nullptr) return;
  node.saved_sources.push_back(
      {static_cast<int>(node.operands.size()) - 1, leaf, node.versions.back()});
}

// Whether its leaves are in more than two groups. Those of one or two stay gathered until the
// gradients have used them, beside the group that is gathered ahead. If there are more, each is
// gathered when the function comes to it, freed, and gathered again.
bool HasManyGroups(const Node& node) {
  HashSet<const GatherGroup*> groups;
  for (const SavedSource& saved : node.saved_sources) {
    groups.insert(saved.source->gather->group);
  }
  return groups.size() > 2;
}

// An alias without the edge, but with the information on where recording stopped.
DistributedTensor AliasOf(const DistributedTensor& tensor) {
  DistributedTensor alias = tensor.Detach();
  alias.impl()->stopped_by = tensor.impl()->stopped_by;
  alias.impl()->loses_gradient = tensor.impl()->loses_gradient;
  return alias;
}

}  // namespace

TensorsOr Replay::Run(Context& context, absl::Span<const Edge> edges, const uint64_t* again) const {
  const RecomputedRun run(context, results.get(), again);
  const KeyLengths lengths(context, key_lengths);
  if (again != nullptr) context.random() = random;
  // The aliases are destroyed after the run, and with them the redistributions that they remember.
  std::vector<DistributedTensor> aliases;
  for (size_t i = 0; i < operands.size(); ++i) {
    aliases.push_back(AliasOf(operands[i]));
    aliases.back().impl()->edge = edges[i];
  }
  TensorsOr returned = fn(aliases);
  for (size_t r = 0; returned.ok() && r < returned->size(); ++r) {
    if ((*returned)[r].defined()) continue;
    return InvalidArgument({"Recompute: result ", absl::StrCat(r), " is undefined"});
  }
  return returned;
}

absl::Status Replay::CheckLeaves(const Node& node, absl::Span<const DistributedTensor> results,
                                 uint64_t since) const {
  const auto differ = [](const TensorImplPtr& leaf, absl::string_view how) {
    return InvalidArgument(
        {"Recompute: the function led to other leaves when it ran again: ", leaf->spec->ToString(),
         " is ", how, "; set_requires_grad() of what it reads waits for Backward, and it ",
         "makes no leaves of its own"});
  };
  HashSet<const TensorImpl*> before, now;
  for (size_t i = operands.size(); i < node.edges.size(); ++i) {
    before.insert(node.edges[i].leaf.get());
  }
  for (const TensorImplPtr& leaf : LeavesOf(results, since).wanted) {
    now.insert(leaf.get());
    if (!before.contains(leaf.get())) return differ(leaf, "one more");
  }
  for (size_t i = operands.size(); i < node.edges.size(); ++i) {
    const TensorImplPtr& leaf = node.edges[i].leaf;
    if (leaf == nullptr) continue;  // frozen
    if (!now.contains(leaf.get())) return differ(leaf, "none any more");
  }
  return absl::OkStatus();
}

TensorsOr Recompute(absl::Span<const DistributedTensor> operands, const RecomputedFunction& fn,
                    const RecomputeOptions& options) {
  DT_RETURN_IF_ERROR(CheckOperands(operands));
  Context& context = operands[0].context();
  if (!context.recording()) return fn(operands);

  auto replay = std::make_unique<Replay>();
  replay->fn = fn;
  replay->random = context.random();
  replay->key_lengths = context.key_lengths();
  if (options.keep_collectives) replay->results = std::make_unique<CollectiveResults>();
  const auto node = std::make_shared<Node>();
  const CountedPtr<Decision> decision(new Decision);
  decision->op = &kRecomputeOp;
  for (const DistributedTensor& operand : operands) {
    replay->operands.push_back(AliasOf(operand));
    AddOperand(operand.impl(), EdgeOf(operand.impl()), *decision, *node);
  }
  const uint64_t since = context.NextSequence(), mesh_changes = context.mesh_changes();
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results,
                      replay->Run(context, node->edges, /*again=*/nullptr));
  replay->changes_mesh = context.mesh_changes() != mesh_changes;
  const MetLeaves leaves = LeavesOf(results, since);
  for (const TensorImplPtr& leaf : leaves.wanted) {
    AddLeaf(leaf, {nullptr, 0, leaf}, *decision, *node);
  }
  for (const TensorImplPtr& leaf : leaves.frozen) AddLeaf(leaf, Edge(), *decision, *node);
  if (HasManyGroups(*node)) node->saved_sources.clear();
  node->sequence = context.NextSequence();
  std::vector<DistributedTensor> returned;
  for (size_t r = 0; r < results.size(); ++r) {
    const TensorImpl& result = *results[r].impl();
    decision->results.push_back(result.spec.get());
    decision->kept.push_back(result.spec);
    node->lineage = MixLineage(node->lineage, result.lineage.id);
    returned.push_back(AliasOf(results[r]));
    // If fn returns one of its operands, or a leaf, that keeps the edge it has without Recompute.
    const Edge edge = EdgeOf(results[r].impl());
    returned[r].impl()->edge =
        IsMadeSince(since, edge) ? Edge{node, static_cast<int>(r), nullptr} : edge;
  }
  node->decision = DecisionPtr(decision.get());
  node->scope = context.scope();
  node->replay = std::move(replay);
  return returned;
}

}  // namespace dtensor
