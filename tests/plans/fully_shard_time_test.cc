// What FullyShard's gathers cost next to the layers' work, by the clock of a simulated rank.
#include <cstdint>
#include <memory>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kLayers = 6, kDim = 384, kTokens = 64;    // tokens of a rank
constexpr double kFlops = 2.0 * kTokens * kDim * kDim;      // of a layer
constexpr double kBytes = kDim * kDim * sizeof(float) / 2;  // that come from the other rank

// A gather takes 1 ms, a layer's product `layer_ms`, and nothing else takes any time.
CostModel Cost(double layer_ms) {
  CostModel cost;
  cost.SetDefault({0, kBytes / 1e-3 / 1e9});
  cost.set_copy_gb_per_second(1e9);
  cost.set_multiply_gf_per_second(kFlops / (layer_ms * 1e-3) / 1e9);
  return cost;
}

// Of one forward pass, in milliseconds.
SimulatedTime Forward(const ParallelPlan& plan, double layer_ms) {
  SimulatedTime time;
  const auto run = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    Sequential model;
    for (int64_t i = 0; i < kLayers; ++i) {
      model.Append(std::make_unique<LinearLayer>(kDim, kDim, 0.05));
    }
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
    const NoGrad no_grad(context);
    const TensorOr x = Full(context, mesh, {Shard(0)}, {2 * kTokens, kDim}, DType::kF32, 0.1);
    const SimulatedTime before = context.simulated_clock()->time();
    DT_RETURN_IF_ERROR(model(x).status());
    time = context.simulated_clock()->time() - before;
    return absl::OkStatus();
  };
  EXPECT_THAT(Simulate(0, 2, run, {.cost = Cost(layer_ms)}), IsOk());
  return {time.compute_seconds * 1e3, time.communication_seconds * 1e3, time.exposed_seconds * 1e3};
}

ParallelPlan EachLayer() {
  return ParallelPlan({{"{0,1,2,3,4,5}", FullyShard("dp")}, {"", FullyShard("dp")}});
}

// Each is begun while the layer before it works: only the first has nothing to hide behind.
TEST(FullyShardTime, GathersHideBehindTheLayerBefore) {
  const SimulatedTime time = Forward(EachLayer(), /*layer_ms=*/2);
  EXPECT_NEAR(time.compute_seconds, 2 * kLayers, 0.01);
  EXPECT_NEAR(time.communication_seconds, kLayers, 0.01);
  EXPECT_NEAR(time.exposed_seconds, 1, 0.01);
}

TEST(FullyShardTime, WhatALayerDoesNotHideIsExposed) {
  const SimulatedTime time = Forward(EachLayer(), /*layer_ms=*/0.25);
  EXPECT_NEAR(time.compute_seconds, 0.25 * kLayers, 0.01);
  EXPECT_NEAR(time.exposed_seconds, 1 + 0.75 * (kLayers - 1), 0.01);
}

TEST(FullyShardTime, OneGatherOfAllIsExposedWhole) {
  const SimulatedTime time = Forward(ParallelPlan({{"", FullyShard("dp")}}), /*layer_ms=*/2);
  EXPECT_NEAR(time.communication_seconds, kLayers, 0.01);
  EXPECT_NEAR(time.exposed_seconds, kLayers, 0.01);
}

}  // namespace
}  // namespace dtensor
