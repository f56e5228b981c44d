// Derives the rounds of communication, and their names, from the roles of mesh axes. Only for
// redistribution_plan.cc.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_
#define DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_

#include <vector>

#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {

// The rounds of a transition; none if no element crosses between ranks.
std::vector<RedistributionRound> RoundsOf(const SameMeshTransition& transition);

// Whether this round of RoundsOf(transition) may be native (RedistributionRound::native), if it
// moves elements of one type. Returns false if the layouts alone do not tell.
bool MayBeNative(const SameMeshTransition& transition, const RedistributionRound& round);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_
