// FreeSaved: measures the memory that a tape keeps for Backward, by part of the program.
#ifndef DTENSOR_TENSOR_SAVED_MEMORY_H_
#define DTENSOR_TENSOR_SAVED_MEMORY_H_

#include <cstdint>
#include <functional>

#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Frees what the operators that led to `root` have saved, beginning with the operator recorded
// last. For each operator whose release returned memory to the device, calls fn(scope, bytes) with
// the scope in which it was recorded (work_scope.h). Memory that several operators saved is counted
// once, for the oldest; memory that a tensor of the caller still uses is not counted. Afterwards
// the operators count as walked: a Backward refuses them. No communication. Requires: `root` is
// defined.
void FreeSaved(const DistributedTensor& root,
               const std::function<void(const void* scope, int64_t bytes)>& fn);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_SAVED_MEMORY_H_
