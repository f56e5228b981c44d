// WaitFor: a tensor's values are there, or the reason why they are not. What reads tensor.local()
// alone cannot know: what failed to come has any values.
#ifndef DTENSOR_TENSOR_WAIT_FOR_H_
#define DTENSOR_TENSOR_WAIT_FOR_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Waits for an asynchronous redistribution, and makes what is made by its first use (`async` and
// `on_use` of RedistributeOptions): that is a use, which all ranks make at the same place of the
// program. Else it communicates nothing. Launches of the device may be on their way. Errors:
// kInvalidArgument for an undefined tensor; kFailedPrecondition for one that was redistributed in
// place; failures.
absl::Status WaitFor(const DistributedTensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_WAIT_FOR_H_
