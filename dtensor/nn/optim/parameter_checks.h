// What optimizers and clipping require of parameters and their gradients. For nn/ only.
#ifndef DTENSOR_NN_OPTIM_PARAMETER_CHECKS_H_
#define DTENSOR_NN_OPTIM_PARAMETER_CHECKS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

// Checks that each is defined, of the first one's Context, and listed once in all groups. Errors:
// kInvalidArgument, naming `who`, the parameters, and their groups if there are several.
absl::Status CheckDistinct(absl::string_view who,
                           absl::Span<const absl::Span<const DistributedTensor>> groups);
// Checks that its gradient, if there is one, has the parameter's layout. Errors:
// kFailedPrecondition.
absl::Status CheckReduced(absl::string_view who, const DistributedTensor& parameter);

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_PARAMETER_CHECKS_H_
