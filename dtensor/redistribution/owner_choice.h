// OwnerChoice: who makes what a redistribution reduces, and how the others get it. The second part
// of SameMeshTransition.
#ifndef DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_
#define DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_

#include <cstdint>
#include <vector>

#include "dtensor/redistribution/axis_roles.h"

namespace dtensor {

// Who makes an element of the result, of the ranks that need it, before the others get it.
enum class Owners : uint8_t {
  kNeeders,   // each for itself: there is no second round
  kHolders,   // on axes that shard the source, the rank at the holder's coordinate
  kAnyNeeder  // all of them share the work evenly
};

struct OwnerChoice {
  // Requires: kNeeders unless MayHaveOwners() or, with rounds, MayHaveRounds().
  Owners owners = Owners::kNeeders;
  // The owners pass their elements on in several rounds, each along these axes, in this order: all
  // of owner_axes(). Empty: in one.
  std::vector<AxisList> rounds;
  // Ranks on axes that go from Shard to Partial share what is reduced for them, too; else the
  // holder has it alone. Requires: MayShareTerms().
  bool shares_terms = false;
};

// Terms are reduced for several ranks in need.
bool MayHaveOwners(const AxisRoles& roles);
// Owners pass on what is reduced; or nothing moves but what is gathered, and holders are owners.
bool MayHaveRounds(const AxisRoles& roles);
bool MayShareTerms(const AxisRoles& roles);

// kNeeders or kHolders, whichever moves least.
OwnerChoice LeastOwners(const AxisRoles& roles);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_OWNER_CHOICE_H_
