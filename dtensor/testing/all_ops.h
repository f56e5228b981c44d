// Every operator there is, for suites that walk over all of them.
#ifndef DTENSOR_TESTING_ALL_OPS_H_
#define DTENSOR_TESTING_ALL_OPS_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

std::vector<const OpDef*> AllOps();

// Requires: there is one of this name.
const OpDef& OpNamed(absl::string_view name);

}  // namespace dtensor::internal

#endif  // DTENSOR_TESTING_ALL_OPS_H_
