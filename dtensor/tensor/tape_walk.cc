#include "dtensor/tensor/tape_walk.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/reduce_gradients.h"
#include "dtensor/tensor/replay.h"

namespace dtensor {
namespace {

absl::Status Written(absl::string_view who, const Node& node, absl::string_view what, size_t i,
                     const Spec* spec) {
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": ", what, " ", i, " of ", node.decision->op->name, " (", spec->ToString(),
                   "), or an alias of it, was written after the operator ran; call ", who,
                   " before the ", "optimizer's step"));
}

absl::Status WalkedBefore(absl::string_view who, const Node& node) {
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": ", node.decision->op->name,
                   " was walked by an earlier Backward; add the losses and call it once, or let ",
                   "the earlier one retain_graph"));
}

// Calls fn(node) once for `root` and every operator that led to it. Stops at the first error.
template <typename Fn>
absl::Status ForEachNode(const Node* root, Fn fn) {
  HashSet<const Node*> seen = {nullptr, root};
  std::vector<const Node*> open;
  if (root != nullptr) open.push_back(root);
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    DT_RETURN_IF_ERROR(fn(node));
    for (const Edge& edge : node.edges) {
      if (seen.insert(edge.node.get()).second) open.push_back(edge.node.get());
    }
  }
  return absl::OkStatus();
}

// A walked operator has no edges any more, so it may have led to anything that is older.
bool MayHaveLedTo(const Node& walked, absl::Span<const Edge> targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const Edge& target) {
    return target.leaf != nullptr || target.node->sequence < walked.sequence;
  });
}

// The same in both directions: their exchanges have one order.
std::pair<uint64_t, uint64_t> MeshesOf(const Node& node) {
  return std::minmax(
      {node.decision->operands[0]->mesh_digest, node.decision->results[0]->mesh_digest});
}

void SortByAge(std::vector<const Node*>& nodes) {  // the oldest first
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
}

}  // namespace

absl::Status CheckUnwritten(absl::string_view who, const Node& node) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (!node.operands[i].defined()) continue;
    const auto base = std::find_if(node.bases.begin(), node.bases.end(), [&](const auto& known) {
      return known.first == static_cast<int>(i);
    });
    const Tensor& root = base == node.bases.end() ? node.operands[i] : base->second;
    if (root.version() == node.versions[i]) continue;
    return Written(who, node, "operand", i, node.decision->operands[i]);
  }
  for (const SavedSource& saved : node.saved_sources) {
    DT_RETURN_IF_ERROR(CheckNotConsumed(*saved.source));
    if (AliasVersion(*saved.source) == saved.version) continue;
    return Written(who, node, "operand", saved.operand, node.decision->operands[saved.operand]);
  }
  for (size_t r = 0; r < node.results.size(); ++r) {
    if (!node.results[r].defined() || node.results[r].version() == 0) continue;
    return Written(who, node, "result", r, node.decision->results[r]);
  }
  return absl::OkStatus();
}

absl::StatusOr<TapeWalk> TapeWalk::ToLeaves(absl::string_view who, const Edge& root) {
  TapeWalk walk;
  walk.to_leaves_ = true;
  DT_RETURN_IF_ERROR(ForEachNode(root.node.get(), [&](const Node& node) {
    if (node.consumed) return WalkedBefore(who, node);
    walk.gathers_.Count(node, /*reduces=*/true);
    walk.CountChanges(node);
    for (const Edge& edge : node.edges) DT_RETURN_IF_ERROR(CheckGradientThere(who, edge.leaf));
    return CheckUnwritten(who, node);
  }));
  DT_RETURN_IF_ERROR(CheckGradientThere(who, root.leaf));
  walk.gathers_.CountEdge(root);
  return walk;
}

absl::StatusOr<TapeWalk> TapeWalk::To(absl::string_view who, const Edge& root,
                                      absl::Span<const Edge> targets) {
  TapeWalk walk;
  for (const Edge& target : targets) walk.targets_.insert(PlaceOf(target));
  if (walk.targets_.contains(PlaceOf(root))) walk.reached_.insert(PlaceOf(root));
  std::vector<const Node*> nodes;
  DT_RETURN_IF_ERROR(ForEachNode(root.node.get(), [&](const Node& node) {
    if (node.consumed && MayHaveLedTo(node, targets)) return WalkedBefore(who, node);
    nodes.push_back(&node);
    return absl::OkStatus();
  }));
  // Edges lead to older operators, so these are marked first.
  SortByAge(nodes);
  for (const Node* node : nodes) {
    if (walk.MarkIfLeads(*node)) DT_RETURN_IF_ERROR(CheckUnwritten(who, *node));
  }
  return walk;
}

bool TapeWalk::MarkIfLeads(const Node& node) {
  bool leads = false;
  const size_t gradients =
      node.replay != nullptr ? node.edges.size() : node.decision->gradients.size();
  for (size_t i = 0; i < node.edges.size(); ++i) {
    const Edge& edge = node.edges[i];
    const bool is_target = i < gradients && targets_.contains(PlaceOf(edge));
    if (is_target) reached_.insert(PlaceOf(edge));
    leads = leads || is_target || (edge.node != nullptr && Runs(*edge.node));
  }
  if (!leads) return false;
  runs_.insert(node.sequence);
  gathers_.Count(node, /*reduces=*/false);
  return true;
}

void TapeWalk::CountChanges(const Node& node) {
  if (node.changes_mesh) ++changes_[MeshesOf(node)];
  if (node.replay != nullptr && node.replay->changes_mesh) ++replays_;
}

bool TapeWalk::IsLastChange(const Node& node) {
  const auto known = changes_.find(MeshesOf(node));
  return (known == changes_.end() || --known->second <= 0) && replays_ == 0;
}

void TapeWalk::Extend(absl::Span<const Edge> roots, uint64_t since, const Node& replayed) {
  if (to_leaves_ && replayed.replay->changes_mesh) --replays_;
  HashSet<const Node*> seen = {nullptr};
  std::vector<const Node*> nodes;
  const auto meet = [&](const Edge& edge) {
    if (!seen.insert(edge.node.get()).second || edge.node->sequence <= since) return;
    nodes.push_back(edge.node.get());
  };
  for (const Edge& root : roots) meet(root);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Edge& edge : nodes[i]->edges) meet(edge);
  }
  SortByAge(nodes);
  for (const Node* node : nodes) {
    if (!to_leaves_) {
      MarkIfLeads(*node);
      continue;
    }
    gathers_.Count(*node, /*reduces=*/true);
    CountChanges(*node);
  }
  for (const Edge& root : roots) {
    if (to_leaves_) gathers_.CountEdge(root);
  }
}

}  // namespace dtensor
