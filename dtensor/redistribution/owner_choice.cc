#include "dtensor/redistribution/owner_choice.h"

namespace dtensor {

bool MayHaveOwners(const AxisRoles& roles) {
  return !roles.reduced().empty() && roles.needers() > 1 && roles.elements() > 0;
}

// If nothing is reduced, each element must be held at one coordinate on the gathered axes, so that
// these alone determine what a rank has already; so no other axis may move elements.
bool MayHaveRounds(const AxisRoles& roles) {
  if (!roles.reduced().empty()) return MayHaveOwners(roles);
  return !roles.gathered().empty() && roles.moved().empty() && roles.elements() > 0;
}

bool MayShareTerms(const AxisRoles& roles) {
  return !roles.created_from_shards().empty() && !roles.reduced().empty() && roles.elements() > 0;
}

// X alone moves needers * terms messages for each element, minus one for each term that a needer
// holds itself. If that is no more than with owners, one round is better than two.
OwnerChoice LeastOwners(const AxisRoles& roles) {
  if (!MayHaveOwners(roles)) return {};
  const int64_t terms = roles.terms(), needers = roles.needers();
  const bool alone_is_least =
      roles.moved().empty() && terms * needers - roles.helper_count() <= terms + needers - 2;
  return {.owners = alone_is_least ? Owners::kNeeders : Owners::kHolders};
}

}  // namespace dtensor
