// From what each mesh axis does to rounds of communication and their names. For
// redistribution_plan.cc.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_
#define DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_

#include <vector>

#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {

// No rounds when no element crosses between ranks.
std::vector<RedistributionRound> RoundsOf(const SameMeshTransition& transition);

// Whether ranks of each group receive alike in this round of RoundsOf(transition), of elements of
// one type (RedistributionRound::native). Says no where telling would take more than the layouts.
bool MayBeNative(const SameMeshTransition& transition, const RedistributionRound& round);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_ROUNDS_H_
