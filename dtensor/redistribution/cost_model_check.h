// CheckCosts: whether a CostModel is valid. Parse() makes only valid ones, but setters take any
// number.
#ifndef DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_
#define DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_

#include "absl/status/status.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Errors: kInvalidArgument, with the line that would be invalid, for a rate that is not above 0, a
// negative latency, or either if it is infinite or NaN.
absl::Status CheckCosts(const CostModel& costs);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_COST_MODEL_CHECK_H_
