// From what each mesh axis does to rounds of communication and their names. For
// redistribution_plan.cc.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_STEPS_H_
#define DTENSOR_REDISTRIBUTION_PLAN_STEPS_H_

#include <vector>

#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/redistribution/same_mesh_transition.h"

namespace dtensor {

// No steps when no element crosses between ranks.
std::vector<RedistributionStep> StepsOf(const SameMeshTransition& transition);

// Whether the ranks of each group receive alike in this step of StepsOf(transition), of elements of
// one type (RedistributionStep::native). Says no where telling would take more than the layouts.
bool MayBeNative(const SameMeshTransition& transition, const RedistributionStep& step);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_STEPS_H_
