// Tensors that want gradients, and their gradients, for tests.
#ifndef DTENSOR_TENSOR_TESTING_LEAF_H_
#define DTENSOR_TENSOR_TESTING_LEAF_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gtest/gtest.h"

namespace dtensor {

// A leaf of normal numbers.
inline TensorOr Leaf(Context& context, const Layout& layout, const Dims& shape, uint64_t seed,
                     DType dtype = DType::kF64) {
  DT_ASSIGN_OR_RETURN(auto made,
                      RandomNormal(context, layout, shape, {.seed = seed, .dtype = dtype}));
  DT_RETURN_IF_ERROR(made.set_requires_grad(true));
  return made;
}
inline TensorOr Leaf(Context& context, const DeviceMesh& mesh,
                     const std::vector<Placement>& placements, const Dims& shape, uint64_t seed,
                     DType dtype = DType::kF64) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return Leaf(context, layout, shape, seed, dtype);
}

// All elements of a leaf's gradient, after ReduceGradients, which brings it to the leaf's layout.
inline absl::StatusOr<std::vector<double>> GradientOf(const DistributedTensor& leaf) {
  if (!leaf.grad().defined()) return absl::NotFoundError("the leaf has no gradient");
  EXPECT_EQ(leaf.grad().mesh(), leaf.mesh());
  DT_RETURN_IF_ERROR(ReduceGradients({leaf}));
  EXPECT_EQ(leaf.grad().layout(), leaf.layout());
  return ToGlobal<double>(leaf.grad());
}

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TESTING_LEAF_H_
