// WaitFor: waits for a tensor's values, or returns why they did not arrive. tensor.local() also
// waits, but cannot report an error: after one its values are unspecified.
#ifndef DTENSOR_TENSOR_WAIT_FOR_H_
#define DTENSOR_TENSOR_WAIT_FOR_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Waits for an asynchronous redistribution (RedistributeOptions::async), and makes values that were
// put off until their first use (on_use). It counts as a use, so all ranks must call it at the same
// place of the program. For other tensors it communicates nothing. Kernels launched on the device
// may still be running afterwards. Errors: kInvalidArgument for an undefined tensor;
// kFailedPrecondition for one that was redistributed in place; failures.
absl::Status WaitFor(const DistributedTensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_WAIT_FOR_H_
