// The members of gather groups: what dispatch and Backward do with them. For these alone.
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

// Each member gathered, perhaps still on its way: what there is already of the values it has now,
// and the others over the same axes in one exchange, which is begun. Collective. Requires: leaves
// that are alive.
absl::StatusOr<std::vector<TensorImplPtr>> BeginGather(absl::Span<GatherMember* const> members);

// Whether the leaf's gradient is reduced in Backward, with those of its group.
bool ReducesTogether(const TensorImpl& leaf);

// What one Backward gathers and reduces.
class GatherWalk {
 public:
  // For each node that will be visited, before it or any older one is: what it gathers, and, if the
  // walk `reduces`, to which leaves it leads.
  void Count(const Node& node, bool reduces);
  // The same for an edge at which the walk begins.
  void CountEdge(const Edge& edge);

  // Gathers what `node` saved as sources into its operands, and begins what the next group needs.
  // What a Recompute() saved is gathered for the operators that it makes.
  // Collective. Errors: failures.
  absl::Status Restore(Node& node);
  // After the visit: frees what no later node needs.
  void Release(Node& node);

  // What was waited for, and has all arrived.
  struct Completed {
    TensorImplPtr leaf;  // its gradient; one that does not reduce together with others
    // The gradients of all leaves of a group: these, in the order in which theirs were complete.
    std::vector<TensorImplPtr> group;
  };
  // A gradient has arrived at `leaf`.
  Completed Arrived(const TensorImplPtr& leaf);
  // A Recompute() has run again: the walk was extended by what it made, which is waited for in its
  // place.
  std::vector<Completed> Replaced(const Node& node);
  // Whether something has arrived at `leaf`, of a group, that waits for the rest of it.
  bool Waits(const TensorImplPtr& leaf) const;

 private:
  // What is known by its address below is kept, be it all that the tape has: once it is gone,
  // another may have its address.
  struct Held {
    TensorImplPtr source;  // of what was gathered, while it has uses
    int uses = 0;          // by nodes that are still to be visited
    size_t place = 0;      // of a member's Need, in needs_
    TensorImplPtr gathered;
  };
  // What the nodes need of one group, in the order in which they are visited.
  struct Need {
    uint64_t sequence = 0;  // of the first node that needs it: the highest
    size_t counted = 0;     // how many were before it
    std::vector<GatherMember*> members;
    bool begun = false;
  };
  struct Arrivals {
    int leaves = 0;  // that wait for gradients
    std::vector<TensorImplPtr> complete;
  };
  // A source that is no leaf, and a layout in which operators read it.
  using SourceUse = std::pair<const TensorImpl*, const Spec*>;
  static SourceUse UseOf(const Node& node, const SavedSource& saved);
  struct Awaited {
    TensorImplPtr leaf;
    int edges = 0;  // to it, along which no gradient came so far
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
  std::vector<Need> needs_;  // of counted_, once they are known
  HashMap<const TensorImpl*, Awaited> leaves_;
  HashMap<GatherGroup*, Arrivals> arrivals_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_MEMBERS_H_
