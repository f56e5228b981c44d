// The other choices by which a transition can be carried out, for RedistributionPlan to compare.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_
#define DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_

#include <vector>

#include "dtensor/redistribution/cost_model.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {

// If terms are reduced for several ranks: with each other kind of owners. If links differ: also
// with the gather in several rounds, one for each speed, the slowest first, so that slow links
// carry each element only once to every group of ranks with fast links.
std::vector<SameMeshTransition> OtherTransitions(const SameMeshTransition& transition,
                                                 const CostModel& links);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_
