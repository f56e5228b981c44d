#include "dtensor/redistribution/owner_choice.h"

namespace dtensor {

bool MayHaveOwners(const AxisRoles& roles) {
  return !roles.reduced().empty() && roles.needers() > 1 && roles.elements() > 0;
}

// The source holds what is gathered once for each coordinate on the gathered axes, and a rank knows
// by these alone what it has already.
bool MayHaveRounds(const AxisRoles& roles) {
  if (!roles.reduced().empty()) return MayHaveOwners(roles);
  return !roles.gathered().empty() && roles.moved().empty() && roles.elements() > 0;
}

bool MayShareTerms(const AxisRoles& roles) {
  return !roles.created_from_shards().empty() && !roles.reduced().empty() && roles.elements() > 0;
}

// X alone moves needers * terms messages for each element, less one for each term that a needer
// holds itself. Where that is no more than the owner's way, one round is better than two.
OwnerChoice LeastOwners(const AxisRoles& roles) {
  if (!MayHaveOwners(roles)) return {};
  const int64_t terms = roles.terms(), needers = roles.needers();
  const bool alone_is_least =
      roles.moved().empty() && terms * needers - roles.helper_count() <= terms + needers - 2;
  return {.owners = alone_is_least ? Owners::kNeeders : Owners::kHolders};
}

}  // namespace dtensor
