// The other choices with which a transition can be carried out, for RedistributionPlan to compare.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_
#define DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_

#include <vector>

#include "dtensor/redistribution/cost_model.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {

// Where terms are reduced for several ranks: with each kind of owner. Where links differ: also with
// the gather in rounds, one for each speed, the slowest first, so that slow links carry each
// element once to every group of fast ones.
std::vector<SameMeshTransition> OtherTransitions(const SameMeshTransition& transition,
                                                 const CostModel& links);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_ALTERNATIVES_H_
