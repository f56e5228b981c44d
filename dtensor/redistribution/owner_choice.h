// OwnerChoice: which ranks reduce the elements of a redistribution, and how the others get them.
// The second part of SameMeshTransition.
#ifndef DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_
#define DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_

#include <cstdint>
#include <vector>

#include "dtensor/redistribution/axis_roles.h"

namespace dtensor {

// Which of the ranks that need an element own it: they complete it before the others get it.
enum class Owners : uint8_t {
  kNeeders,   // each rank that needs it, for itself: there is no second round
  kHolders,   // on axes that shard the source, the rank at the holder's coordinate
  kAnyNeeder  // all ranks that need it share the elements evenly
};

struct OwnerChoice {
  // Requires: kNeeders unless MayHaveOwners() or, with rounds, MayHaveRounds().
  Owners owners = Owners::kNeeders;
  // The axes of each round in which owners pass on their elements, in order; together they are
  // owner_axes(). Empty: a single round.
  std::vector<AxisList> rounds;
  // On axes that go from Shard to Partial, all ranks share the elements that are reduced; else the
  // holder alone has them. Requires: MayShareTerms().
  bool shares_terms = false;
};

// Whether terms are reduced for several ranks, so that each element can have one owner.
bool MayHaveOwners(const AxisRoles& roles);
// Whether owners could pass on elements in several rounds: MayHaveOwners(), or the redistribution
// is only a gather, with the holders as owners.
bool MayHaveRounds(const AxisRoles& roles);
// Whether OwnerChoice::shares_terms is possible.
bool MayShareTerms(const AxisRoles& roles);

// kNeeders or kHolders, whichever moves less.
OwnerChoice LeastOwners(const AxisRoles& roles);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_
