// Counts what a decoder block communicates and keeps for Backward under each choice: sequence
// parallelism, gathered activations that are kept, recomputation. All give the same bits.
#include <map>
#include <string>
#include <vector>

#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kBatch = 2, kSequence = 16, kDim = 64;

struct Choice {
  int ranks = 2;
  bool sequence_parallel = true;
  bool keep_gathered = false;
  std::vector<std::string> recompute = {};
  bool keep_collectives = false;  // by what is recomputed
  bool retain = false;            // Backward twice over one tape
};

struct Outcome {
  TrafficTable forward, backward, reduce;  // of rank 0
  int64_t saved = 0;                       // bytes that the tape keeps
  std::map<std::string, std::vector<float>> values;
};

TrafficTable TakeTraffic(Context& context) {
  TrafficTable table = context.communicator().traffic();
  context.communicator().ResetTraffic();
  return table;
}

ParallelPlan PlanOf(const Choice& choice) {
  const Placement residual = choice.sequence_parallel ? Shard(1) : Replicate();
  ParallelPlan plan({{"self_attn.{q,k,v}_proj", Colwise("tp")},
                     {"self_attn.o_proj", Rowwise("tp", residual)},
                     {"mlp.{gate,up}_proj", Colwise("tp")},
                     {"mlp.down_proj", Rowwise("tp", residual)}});
  if (choice.sequence_parallel) plan.Add({"*_layernorm", SequenceParallel("tp")});
  return plan;
}

absl::Status RunBlock(Context& context, const Choice& choice, bool read, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse("tp=" + std::to_string(choice.ranks)));
  DecoderBlock block({.dim = kDim, .heads = 8, .kv_heads = 4, .init_stddev = 0.3});
  const ParallelPlanOptions options = {.keep_gathered = choice.keep_gathered,
                                       .recompute = choice.recompute,
                                       .recompute_keeps_collectives = choice.keep_collectives};
  DT_RETURN_IF_ERROR(PlanOf(choice).Apply(block, context, mesh, options));
  const Placement residual = choice.sequence_parallel ? Shard(1) : Replicate();
  DT_ASSIGN_OR_RETURN(DistributedTensor x, RandomNormal(context, mesh, {residual},
                                                        {kBatch, kSequence, kDim}, {.seed = 9}));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  context.communicator().ResetTraffic();
  const int64_t before = context.device().memory().live_bytes;
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, block(x));
  Outcome mine;
  mine.saved = context.device().memory().live_bytes - before;
  mine.forward = TakeTraffic(context);
  const TensorOr loss = Sum(Mul(y, y), {0, 1, 2});
  DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = choice.retain}));
  mine.backward = TakeTraffic(context);
  if (choice.retain) {
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_EQ(TakeTraffic(context), mine.backward);
  }
  if (choice.sequence_parallel && choice.ranks > 1) {
    // Each rank's norms saw a part of the sequence; a gradient that claimed to be whole would be
    // wrong.
    block.VisitParameters([](const std::string& path, Parameter& parameter) {
      if (path.find("layernorm") == std::string::npos) return;
      EXPECT_TRUE(parameter.tensor.grad().layout().is_partial()) << path;
    });
  }
  DT_RETURN_IF_ERROR(ReduceGradients(block.Parameters()));
  mine.reduce = TakeTraffic(context);
  if (read) {
    DT_ASSIGN_OR_RETURN(mine.values["y"], ToGlobal<float>(y.Detach()));
    DT_ASSIGN_OR_RETURN(mine.values["x"], ToGlobal<float>(x.grad()));
    absl::Status status;
    block.VisitParameters([&](const std::string& path, Parameter& parameter) {
      auto values = ToGlobal<float>(parameter.tensor.grad());
      status.Update(values.status());
      if (values.ok()) mine.values[path] = *std::move(values);
    });
    DT_RETURN_IF_ERROR(status);
  }
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

// On ranks; what a simulated rank counts is the same.
Outcome Count(const Choice& choice) {
  Outcome outcome, predicted;
  EXPECT_THAT(RunRanks(choice.ranks,
                       [&](Context& context) { return RunBlock(context, choice, true, outcome); }),
              IsOk());
  EXPECT_THAT(
      Simulate(0, choice.ranks,
               [&](Context& context) { return RunBlock(context, choice, false, predicted); }),
      IsOk());
  EXPECT_EQ(predicted.forward, outcome.forward);
  EXPECT_EQ(predicted.backward, outcome.backward);
  EXPECT_EQ(predicted.reduce, outcome.reduce);
  EXPECT_EQ(predicted.saved, outcome.saved);
  return outcome;
}

using Calls = std::map<CollectiveKind, int64_t>;

// Of tp, which is all there is.
Calls CallsOf(const TrafficTable& table) {
  Calls calls;
  for (const auto& [key, traffic] : table) {
    EXPECT_EQ(key.first, "tp");
    calls[key.second] = traffic.calls;
  }
  return calls;
}

Calls GathersAndScatters(int64_t gathers, int64_t scatters) {
  return {{CollectiveKind::kAllGather, gathers}, {CollectiveKind::kReduceScatter, scatters}};
}

TEST(DecoderBlock, SequenceParallelismCostsTwoGathersAndTwoScatters) {
  for (const bool retain : {false, true}) {
    const Outcome block = Count({.keep_gathered = true, .retain = retain});
    EXPECT_EQ(CallsOf(block.forward), GathersAndScatters(2, 2));
    EXPECT_EQ(CallsOf(block.backward), GathersAndScatters(2, 2));
    // Both norms' weights in one.
    EXPECT_EQ(CallsOf(block.reduce), (Calls{{CollectiveKind::kAllReduce, 1}}));
  }
}

TEST(DecoderBlock, WhatIsNotKeptGatheredIsGatheredAgain) {
  for (const bool retain : {false, true}) {
    const Outcome block = Count({.retain = retain});
    EXPECT_EQ(CallsOf(block.forward), GathersAndScatters(2, 2));
    EXPECT_EQ(CallsOf(block.backward), GathersAndScatters(4, 2));
    EXPECT_EQ(CallsOf(block.reduce), (Calls{{CollectiveKind::kAllReduce, 1}}));
    EXPECT_EQ(block.values, Count({.keep_gathered = true, .retain = retain}).values);
  }
}

TEST(DecoderBlock, SavedActivationsFallAsTheRanks) {
  const int64_t alone = Count({.ranks = 1}).saved;
  for (int ranks : {2, 4}) {
    const int64_t saved = Count({.ranks = ranks}).saved;
    EXPECT_GE(saved * ranks, alone) << ranks;
    EXPECT_LE(saved * ranks, alone + alone / 100) << ranks;
    // Two activations whole in place of a part of each.
    const int64_t whole = kBatch * kSequence * kDim * sizeof(float);
    const int64_t kept = Count({.ranks = ranks, .keep_gathered = true}).saved;
    EXPECT_EQ(kept, saved + 2 * (whole - whole / ranks)) << ranks;
  }
}

TEST(DecoderBlock, WhatIsRecomputedCommunicatesAgainUnlessItKeptThat) {
  const Outcome all = Count({});
  for (const bool retain : {false, true}) {
    const Outcome again = Count({.recompute = {""}, .retain = retain});
    EXPECT_EQ(CallsOf(again.backward), GathersAndScatters(2 + 4, 2 + 2));
    const Outcome kept = Count({.recompute = {""}, .keep_collectives = true, .retain = retain});
    EXPECT_EQ(CallsOf(kept.backward), GathersAndScatters(2, 2));
    EXPECT_EQ(kept.values, again.values);
    EXPECT_TRUE(retain || again.values == all.values);
    // Two activations whole, and two parts.
    const int64_t whole = kBatch * kSequence * kDim * sizeof(float);
    EXPECT_LE(again.saved, whole / 2);
    EXPECT_EQ(kept.saved, again.saved + 2 * (whole + whole / 2));
  }
}

TEST(DecoderBlock, PartsOfItAreRecomputed) {
  const Outcome all = Count({});
  for (const bool keep : {false, true}) {
    const Outcome some =
        Count({.recompute = {"self_attn", "mlp.down_proj"}, .keep_collectives = keep});
    EXPECT_EQ(some.values, all.values);
    // Kept: an activation whole, and two parts.
    const int64_t whole = kBatch * kSequence * kDim * sizeof(float);
    EXPECT_LT(some.saved, all.saved + (keep ? 2 * whole : 0));
  }
}

TEST(DecoderBlock, TensorParallelismCostsTwoAllReduces) {
  for (const bool keep : {false, true}) {  // nothing is gathered
    const Outcome block = Count({.sequence_parallel = false, .keep_gathered = keep});
    EXPECT_EQ(CallsOf(block.forward), (Calls{{CollectiveKind::kAllReduce, 2}}));
    EXPECT_EQ(CallsOf(block.backward), (Calls{{CollectiveKind::kAllReduce, 2}}));
    EXPECT_TRUE(block.reduce.empty());
  }
}

}  // namespace
}  // namespace dtensor
