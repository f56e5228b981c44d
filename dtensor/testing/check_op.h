// CheckOp: whether an operator does what the library's own do, for whoever adds one.
//
//   const OpCase c{.op = &kSquaredRelu, .operands = {{.shape = {5, 3}}}};
//   EXPECT_EQ(CheckOp(c), absl::OkStatus());
//
// Operands are random numbers of about 1. Choose small shapes: odd sizes, sizes of 1, fewer
// elements than ranks. docs/adding-an-operator.md tells the whole story.
#ifndef DTENSOR_TESTING_CHECK_OP_H_
#define DTENSOR_TESTING_CHECK_OP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/testing/op_cases.h"

namespace dtensor {

struct CheckOpOptions {
  std::vector<std::string> meshes = {"a=2", "a=3", "a=2,b=2"};
  std::vector<DType> dtypes = {DType::kF64, DType::kF32};
  int draws = 30;  // of layouts, on each mesh
  uint64_t seed = 1;
  Device::Kind device = Device::Kind::kCpu;
};

// All of the below; the last once more on the deferred device, on which nothing is ready when a
// call returns. Each returns kInternal with what it found wrong, or what the operator returned.
absl::Status CheckOp(const OpCase& c, const CheckOpOptions& options = {});

// Gradients agree with central differences on one rank, in f64. Nothing to do for an operator that
// is not differentiable.
absl::Status CheckGradients(const OpCase& c);
// Gradients that the operator computes by themselves (OpDef::separate_gradients) read no more than
// it says, and have the same bits as together with others. On one rank, in f64.
absl::Status CheckSeparateGradients(const OpCase& c);
// In every assignment of placements that the rule allows (op_assignments.h) nothing moves, results
// and gradients lie where the rule says, and they are those of one rank, also where gradients
// arrive Partial.
absl::Status CheckAssignments(const OpCase& c, const CheckOpOptions& options = {});
// From operands in any layout, on which the rule engine decides what moves, results and gradients
// are those of one rank. In f64.
absl::Status CheckDrawnLayouts(const OpCase& c, const CheckOpOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TESTING_CHECK_OP_H_
