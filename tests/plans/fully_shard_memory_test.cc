// Counts what a rank holds and moves for a stack of layers under FullyShard.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Weights are large beside activations.
constexpr int64_t kLayers = 6, kDim = 384;
constexpr int64_t kWeight = kDim * kDim * sizeof(float), kAll = kLayers * kWeight;

struct Counted {
  int64_t parameters = 0, saved = 0, forward_peak = 0, backward_peak = 0, gradients = 0, states = 0;
  CommunicatorTraffic gathers, reductions;
  int64_t bytes = 0;  // of all collectives of a micro-batch
};

struct Layers {
  bool frozen = false;  // weights are not trained, and small biases are, as with adapters
  bool pairs = false;   // modules of two layers each
};

std::unique_ptr<Sequential> Stack(const Layers& layers) {
  auto stack = std::make_unique<Sequential>();
  Sequential* pair = nullptr;
  for (int64_t i = 0; i < kLayers; ++i) {
    auto layer = std::make_unique<LinearLayer>(kDim, kDim, 0.05, LinearLayer::Units(),
                                               LinearLayer::BiasIf(layers.frozen));
    layer->weight()->trained = !layers.frozen;
    if (layers.pairs && i % 2 == 0) pair = stack->Append(std::make_unique<Sequential>());
    (layers.pairs ? pair : stack.get())->Append(std::move(layer));
  }
  return stack;
}

absl::Status Count(Context& context, const ParallelPlan& plan, int micro_batches,
                   const std::vector<std::string>& recompute, Counted& out,
                   const Layers& layers = {}) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse("dp=" + std::to_string(context.world_size())));
  Device& device = context.device();
  const auto live = [&] { return device.memory().live_bytes; };
  Counted mine;
  const int64_t empty = live();
  const auto model = Stack(layers);
  DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {.seed = 1, .recompute = recompute}));
  mine.parameters = live() - empty;
  const TensorOr x =
      Full(context, mesh, {Replicate()}, {context.world_size(), kDim}, DType::kF32, 0.1);
  for (int micro = 0; micro < micro_batches; ++micro) {
    const int64_t before = live();
    device.ResetPeak();
    context.communicator().ResetTraffic();
    TensorOr loss = Mean((*model)(x), {0, 1});
    DT_RETURN_IF_ERROR(loss.status());
    mine.saved = live() - before;
    mine.forward_peak = device.memory().peak_bytes - empty;
    device.ResetPeak();
    DT_RETURN_IF_ERROR(Backward(loss));
    loss = DistributedTensor();
    mine.backward_peak = device.memory().peak_bytes - empty;
    mine.gradients = live() - empty - mine.parameters;
    mine.bytes = 0;
    mine.gathers = mine.reductions = {};
    for (const auto& [key, traffic] : context.communicator().traffic()) {
      mine.bytes += traffic.bytes;
      if (key.second == CollectiveKind::kAllGather) mine.gathers = traffic;
      if (key.second == CollectiveKind::kReduceScatter) mine.reductions = traffic;
    }
  }
  const int64_t before = live();
  context.communicator().ResetTraffic();
  DT_RETURN_IF_ERROR(ReduceGradients(model->Parameters()));
  EXPECT_TRUE(context.communicator().traffic().empty());  // Backward has reduced them
  DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(model->Parameters(), {}));
  DT_RETURN_IF_ERROR(optimizer.Step(0.1));
  mine.states = live() - before;
  if (context.rank() == 0) out = mine;
  return absl::OkStatus();
}

Counted CountOn(int ranks, const ParallelPlan& plan, int micro_batches = 1,
                const std::vector<std::string>& recompute = {}, const Layers& layers = {}) {
  Counted counted;
  EXPECT_THAT(RunRanks(ranks,
                       [&](Context& context) {
                         return Count(context, plan, micro_batches, recompute, counted, layers);
                       }),
              IsOk());
  return counted;
}

ParallelPlan EachLayer(int64_t level = 3) {
  return ParallelPlan({{"{0,1,2,3,4,5}", FullyShard("dp", level)}, {"", FullyShard("dp", level)}});
}

void ExpectWithin1Percent(int64_t counted, int64_t expected, const std::string& what) {
  EXPECT_GE(counted, expected) << what;
  EXPECT_LE(counted, expected + expected / 100) << what;
}

TEST(FullyShardMemory, ARankHoldsItsShardsAndTwoLayersAndOneGradient) {
  for (int ranks : {2, 3, 4}) {
    const std::string what = std::to_string(ranks) + " ranks";
    const Counted counted = CountOn(ranks, EachLayer());
    EXPECT_EQ(counted.parameters, kAll / ranks) << what;
    EXPECT_LT(counted.saved, kWeight / 20) << what;  // activations: no weights
    ExpectWithin1Percent(counted.forward_peak, kAll / ranks + 2 * kWeight, what);
    // Most in the last layer but one, when all after it have their gradients.
    const int64_t reduced = (kLayers - 2) * kWeight / ranks;
    ExpectWithin1Percent(counted.backward_peak, kAll / ranks + reduced + 3 * kWeight, what);
    ExpectWithin1Percent(counted.gradients, kAll / ranks, what);
    ExpectWithin1Percent(counted.states, 2 * kAll / ranks, what);
  }
}

TEST(FullyShardMemory, AMicroBatchMovesThreeTimesTheParameters) {
  for (int ranks : {2, 3, 4}) {
    for (int micro_batches : {1, 2}) {
      const Counted counted = CountOn(ranks, EachLayer(), micro_batches);
      const int64_t moved = kAll * (ranks - 1) / ranks;
      EXPECT_EQ(counted.gathers.bytes, 2 * moved) << ranks;
      EXPECT_EQ(counted.reductions.bytes, moved) << ranks;
      EXPECT_EQ(counted.bytes, 3 * moved) << ranks;
      EXPECT_EQ(counted.gathers.calls, 2 * kLayers) << ranks;
      EXPECT_EQ(counted.reductions.calls, kLayers) << ranks;
    }
  }
}

// What is gathered for the run again serves the gradients of that run: a layer that is recomputed
// is gathered as often, one ahead of it too, and as little of it is held.
TEST(FullyShardMemory, ALayerThatIsRecomputedMovesNoMore) {
  for (int ranks : {2, 3, 4}) {
    for (int micro_batches : {1, 2}) {
      const std::string what = std::to_string(ranks) + " ranks";
      const Counted counted = CountOn(ranks, EachLayer(), micro_batches, {"{0,1,2,3,4,5}"});
      const int64_t moved = kAll * (ranks - 1) / ranks;
      EXPECT_EQ(counted.gathers.bytes, 2 * moved) << what;
      EXPECT_EQ(counted.reductions.bytes, moved) << what;
      EXPECT_EQ(counted.bytes, 3 * moved) << what;
      EXPECT_EQ(counted.gathers.calls, 2 * kLayers) << what;
      EXPECT_EQ(counted.reductions.calls, kLayers) << what;
      if (micro_batches == 2) continue;
      ExpectWithin1Percent(counted.forward_peak, kAll / ranks + 2 * kWeight, what);
      const int64_t reduced = (kLayers - 2) * kWeight / ranks;
      ExpectWithin1Percent(counted.backward_peak, kAll / ranks + reduced + 3 * kWeight, what);
    }
  }
}

// Nor does a module of two layers that is recomputed. Both are held until their gradients are
// there, and the one that is gathered ahead.
TEST(FullyShardMemory, TwoLayersThatAreRecomputedTogetherMoveNoMore) {
  const ParallelPlan plan({{"*.*", FullyShard("dp")}, {"", FullyShard("dp")}});
  for (int ranks : {2, 3, 4}) {
    const std::string what = std::to_string(ranks) + " ranks";
    const Counted counted = CountOn(ranks, plan, 1, {"*"}, {.pairs = true});
    const int64_t moved = kAll * (ranks - 1) / ranks;
    EXPECT_EQ(counted.bytes, 3 * moved) << what;
    EXPECT_EQ(counted.gathers.calls, 2 * kLayers) << what;
    ExpectWithin1Percent(counted.forward_peak, kAll / ranks + 2 * kWeight, what);
    const int64_t reduced = (kLayers - 4) * kWeight / ranks;  // of the modules behind
    ExpectWithin1Percent(counted.backward_peak, kAll / ranks + reduced + 4 * kWeight, what);
  }
}

// Nor do weights that are not trained: what was gathered for the run again serves the gradients of
// what its operators read.
TEST(FullyShardMemory, AFrozenLayerThatIsRecomputedMovesNoMore) {
  for (int ranks : {2, 3}) {
    const std::string what = std::to_string(ranks) + " ranks";
    const Counted plain = CountOn(ranks, EachLayer(), 1, {}, {.frozen = true});
    const Counted counted = CountOn(ranks, EachLayer(), 1, {"{0,1,2,3,4,5}"}, {.frozen = true});
    const int64_t moved = kAll * (ranks - 1) / ranks;
    ExpectWithin1Percent(counted.gathers.bytes, 2 * moved, what);
    EXPECT_EQ(counted.gathers.calls, 2 * kLayers) << what;
    EXPECT_LE(counted.gathers.bytes, plain.gathers.bytes + moved / kLayers + moved / 100) << what;
    ExpectWithin1Percent(counted.backward_peak, kAll / ranks + 2 * kWeight, what);
  }
}

TEST(FullyShardMemory, ASimulatedRankPredictsIt) {
  const Counted run = CountOn(4, EachLayer(), 2);
  Counted predicted;
  EXPECT_THAT(
      Simulate(0, 4,
               [&](Context& context) { return Count(context, EachLayer(), 2, {}, predicted); }),
      IsOk());
  EXPECT_EQ(predicted.gathers, run.gathers);
  EXPECT_EQ(predicted.reductions, run.reductions);
  EXPECT_EQ(predicted.parameters, run.parameters);
  EXPECT_EQ(predicted.gradients, run.gradients);
  EXPECT_EQ(predicted.forward_peak, run.forward_peak);
  EXPECT_EQ(predicted.backward_peak, run.backward_peak);
}

TEST(FullyShardMemory, TheModelAsOneUnitIsGatheredWhole) {
  const Counted counted = CountOn(2, ParallelPlan({{"", FullyShard("dp")}}));
  EXPECT_EQ(counted.parameters, kAll / 2);
  EXPECT_LT(counted.saved, kWeight / 20);
  EXPECT_GE(counted.forward_peak, kAll / 2 + kAll);
  EXPECT_EQ(counted.gathers.calls, 2);
  EXPECT_EQ(counted.reductions.calls, 1);
  EXPECT_EQ(counted.bytes, 3 * kAll / 2);
}

TEST(FullyShardMemory, TheSecondLevelGathersOnceAndKeepsGradientsSharded) {
  const Counted counted = CountOn(2, EachLayer(2), 2);
  EXPECT_EQ(counted.parameters, kAll / 2);
  EXPECT_EQ(counted.gathers.calls, 0);  // by the second micro-batch
  EXPECT_EQ(counted.reductions.bytes, kAll / 2);
  ExpectWithin1Percent(counted.gradients, kAll + kAll / 2, "parameters whole, gradients sharded");
  ExpectWithin1Percent(counted.states, kAll, "2 ranks");
}

}  // namespace
}  // namespace dtensor
