// What a decoder block of LLaMA-7B costs a rank under tensor parallelism: collectives, bytes,
// weights and saved activations, beside the formulas of the literature (Korthikanti et al. 2022,
// "Reducing Activation Recomputation in Large Transformer Models"). Counted by Simulate(), of the
// whole model with one more layer.
//
// h features, I MLP features, p ranks, T tokens, 2 bytes per element (bf16). One all-gather or
// reduce-scatter of activations brings a rank U = (p-1)/p T h 2 bytes; an all-reduce is both.
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Whether a block keeps, for its weights' gradients, the activations that it gathered: then it
// saves them whole, and backward gathers the gradients of its two results alone.
constexpr bool kKeepsGathered = false;
constexpr int64_t kBackwardGathers = kKeepsGathered ? 2 : 4;

constexpr int64_t kTokens = 4096, kElement = 2;

TransformerConfig Llama7B() {
  TransformerConfig config;
  config.vocab = 32000;
  config.dim = 4096;
  config.hidden = 11008;
  config.heads = config.kv_heads = 32;
  return config;
}

TransformerConfig Llama70B() {
  TransformerConfig config = Llama7B();
  config.dim = 8192;
  config.hidden = 28672;
  config.heads = 64;
  config.kv_heads = 8;
  return config;
}

// DeepSeek-V3's attention, with the MLP of its first layers.
TransformerConfig DeepSeek() {
  TransformerConfig config = Llama7B();
  config.dim = 7168;
  config.hidden = 18432;
  config.heads = config.kv_heads = 128;
  config.kv_lora_rank = 512;
  config.q_lora_rank = 1536;
  config.head_size = 192;
  config.rotary_dim = 64;
  config.v_head_dim = 128;
  return config;
}

struct Case {
  int64_t ranks = 2;
  bool sequence_parallel = true, recompute = false;
  TransformerConfig config = Llama7B();
};

// Calls and bytes by kind, whichever axes they are over.
using Collectives = std::map<std::string, std::pair<int64_t, int64_t>>;

struct Costs {
  Collectives forward, loss, backward;
  int64_t parameters = 0, saved = 0, logits = 0;  // bytes
};

Collectives Take(Context& context) {
  Collectives all;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    auto& [calls, bytes] = all[std::string(ToString(key.second))];
    calls += traffic.calls;
    bytes += traffic.bytes;
  }
  context.communicator().ResetTraffic();
  return all;
}

absl::StatusOr<Costs> Count(Context& context, const Case& run) {
  const auto live = [&] { return context.device().memory().live_bytes; };
  DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("tp=", run.ranks)));
  Costs costs;
  const int64_t empty = live();
  Transformer model(run.config);
  model.SetDType(DType::kBF16);
  DT_ASSIGN_OR_RETURN(mesh, ApplyTensorParallel(model, context, mesh,
                                                {.sequence_parallel = run.sequence_parallel}));
  costs.parameters = live() - empty;
  model.VisitModules([&](const std::string& path, Module& module) {
    module.set_recomputes(run.recompute && path.rfind("model.layers.", 0) == 0 &&
                          path.find('.', 13) == std::string::npos);
  });
  const TensorOr ids = Full(context, Layout::Replicated(mesh, 2), {1, kTokens}, DType::kI32, 0);
  const int64_t before = live();
  context.communicator().ResetTraffic();
  DT_ASSIGN_OR_RETURN(const DistributedTensor logits, model(ids));
  costs.saved = live() - before;
  costs.logits = logits.local().bytes();
  costs.forward = Take(context);
  const TensorOr loss = CrossEntropy(logits, ids);
  costs.loss = Take(context);
  DT_RETURN_IF_ERROR(Backward(Mean(loss, {0, 1})));
  costs.backward = Take(context);
  return costs;
}

Costs CostsOf(Case run, int64_t layers) {
  run.config.layers = layers;
  Costs costs;
  EXPECT_THAT(Simulate(0, static_cast<int>(run.ranks),
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(costs, Count(context, run));
                         return absl::OkStatus();
                       }),
              IsOk());
  return costs;
}

Collectives Less(Collectives all, const Collectives& less) {
  for (const auto& [kind, traffic] : less) {
    all[kind].first -= traffic.first;
    all[kind].second -= traffic.second;
  }
  std::erase_if(all, [](const auto& one) { return one.second == std::pair<int64_t, int64_t>(); });
  return all;
}

Costs OfOneLayer(const Case& run) {
  const Costs two = CostsOf(run, 2), three = CostsOf(run, 3);
  return {Less(three.forward, two.forward),
          Less(three.loss, two.loss),
          Less(three.backward, two.backward),
          three.parameters - two.parameters,
          three.saved - two.saved,
          0};
}

int64_t Unit(const Case& run) {
  return (run.ranks - 1) * kTokens * run.config.dim * kElement / run.ranks;
}

// Gathers and reduce-scatters of activations.
Collectives Moved(const Case& run, int64_t gathers, int64_t scatters) {
  return {{"all-gather", {gathers, gathers * Unit(run)}},
          {"reduce-scatter", {scatters, scatters * Unit(run)}}};
}

TEST(BlockCosts, SequenceParallelismGathersTwiceAndScattersTwice) {
  for (const int64_t ranks : {2, 4, 8}) {
    const Case run{.ranks = ranks};
    const Costs block = OfOneLayer(run);
    EXPECT_EQ(block.forward, Moved(run, 2, 2)) << ranks;
    EXPECT_EQ(block.backward, Moved(run, kBackwardGathers, 2)) << ranks;
  }
}

TEST(BlockCosts, OnTwoRanksACollectiveOf4096TokensIs17Megabytes) { EXPECT_EQ(Unit({}), 16777216); }

TEST(BlockCosts, WithoutItTwoAllReducesMoveTheSameBytes) {
  for (const int64_t ranks : {2, 4, 8}) {
    const Case run{.ranks = ranks, .sequence_parallel = false};
    const Costs block = OfOneLayer(run);
    for (const Collectives& pass : {block.forward, block.backward}) {
      EXPECT_EQ(pass, (Collectives{{"all-reduce", {2, 4 * Unit(run)}}})) << ranks;
    }
  }
}

// The embedding's sum goes to the sequence, and the head gathers it.
TEST(BlockCosts, OutsideOfTheBlocksAModelMovesOneOfEach) {
  const Case run{.ranks = 4};
  const Costs two = CostsOf(run, 2), block = OfOneLayer(run);
  EXPECT_EQ(Less(Less(two.forward, block.forward), block.forward), Moved(run, 1, 1));
}

// Two query heads or fewer for each of 16 ranks, which share 8 key/value heads in pairs.
TEST(BlockCosts, CopiesOfKeysMoveNoActivations) {
  const Case run{.ranks = 16, .config = Llama70B()};
  EXPECT_EQ(OfOneLayer(run).forward, Moved(run, 2, 2));
}

// 1536 + 512 + 64 features of each token in place of 7168; then the MLP's gather.
TEST(BlockCosts, LatentVectorsAreGatheredInPlaceOfActivations) {
  for (const int64_t ranks : {2, 8}) {
    const Case run{.ranks = ranks, .config = DeepSeek()};
    const int64_t latent = (ranks - 1) * kTokens * (1536 + 512 + 64) * kElement / ranks;
    EXPECT_EQ(OfOneLayer(run).forward, (Collectives{{"all-gather", {3, latent + Unit(run)}},
                                                    {"reduce-scatter", {2, 2 * Unit(run)}}}))
        << ranks;
  }
}

TEST(BlockCosts, WeightsAreHalvedByTwoRanks) {
  EXPECT_EQ(OfOneLayer({.ranks = 1}).parameters, 202383360 * kElement);  // 202.4 million
  // But for the norms' 8192.
  EXPECT_EQ(OfOneLayer({}).parameters, (202375168 / 2 + 8192) * kElement);
  const int64_t whole = CostsOf({.ranks = 1}, 32).parameters, half = CostsOf({}, 32).parameters;
  EXPECT_EQ(whole, 6738415616 * kElement);  // 13.48 GB
  EXPECT_NEAR(static_cast<double>(half), 6.74e9, 0.005e9);
}

void ExpectSaved(const Case& run, double features, const std::string& what) {
  const double expected = features * kTokens * kElement;
  EXPECT_NEAR(static_cast<double>(OfOneLayer(run).saved), expected, expected / 100)
      << what << " on " << run.ranks << " ranks";
}

TEST(BlockCosts, SavedActivationsAreThoseOfTheFormulas) {
  const double h = 4096, hidden = 11008;
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const auto p = static_cast<double>(ranks);
    ExpectSaved({.ranks = ranks, .sequence_parallel = false}, 4 * h + (4 * h + 3 * hidden) / p,
                "tensor parallelism");
    ExpectSaved({.ranks = ranks},
                kKeepsGathered ? 2 * h + (6 * h + 3 * hidden) / p : (8 * h + 3 * hidden) / p,
                "sequence parallelism");
    ExpectSaved({.ranks = ranks, .recompute = true}, h / p, "recomputation");
    ExpectSaved({.ranks = ranks, .sequence_parallel = false, .recompute = true}, h,
                "recomputation without sequence parallelism");
  }
}

TEST(BlockCosts, LogitsStaySplitAndTheLossExchangesThreeNumbersAToken) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const Case run{.ranks = ranks};
    const Costs costs = CostsOf(run, 1);
    EXPECT_EQ(costs.logits, kTokens * run.config.vocab * kElement / ranks) << ranks;
    Collectives expected;
    if (ranks > 1) expected["all-gather"] = {1, 12 * kTokens * (ranks - 1)};
    EXPECT_EQ(costs.loss, expected) << ranks;
  }
}

}  // namespace
}  // namespace dtensor
