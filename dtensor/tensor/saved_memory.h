// What a tape keeps in memory for Backward, and for which part of the program.
#ifndef DTENSOR_TENSOR_SAVED_MEMORY_H_
#define DTENSOR_TENSOR_SAVED_MEMORY_H_

#include <cstdint>
#include <functional>

#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Frees what the operators that led to `root` have saved, the youngest first, and calls
// fn(scope, bytes) for each whose memory the device has back then, with the scope in which it was
// recorded (work_scope.h). Memory that several of them saved is counted once, for the oldest; what
// a tensor of the caller's still has, not at all. They count as walked: a Backward refuses them. No
// communication. Requires: `root` is defined.
void FreeSaved(const DistributedTensor& root,
               const std::function<void(const void* scope, int64_t bytes)>& fn);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_SAVED_MEMORY_H_
