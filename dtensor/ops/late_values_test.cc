// What is made later, where it is not used as a block of a model uses it: looked at on one rank,
// empty on another, left behind by a world that has failed (docs/overlap.md).
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/testing/suite_device.h"
#include "dtensor/tensor/work_scope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Body = std::function<absl::Status(Context&, const DeviceMesh&)>;

// On ranks that overlap all there is. `device` is where what was never written shows, if need be.
absl::Status OnMesh(absl::string_view text, const Body& body, int chunks = 2,
                    Device::Kind device = Device::Kind::kCpu) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(text));
  ContextOptions contexts;
  contexts.overlap = {.chunks = chunks, .min_bytes = 0};
  contexts.read_environment = false;
  RunOptions options;
  options.device = SuiteDevice(device);
  return RunRanks(mesh.size(), [&](Context& context) { return body(context, mesh); }, options,
                  contexts);
}

TensorOr Ones(Context& context, const DeviceMesh& mesh, const Placements& placements, Dims shape) {
  return Full(context, mesh, placements, shape, DType::kF32, 1);
}

// --- Shards of nothing: the sum over ranks has a term on each.

TEST(LateValues, ARankWithNothingToSumHasATermOfZeros) {
  for (const int chunks : {0, 2}) {
    DT_EXPECT_OK(OnMesh(
        "tp=2,dp=2",
        [](Context& context, const DeviceMesh& mesh) -> absl::Status {
          DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0), Shard(1)}, {6, 1}));
          DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(0), Shard(1)}, {4, 1}));
          DT_ASSIGN_OR_RETURN(const auto gathered,
                              x.Redistribute({Replicate(), Shard(1)}, {.on_use = true}));
          DT_ASSIGN_OR_RETURN(const auto y, Linear(gathered, w));
          DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
          EXPECT_THAT(got, Each(1));
          return absl::OkStatus();
        },
        chunks, Device::Kind::kDeferred))
        << chunks;
  }
}

TEST(LateValues, ARankWithNothingToSumHasAGradientOfZeros) {
  for (const int chunks : {0, 2}) {
    DT_EXPECT_OK(OnMesh(
        "tp=2,dp=2",
        [](Context& context, const DeviceMesh& mesh) -> absl::Status {
          DT_ASSIGN_OR_RETURN(auto leaf, Ones(context, mesh, {Replicate(), Replicate()}, {6, 4}));
          DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
          DT_ASSIGN_OR_RETURN(const auto x, Scale(leaf, 1));
          DT_ASSIGN_OR_RETURN(auto w, Ones(context, mesh, {Replicate(), Shard(0)}, {1, 4}));
          DT_RETURN_IF_ERROR(w.set_requires_grad(true));
          DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w));
          DT_ASSIGN_OR_RETURN(const auto z, y.Redistribute({Shard(0), Shard(1)}));
          DT_RETURN_IF_ERROR(Backward(Sum(Mul(z, z), {0, 1})));
          DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(leaf.grad()));
          EXPECT_THAT(got, Each(8));
          return absl::OkStatus();
        },
        chunks, Device::Kind::kDeferred))
        << chunks;
  }
}

}  // namespace
}  // namespace dtensor
