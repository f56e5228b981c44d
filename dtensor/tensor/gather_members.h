// What dispatch and Backward do with the members of gather groups.
#ifndef DTENSOR_TENSOR_GATHER_MEMBERS_H_
#define DTENSOR_TENSOR_GATHER_MEMBERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

// Returns each member's gathered tensor, which may still be in flight. A tensor that is already
// gathered and up to date is used again. For the others gathers are begun: one exchange for all
// members that are gathered over the same axes. Collective. Requires: leaves that are alive.
absl::StatusOr<std::vector<TensorImplPtr>> BeginGather(absl::Span<GatherMember* const> members);

// Whether the leaf's gradient is reduced during Backward, together with those of its group.
bool ReducesTogether(const TensorImpl& leaf);

// Keeps track of what one Backward gathers and reduces.
class GatherWalk {
 public:
  // Counts what `node` needs gathered and, if the walk `reduces`, its edges to leaves. Call it for
  // every node that will be visited, before that node or an older one is visited.
  void Count(const Node& node, bool reduces);
  // The same for an edge at which the walk begins.
  void CountEdge(const Edge& edge);

  // Gathers the saved sources of `node` into its operands, and begins to gather for the group that
  // is needed next. For the node of a Recompute() it gathers for the operators that run again. Of
  // sources that are not in a group only those of the operands `read`, as bits. Collective. Errors:
  // failures.
  absl::Status Restore(Node& node, uint32_t read = ~uint32_t{0});
  // Call it after the visit: frees gathered tensors that no later node needs.
  void Release(Node& node);

  // The leaves whose gradients an arrival has completed. At most one member is set.
  struct Completed {
    TensorImplPtr leaf;  // a leaf that is not reduced together with others
    // All leaves of a group, in the order in which their gradients were complete.
    std::vector<TensorImplPtr> group;
  };
  // A gradient has arrived at `leaf`.
  Completed Arrived(const TensorImplPtr& leaf);
  // Call it after a Recompute() has run again and the walk was extended by its operators: their
  // edges are waited for instead of those of `node`.
  std::vector<Completed> Replaced(const Node& node);
  // Whether a gradient has arrived at `leaf`, which is in a group, and is not reduced yet because
  // others of the group are missing.
  bool Waits(const TensorImplPtr& leaf) const;

 private:
  // The maps below use addresses as keys, so they own the tensors: if one were freed, a new tensor
  // could get its address.
  struct Held {
    TensorImplPtr source;  // what was gathered from, while there are uses
    int uses = 0;          // by nodes that are still to be visited
    size_t place = 0;      // for a member: index of its Need in needs_
    TensorImplPtr gathered;
  };
  // The members of one group that nodes need.
  struct Need {
    uint64_t sequence = 0;  // of the node visited first that needs it: the highest one
    size_t counted = 0;     // how many groups were counted before this one
    std::vector<GatherMember*> members;
    bool begun = false;
  };
  struct Arrivals {
    int leaves = 0;  // number of leaves whose gradients are waited for
    std::vector<TensorImplPtr> complete;
  };
  // A source that is not a leaf, and a layout in which operators read it.
  using SourceUse = std::pair<const TensorImpl*, const Spec*>;
  static SourceUse UseOf(const Node& node, const SavedSource& saved);
  struct Awaited {
    TensorImplPtr leaf;
    int edges = 0;  // edges to it along which no gradient has arrived so far
    bool arrived = false;
  };
  Completed Complete(const TensorImplPtr& leaf, bool arrived);
  absl::Status Begin(Need& need);
  absl::Status RestoreLeaf(Node& node, const SavedSource& saved);
  absl::Status RestoreSource(Node& node, const SavedSource& saved);
  void Order();

  HashMap<SourceUse, Held> sources_;
  HashMap<GatherMember*, Held> held_;
  HashMap<GatherGroup*, Need> counted_;
  std::vector<Need> needs_;  // those of counted_, in the order in which they are gathered
  HashMap<const TensorImpl*, Awaited> leaves_;
  HashMap<GatherGroup*, Arrivals> arrivals_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_MEMBERS_H_
