// Functions and results of LocalMap, for tests.
#ifndef DTENSOR_TENSOR_TESTING_LOCAL_FUNCTIONS_H_
#define DTENSOR_TENSOR_TESTING_LOCAL_FUNCTIONS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/local_map.h"

namespace dtensor {

using Tensors = std::vector<DistributedTensor>;
using Shards = absl::Span<const DistributedTensor>;

inline LocalMapResult Like(const DistributedTensor& tensor) {
  return {tensor.layout(), tensor.shape()};
}

inline LocalFunction OneResult(std::function<TensorOr(Shards)> fn) {
  return [fn = std::move(fn)](Shards shards) -> TensorsOr {
    DT_ASSIGN_OR_RETURN(DistributedTensor result, fn(shards));
    return Tensors{std::move(result)};
  };
}

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TESTING_LOCAL_FUNCTIONS_H_
