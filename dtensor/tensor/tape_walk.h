// TapeWalk: which operators a walk of the tape visits, found out before anything runs.
#ifndef DTENSOR_TENSOR_TAPE_WALK_H_
#define DTENSOR_TENSOR_TAPE_WALK_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/gather_members.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

// Errors: kFailedPrecondition, naming it, if a tensor that the node's backward reads was written to
// since the operator read it. `who` is what the user called.
absl::Status CheckUnwritten(absl::string_view who, const Node& node);

// A place where gradients arrive: a leaf, or a result of an operator.
using GradientPlace = std::pair<const void*, int>;
inline GradientPlace PlaceOf(const Edge& edge) {
  if (edge.leaf != nullptr) return {edge.leaf.get(), 0};
  return {edge.node.get(), edge.index};
}

class TapeWalk {
 public:
  // A walk from `root` to every leaf. `who` is what the user called, for errors. Errors:
  // kFailedPrecondition for an operator that was walked before, or whose tensors were written to;
  // for a leaf whose gradient was redistributed in place, so that nothing can be added to it.
  static absl::StatusOr<TapeWalk> ToLeaves(absl::string_view who, const Edge& root);
  // A walk from `root` to `targets` and no further. Errors: as above; an operator that was walked
  // before is an error only if it may have led to a target.
  static absl::StatusOr<TapeWalk> To(absl::string_view who, const Edge& root,
                                     absl::Span<const Edge> targets);

  // Extends the walk by operators that were recorded during it, when `replayed` ran again: those
  // that led to `roots` and have sequence numbers above `since`. Of a walk to targets, only those
  // that lead to a target.
  void Extend(absl::Span<const Edge> roots, uint64_t since, const Node& replayed);

  // Whether gradients go along this edge.
  bool Wants(const Edge& edge) const {
    if (to_leaves_) return edge.wanted();
    return targets_.contains(PlaceOf(edge)) || (edge.node != nullptr && Runs(*edge.node));
  }
  bool Runs(const Node& node) const { return to_leaves_ || runs_.contains(node.sequence); }
  // Whether the gradient of this result of an operator is a target of the walk, and kept.
  bool Keeps(const Node& node, int result) const {
    return !to_leaves_ && targets_.contains({&node, result});
  }
  // What the walked operators need gathered, and which leaves are reduced during the walk.
  GatherWalk& gathers() { return gathers_; }

  // Called when the walk has moved a gradient back over `node`, a change of mesh. Returns whether
  // it will cross no other change between the same two meshes: it knows of none, and no function
  // that will still run again changed meshes when it ran first.
  bool IsLastChange(const Node& node);

  // Whether the walk reaches the target.
  bool Reaches(const Edge& target) const { return reached_.contains(PlaceOf(target)); }

 private:
  TapeWalk() = default;
  bool MarkIfLeads(const Node& node);
  void CountChanges(const Node& node);
  bool to_leaves_ = false;
  // These are empty if it goes to every leaf.
  HashSet<GradientPlace> targets_, reached_;
  HashSet<uint64_t> runs_;  // sequence numbers; addresses may be reused by later nodes
  GatherWalk gathers_;
  // How many changes of mesh are still to be crossed, by the digests of both meshes.
  std::map<std::pair<uint64_t, uint64_t>, int> changes_;
  int replays_ = 0;  // functions with changes of mesh that are still to run again
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TAPE_WALK_H_
