// Every operator there is, for tests that walk over all of them.
#ifndef DTENSOR_TESTING_ALL_OPS_H_
#define DTENSOR_TESTING_ALL_OPS_H_

#include "absl/types/span.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

absl::Span<const OpDef* const> AllOps();

}  // namespace dtensor::internal

#endif  // DTENSOR_TESTING_ALL_OPS_H_
