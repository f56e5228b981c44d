// A small LLaMA on many meshes: the same loss and the same gradients as on one rank, and exactly
// the collectives that theory requires.
#include "dtensor/nn/transformer.h"

#include <map>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string mesh;
  bool sequence_parallel = false, uneven = false, tied = false;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
  TrafficTable forward, backward, reduce;  // of rank 0
};

constexpr int64_t kBatch = 4, kSequence = 8;

absl::StatusOr<TrafficTable> TakeTraffic(Context& context) {
  TrafficTable table = context.communicator().traffic();
  context.communicator().ResetTraffic();
  return table;
}

absl::Status RunCase(Context& context, const Case& c, DType dtype, bool read, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  TransformerConfig config = SmallTransformer();
  config.tie_embeddings = c.tied;
  Transformer model(config);
  model.SetDType(dtype);
  DT_RETURN_IF_ERROR(PlanFor(mesh, c.sequence_parallel)
                         .Apply(model, context, mesh, {.seed = 3, .allow_uneven = c.uneven}));
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % kSmallVocab));
    targets.push_back(static_cast<int32_t>(i * 5 % kSmallVocab));
  }
  const Layout whole = Layout::Replicated(mesh, 2);
  context.communicator().ResetTraffic();
  const TensorOr logits = model(Distribute<int32_t>(context, whole, {kBatch, kSequence}, ids));
  const TensorOr loss =
      Mean(CrossEntropy(logits, Distribute<int32_t>(context, whole, {kBatch, kSequence}, targets)),
           {0, 1});
  DT_RETURN_IF_ERROR(loss.status());
  Outcome mine;
  DT_ASSIGN_OR_RETURN(mine.forward, TakeTraffic(context));
  DT_RETURN_IF_ERROR(Backward(loss));
  DT_ASSIGN_OR_RETURN(mine.backward, TakeTraffic(context));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_ASSIGN_OR_RETURN(mine.reduce, TakeTraffic(context));
  if (read) {
    DT_ASSIGN_OR_RETURN(mine.loss, Item(loss->Detach()));
    absl::Status status;
    model.VisitParameters([&](const std::string& path, Parameter& parameter) {
      const NoGrad no_grad(context);
      const TensorOr wide = Cast(parameter.tensor.grad(), DType::kF64);
      if (status.ok()) status = wide.status();
      if (!status.ok()) return;
      auto values = ToGlobal<double>(*wide);
      status = values.status();
      if (status.ok()) mine.gradients[path] = *std::move(values);
    });
    DT_RETURN_IF_ERROR(status);
  }
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

Outcome RunOn(const Case& c, DType dtype, Device::Kind device = Device::Kind::kCpu) {
  Outcome outcome;
  const int ranks = DeviceMesh::Parse(c.mesh)->size();
  RunOptions options;
  options.device = device;
  options.seed = 5;
  EXPECT_THAT(
      RunRanks(
          ranks, [&](Context& context) { return RunCase(context, c, dtype, true, outcome); },
          options),
      IsOk())
      << c.mesh;
  return outcome;
}

void ExpectSame(const Outcome& run, const Outcome& reference, double tolerance,
                const std::string& what) {
  EXPECT_NEAR(run.loss, reference.loss, tolerance * reference.loss) << what;
  ASSERT_EQ(run.gradients.size(), reference.gradients.size()) << what;
  for (const auto& [path, gradient] : reference.gradients) {
    EXPECT_LE(RelativeRms(run.gradients.at(path), gradient), tolerance) << what << " " << path;
  }
}

const Case kCases[] = {
    {"dp=2"},
    {"dp=4"},
    {"tp=2"},
    {"tp=2", true},
    {"tp=4"},
    {"tp=4", true},
    {"dp=2,tp=2"},
    {"dp=2,tp=2", true},
    {"tp=2,dp=2", true},
    {"dp=1,tp=2", true},
    {"tp=3", false, true},  // 4 groups of heads on 3 ranks: 2, 2, 0
    {"tp=3", true, true},   // and 8 positions: 3, 3, 2
    {"cp=2"},
    {"cp=3", false, true},  // chunks of 2, 2, 2, 2, 0, 0 positions
    {"dp=2,cp=2"},
    {"cp=2,tp=2"},
    {"cp=2,tp=2", true},
    {"tp=2,cp=2", true},
    {"dp=2,cp=2,tp=2", true},
};

std::string Name(const Case& c) {
  return c.mesh + (c.sequence_parallel ? " with sequence parallelism" : "");
}

TEST(Transformer, EveryMeshGivesTheSameLossAndGradients) {
  const Outcome f64 = RunOn({"tp=1"}, DType::kF64), f32 = RunOn({"tp=1"}, DType::kF32);
  EXPECT_NEAR(f32.loss, f64.loss, 1e-5);
  for (const Case& c : kCases) {
    ExpectSame(RunOn(c, DType::kF64), f64, 1e-12, Name(c) + " f64");
    ExpectSame(RunOn(c, DType::kF32), f32, 1e-5, Name(c) + " f32");
  }
}

TEST(Transformer, TiedEmbeddingsGiveTheSameLossAndGradientsOnEveryMesh) {
  const auto tied = [](Case c) {
    c.tied = true;
    return c;
  };
  const Outcome f64 = RunOn(tied({"tp=1"}), DType::kF64), untied = RunOn({"tp=1"}, DType::kF64);
  EXPECT_EQ(f64.gradients.count("lm_head.weight"), 0);
  EXPECT_EQ(f64.gradients.size() + 1, untied.gradients.size());
  EXPECT_NE(f64.loss, untied.loss);
  for (const Case& c : kCases) {
    ExpectSame(RunOn(tied(c), DType::kF64), f64, 1e-12, Name(c) + " tied");
  }
}

TEST(Transformer, RunsWhereNothingIsReadyOnReturn) {
  for (const Case& c : {Case{"dp=2,tp=2", true}, Case{"cp=2,tp=2", true}}) {
    const Outcome cpu = RunOn(c, DType::kF32),
                  deferred = RunOn(c, DType::kF32, Device::Kind::kDeferred);
    ExpectSame(deferred, cpu, 0, "deferred");  // the same bits
  }
}

TEST(Transformer, AWorldOfOneIssuesNoCollective) {
  const Outcome one = RunOn({"dp=1,tp=1", true}, DType::kF32);
  EXPECT_TRUE(one.forward.empty());
  EXPECT_TRUE(one.backward.empty());
  EXPECT_TRUE(one.reduce.empty());
}

int64_t Calls(const TrafficTable& table, absl::string_view axes, CollectiveKind kind) {
  const auto it = table.find({std::string(axes), kind});
  return it == table.end() ? 0 : it->second.calls;
}

TEST(Transformer, GradientsOfOneAxisSetAreReducedInOneCollective) {
  const Outcome run = RunOn({"dp=2,tp=2", true}, DType::kF32);
  for (const auto& [key, traffic] : run.reduce) EXPECT_EQ(traffic.calls, 1) << key.first;
  EXPECT_EQ(Calls(run.reduce, "dp", CollectiveKind::kAllReduce), 1);
  EXPECT_EQ(Calls(run.reduce, "dp,tp", CollectiveKind::kAllReduce), 1);
}

TEST(Transformer, ContextParallelismMovesKeysAndValuesRoundTheRingAlone) {
  const Outcome run = RunOn({"dp=2,cp=2,tp=2", true}, DType::kF32);
  EXPECT_EQ(Calls(run.forward, "cp", CollectiveKind::kPermute), 2);  // a hop in each layer
  for (const TrafficTable* table : {&run.forward, &run.backward}) {
    EXPECT_GT(Calls(*table, "cp", CollectiveKind::kPermute), 0);
    for (const auto& [key, traffic] : *table) {
      EXPECT_TRUE(key.first == "tp" || key.second == CollectiveKind::kPermute) << key.first;
    }
  }
}

TEST(Transformer, SimulationPredictsTheTraffic) {
  for (const Case& c : kCases) {
    const Outcome real = RunOn(c, DType::kF32);
    Outcome predicted;
    EXPECT_THAT(Simulate(0, DeviceMesh::Parse(c.mesh)->size(),
                         [&](Context& context) {
                           return RunCase(context, c, DType::kF32, false, predicted);
                         }),
                IsOk());
    EXPECT_EQ(predicted.forward, real.forward) << Name(c);
    EXPECT_EQ(predicted.backward, real.backward) << Name(c);
    EXPECT_EQ(predicted.reduce, real.reduce) << Name(c);
  }
}

TEST(Transformer, TheSameRunGivesTheSameBits) {
  for (const Case& c : {Case{"dp=2,tp=2", true}, Case{"cp=2,tp=2", true}}) {
    const Outcome first = RunOn(c, DType::kF32);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Outcome again;
      RunOptions delays;
      delays.seed = seed;
      delays.max_delay_us = 100;
      EXPECT_THAT(
          RunRanks(
              4, [&](Context& context) { return RunCase(context, c, DType::kF32, true, again); },
              delays),
          IsOk());
      ExpectSame(again, first, 0, "seed " + std::to_string(seed));
    }
  }
}

TEST(Transformer, HeadsThatDoNotSplitAreRefusedWithARemedy) {
  Outcome unused;
  EXPECT_THAT(RunRanks(3,
                       [&](Context& context) {
                         return RunCase(context, {"tp=3"}, DType::kF32, false, unused);
                       }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 units of 4")));
}

TEST(TransformerConfig, RefusesSizesThatDoNotFit) {
  const auto with = [](auto change) {
    TransformerConfig config;
    change(config);
    return config.Validate();
  };
  const auto refuses = [](absl::string_view text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(text)));
  };
  EXPECT_THAT(with([](auto& c) { c.heads = 5; }), refuses("heads must divide dim"));
  EXPECT_THAT(with([](auto& c) { c.kv_heads = 3; }), refuses("kv_heads must divide heads"));
  EXPECT_THAT(with([](auto& c) { c.layers = 0; }), refuses("at least 1"));
  EXPECT_THAT(with([](auto& c) {
                c.dim = 24;
                c.heads = 8;
              }),
              refuses("even"));
}

// A shard of the batch holds its only row, and the others hold nothing: nobody gathers it.
TEST(Transformer, ABatchOfOneStaysSplit) {
  const auto forward = [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan,
                        ParallelPlan::Parse("{\"\", DataParallel(\"dp\")}"));
    Transformer model(SmallTransformer());
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.allow_uneven = true}));
    for (const int64_t batch : {1, 2, 3}) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor y,
                          model(Full(context, mesh, {Replicate()}, {batch, 4}, DType::kI64, 1)));
      EXPECT_EQ(y.layout().ToString(), "[dp] [] []");
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(2, forward, {}, {.max_implicit_bytes = 0}), IsOk());
}

}  // namespace
}  // namespace dtensor
