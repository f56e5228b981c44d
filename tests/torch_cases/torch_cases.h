// What the library calls for each case that make_cases.py stored, attributes included.
#ifndef DTENSOR_TESTS_TORCH_CASES_TORCH_CASES_H_
#define DTENSOR_TESTS_TORCH_CASES_TORCH_CASES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

using TorchCall =
    std::function<absl::StatusOr<std::vector<DistributedTensor>>(absl::Span<const TensorOr>)>;

// One call, and the stored cases whose operands it takes.
struct TorchCases {
  std::vector<std::string> names;
  const OpDef* op;  // which these are cases of
  TorchCall call;
};

std::vector<TorchCases> AllTorchCases();

}  // namespace dtensor

#endif  // DTENSOR_TESTS_TORCH_CASES_TORCH_CASES_H_
