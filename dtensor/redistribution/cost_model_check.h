// Whether a CostModel says what its text could say: setters take any number.
#ifndef DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_
#define DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_

#include "absl/status/status.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Errors: kInvalidArgument, with the line that is none, for a rate that is not above 0, or a
// negative latency, and for both where they are infinite or NaN.
absl::Status CheckCosts(const CostModel& costs);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_
