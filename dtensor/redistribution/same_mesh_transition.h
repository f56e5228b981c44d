// SameMeshTransition: what each rank needs and owns where a tensor goes from one layout to another,
// and the boxes that it receives. The algebra under RedistributionPlan, for its sources alone: the
// roles of axes (axis_roles.h), a choice of owners (owner_choice.h), and the regions that follow.
#ifndef DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_
#define DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/axis_roles.h"
#include "dtensor/redistribution/owner_choice.h"
#include "dtensor/runtime/core/collective.h"

namespace dtensor {

// An immutable value.
class SameMeshTransition {
 public:
  // With LeastOwners(roles).
  explicit SameMeshTransition(AxisRoles roles)
      : roles_(std::make_shared<const AxisRoles>(std::move(roles))),
        choice_(LeastOwners(*roles_)) {}
  // The same, carried out in another way.
  SameMeshTransition With(OwnerChoice choice) const {
    return SameMeshTransition(roles_, std::move(choice));
  }

  const AxisRoles& roles() const { return *roles_; }
  const OwnerChoice& choice() const { return choice_; }

  // Whether each element has one owner, which passes it on: G follows X.
  bool pivot() const { return choice_.owners != Owners::kNeeders; }
  // The axes along which the owners of what a rank needs differ, ascending; those of them whose
  // ranks share the work evenly, and those where the owner's coordinate is the holder's.
  AxisList owner_axes() const;
  AxisList sharing_axes() const;
  AxisList holder_axes() const;
  // Of the axes that become partial, those whose ranks share what they need together; and those
  // that they could.
  AxisList keeper_axes() const;
  AxisList possible_keeper_axes() const;
  // Whether peers in X differ on `axis`, which shards the source.
  bool SendsAlong(int axis) const;

  // The part of its result that the rank at `coordinate` must have, in disjoint regions; the rest
  // is the identity of the target's partial op. Of ranks that differ on axes that become partial,
  // one must have each element: the holder, if the axis shards the source and unless they share
  // terms; else all share evenly, or, where nothing moves, coordinate 0 keeps what it has.
  std::vector<Region> Needed(absl::Span<const int> coordinate) const;
  // The part of Needed that it owns with all ranks that differ on sharing_axes(), and its own share
  // of that. Requires: pivot().
  std::vector<Region> OwnedTogether(absl::Span<const int> coordinate) const;
  std::vector<Region> Owned(absl::Span<const int> coordinate) const;

 private:
  SameMeshTransition(std::shared_ptr<const AxisRoles> roles, OwnerChoice choice)
      : roles_(std::move(roles)), choice_(std::move(choice)) {}
  std::vector<Region> NeededTogether(absl::Span<const int> coordinate) const;
  std::vector<Region> HeldPart(std::vector<Region> regions, absl::Span<const int> holder,
                               const AxisList& axes) const;
  std::vector<Region> KeeperShare(std::vector<Region> regions, absl::Span<const int> holder,
                                  absl::Span<const int> coordinate) const;

  std::shared_ptr<const AxisRoles> roles_;
  OwnerChoice choice_;
};

// The boxes that `rank` receives: in X from the peers' sources, in G (of which `round` says the
// round) from their results, where what the rank owns lies already. Disjoint.
std::vector<ReceiveBox> ExchangeBoxes(const SameMeshTransition& transition, int rank);
std::vector<ReceiveBox> GatherBoxes(const SameMeshTransition& transition, int rank, int round);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_
