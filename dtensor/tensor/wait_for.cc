#include "dtensor/tensor/wait_for.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

absl::Status WaitFor(const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"WaitFor: the tensor is undefined"});
  return Settle(*tensor.impl());
}

}  // namespace dtensor
