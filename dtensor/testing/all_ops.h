// Every operator there is, for suites that walk over all of them.
#ifndef DTENSOR_TESTING_ALL_OPS_H_
#define DTENSOR_TESTING_ALL_OPS_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

std::vector<const OpDef*> AllOps();

// The index-th of this name: a Cast from or to integers is another operator than one of floats,
// after that. Requires: there are as many.
const OpDef& OpNamed(absl::string_view name, size_t index = 0);

}  // namespace dtensor::internal

#endif  // DTENSOR_TESTING_ALL_OPS_H_
