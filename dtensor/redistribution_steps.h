// From what each mesh axis does to rounds of communication and their names. For
// redistribution_plan.cc.
#ifndef DTENSOR_REDISTRIBUTION_STEPS_H_
#define DTENSOR_REDISTRIBUTION_STEPS_H_

#include <vector>

#include "dtensor/redistribution_plan.h"
#include "dtensor/transition.h"

namespace dtensor {

// No steps when no element crosses between ranks.
std::vector<RedistributionStep> StepsOf(const Transition& transition);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_STEPS_H_
