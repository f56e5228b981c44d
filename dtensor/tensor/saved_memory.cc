#include "dtensor/tensor/saved_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

// The recorded operators that led to `root`, the last recorded first.
std::vector<std::shared_ptr<Node>> NodesOf(const Edge& root) {
  std::vector<std::shared_ptr<Node>> nodes;
  HashSet<const Node*> seen = {nullptr};
  const auto meet = [&](const Edge& edge) {
    if (seen.insert(edge.node.get()).second) nodes.push_back(edge.node);
  };
  meet(root);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::shared_ptr<Node> node = nodes[i];
    for (const Edge& edge : node->edges) meet(edge);
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  return nodes;
}

}  // namespace

void FreeSaved(const DistributedTensor& root,
               const std::function<void(const void* scope, int64_t bytes)>& fn) {
  const MemoryStats& memory = root.context().device().memory();
  for (const std::shared_ptr<Node>& node : NodesOf(EdgeOf(root.impl()))) {
    const int64_t before = memory.live_bytes;
    ClearSaved(*node);
    if (memory.live_bytes < before) fn(node->scope, before - memory.live_bytes);
  }
}

}  // namespace dtensor
