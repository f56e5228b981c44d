// What a walk of the tape visits, found out before anything runs. For tape.cc and autograd.cc only.
#ifndef DTENSOR_TENSOR_TAPE_WALK_H_
#define DTENSOR_TENSOR_TAPE_WALK_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/gather_members.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

// A place where gradients arrive: a leaf, or a result of an operator.
using GradientPlace = std::pair<const void*, int>;
inline GradientPlace PlaceOf(const Edge& edge) {
  if (edge.leaf != nullptr) return {edge.leaf.get(), 0};
  return {edge.node.get(), edge.index};
}

class TapeWalk {
 public:
  // From `root` to every leaf. `who` is what the user called, for errors. Errors:
  // kFailedPrecondition for an operator that was walked before, or whose tensors were written to;
  // for a leaf whose gradient is no more, to which nothing can be added.
  static absl::StatusOr<TapeWalk> ToLeaves(absl::string_view who, const Edge& root);
  // From `root` to `targets` and no further. Errors: as above; an operator that was walked before
  // counts where it may have led to a target.
  static absl::StatusOr<TapeWalk> To(absl::string_view who, const Edge& root,
                                     absl::Span<const Edge> targets);

  // `roots` were led to by operators that are younger than `since`, made during the walk: those
  // that lead to what this walks to, or to its targets, are walked too.
  void Extend(absl::Span<const Edge> roots, uint64_t since);

  // Gradients go along this edge.
  bool Wants(const Edge& edge) const {
    if (to_leaves_) return edge.wanted();
    return targets_.contains(PlaceOf(edge)) || (edge.node != nullptr && Runs(*edge.node));
  }
  bool Runs(const Node& node) const { return to_leaves_ || runs_.contains(node.sequence); }
  // The gradient that arrives here is kept, though an operator's result has it.
  bool Keeps(const Node& node, int result) const {
    return !to_leaves_ && targets_.contains({&node, result});
  }
  // What the operators that are walked gather, and the leaves that they lead to reduce early.
  GatherWalk& gathers() { return gathers_; }

  // Of a target: something that is walked leads there.
  bool Reaches(const Edge& target) const { return reached_.contains(PlaceOf(target)); }

 private:
  TapeWalk() = default;
  bool MarkIfLeads(const Node& node);
  bool to_leaves_ = false;
  // None of these, if it goes to every leaf.
  HashSet<GradientPlace> targets_, reached_;
  HashSet<uint64_t> runs_;  // by sequence: another may have the address of one
  GatherWalk gathers_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TAPE_WALK_H_
