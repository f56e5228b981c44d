// SameMeshTransition: what each rank needs and owns when a tensor goes from one layout to another
// on the same mesh, and the boxes that it receives. It is the algebra behind RedistributionPlan,
// only for its sources: the roles of axes (axis_roles.h), a choice of owners (owner_choice.h), and
// the regions that follow from these.
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
  // The same transition with another choice of owners.
  SameMeshTransition With(OwnerChoice choice) const {
    return SameMeshTransition(roles_, std::move(choice));
  }

  const AxisRoles& roles() const { return *roles_; }
  const OwnerChoice& choice() const { return choice_; }

  // Whether each element has one owner, which passes it on: then G follows X.
  bool pivot() const { return choice_.owners != Owners::kNeeders; }
  // owner_axes(): the axes along which the owners of what a rank needs differ, ascending. Of these,
  // sharing_axes() are those whose ranks share the elements evenly, and holder_axes() those on
  // which the owner has the holder's coordinate.
  AxisList owner_axes() const;
  AxisList sharing_axes() const;
  AxisList holder_axes() const;
  // Of the axes that become partial, those along which ranks share what they need together
  // (keeper_axes), or could share it (possible_keeper_axes).
  AxisList keeper_axes() const;
  AxisList possible_keeper_axes() const;
  // Whether peers in X differ on `axis`, which shards the source.
  bool SendsAlong(int axis) const;

  // The part of its result that the rank at `coordinate` must have, in disjoint regions; the rest
  // is the identity of the target's partial op. Among ranks that differ only on axes that become
  // partial, exactly one must have each element. If the axis shards the source, it is the holder
  // (unless shares_terms). Else all ranks share the elements evenly; or, if nothing moves,
  // coordinate 0 keeps them.
  std::vector<Region> Needed(absl::Span<const int> coordinate) const;
  // OwnedTogether: the part of Needed that the rank owns together with the ranks that differ on
  // sharing_axes(). Owned: its own share of that. Requires: pivot().
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

// The boxes that `rank` receives; they are disjoint. In X it receives from the peers' sources, in G
// (in its round number `round`) from the peers' results; what it owns is in its result already.
std::vector<ReceiveBox> ExchangeBoxes(const SameMeshTransition& transition, int rank);
std::vector<ReceiveBox> GatherBoxes(const SameMeshTransition& transition, int rank, int round);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_
