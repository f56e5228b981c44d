// For tests that show an operator at work: two ranks, and tensors on them by layout and values.
#ifndef DTENSOR_TESTING_TWO_RANKS_H_
#define DTENSOR_TESTING_TWO_RANKS_H_

#include <functional>
#include <string>
#include <vector>

#include "dtensor/layout/layout.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/testing/op_cases.h"
#include "gtest/gtest.h"

namespace dtensor {

// On a mesh of one axis "tp".
inline void OnTwoRanks(const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) { return fn(context, mesh); }));
}

// A leaf of f32.
inline absl::StatusOr<DistributedTensor> Make(Context& context, const DeviceMesh& mesh,
                                              const char* layout, Dims shape,
                                              std::vector<double> values) {
  DT_ASSIGN_OR_RETURN(const Layout parsed, Layout::Parse(mesh, layout));
  DT_ASSIGN_OR_RETURN(auto tensor, Place(context, parsed, shape, DType::kF32, values, /*seed=*/5));
  DT_RETURN_IF_ERROR(tensor.set_requires_grad(true));
  return tensor;
}

inline std::string Text(const DistributedTensor& tensor) { return tensor.layout().ToString(); }

}  // namespace dtensor

#endif  // DTENSOR_TESTING_TWO_RANKS_H_
