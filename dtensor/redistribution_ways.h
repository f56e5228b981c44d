// The other ways in which a transition can be carried out, for RedistributionPlan to choose from.
#ifndef DTENSOR_REDISTRIBUTION_WAYS_H_
#define DTENSOR_REDISTRIBUTION_WAYS_H_

#include <vector>

#include "dtensor/links.h"
#include "dtensor/transition.h"

namespace dtensor {

// Where terms are reduced for several ranks: with each kind of owner. Where links differ: also with
// the gather in stages, one for each speed, the slowest first, so that slow links carry each
// element once to every group of fast ones.
std::vector<Transition> OtherWays(const Transition& transition, const LinkTable& links);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_WAYS_H_
