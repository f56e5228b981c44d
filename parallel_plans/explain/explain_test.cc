// Explanations of a step: compared with values computed by hand where possible, and refused if the
// step cannot run.
#include "dtensor/parallel_plans/explain/explain.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TrainingStep SmallStep(const std::string& mesh, int64_t layers = 2) {
  TrainingStep step;
  step.model = [layers]() -> absl::StatusOr<std::unique_ptr<Module>> {
    TransformerConfig config = SmallTransformer();
    config.layers = layers;
    return std::make_unique<Transformer>(config);
  };
  step.mesh = *DeviceMesh::Parse(mesh);
  step.plan = PlanFor(step.mesh, /*sequence_parallel=*/true);
  step.batch = 4;
  step.sequence = 16;
  return step;
}

const ModuleFigures& ModuleAt(const Explanation& explanation, const std::string& path) {
  for (const ModuleFigures& module : explanation.modules) {
    if (!module.outside && module.path == path) return module;
  }
  static const ModuleFigures none;
  ADD_FAILURE() << "no module " << path << " in:\n" << explanation.ToString();
  return none;
}

CommunicatorTraffic TrafficOf(const ModuleFigures& module, StepPhase phase, CollectiveKind kind) {
  CommunicatorTraffic sum;
  for (const auto& [key, traffic] : Of(module.phases, phase).traffic) {
    if (key.second == kind) sum.calls += traffic.calls, sum.bytes += traffic.bytes;
  }
  return sum;
}

// 4 x 16 tokens of 16 features.
constexpr int64_t kActivation = 4 * 16 * 16 * sizeof(float);

TEST(ExplainStep, SaysWhichModuleCommunicates) {
  const absl::StatusOr<Explanation> step = ExplainStep(SmallStep("tp=4", 3));
  ASSERT_THAT(step, IsOk());
  // q, k and v share one gather, which the first of them wants.
  const ModuleFigures& q = ModuleAt(*step, "model.layers.0..2.self_attn.q_proj");
  EXPECT_EQ(q.modules, 3);
  const auto gather = TrafficOf(q, StepPhase::kForward, CollectiveKind::kAllGather);
  EXPECT_EQ(gather.calls, 1);
  EXPECT_EQ(gather.bytes, kActivation * 3 / 4);
  const ModuleFigures& o = ModuleAt(*step, "model.layers.0..2.self_attn.o_proj");
  const auto scatter = TrafficOf(o, StepPhase::kForward, CollectiveKind::kReduceScatter);
  EXPECT_EQ(scatter.calls, 1);
  EXPECT_EQ(scatter.bytes, kActivation * 3 / 4);
  EXPECT_EQ(TrafficOf(o, StepPhase::kBackward, CollectiveKind::kAllGather).calls, 1);
  // 16 x 16 features and a quarter of them.
  EXPECT_EQ(o.parameter_bytes, 16 * 16 * static_cast<int64_t>(sizeof(float)) / 4);
}

TEST(ExplainStep, TotalsAreThoseOfTheModules) {
  const absl::StatusOr<Explanation> step = ExplainStep(SmallStep("dp=2,tp=2", 4));
  ASSERT_THAT(step, IsOk());
  StepPhases folded;
  int64_t parameters = 0, saved = 0;
  for (const ModuleFigures& module : step->modules) {
    for (const StepPhase phase : kStepPhases) {
      Add(Of(module.phases, phase), module.modules, Of(folded, phase));
    }
    parameters += module.modules * module.parameter_bytes;
    saved += module.modules * module.saved_bytes;
  }
  const StepPhases all = step->rank.phases();
  for (const StepPhase phase : kStepPhases) {
    EXPECT_EQ(Of(folded, phase).traffic, Of(all, phase).traffic) << ToString(phase);
    EXPECT_GT(Of(all, phase).seconds(), 0) << ToString(phase);
    EXPECT_NEAR(Of(folded, phase).seconds(), Of(all, phase).seconds(),
                1e-9 * Of(all, phase).seconds());
  }
  EXPECT_EQ(parameters, step->rank.memory.parameters);
  // Beside what operators saved there is the loss.
  EXPECT_EQ(saved, step->rank.memory.activations - 4);
  int64_t listed = 0;
  for (const FoldedParameter& one : step->parameters) listed += one.parameters * one.figures.bytes;
  EXPECT_EQ(listed, parameters);
}

TEST(ExplainStep, LayersThatAreNotAlikeStayApart) {
  TrainingStep step = SmallStep("tp=2", 4);
  step.plan = *ParallelPlan::Parse(R"({"model.layers.2.mlp.{gate,up}_proj", Colwise("tp")})");
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  std::vector<std::string> gates;
  for (const ModuleFigures& module : explained->modules) {
    if (absl::EndsWith(module.path, "gate_proj")) gates.push_back(module.path);
  }
  EXPECT_THAT(gates, ElementsAre("model.layers.0..1.mlp.gate_proj", "model.layers.2.mlp.gate_proj",
                                 "model.layers.3.mlp.gate_proj"));
}

TEST(ExplainStep, SaysWhatRecomputingWouldGive) {
  TrainingStep step = SmallStep("tp=2", 4);
  const absl::StatusOr<Explanation> plain = ExplainStep(step);
  ASSERT_THAT(plain, IsOk());
  EXPECT_THAT(plain->usual_recompute, ElementsAre("model.layers.*"));
  step.recompute = plain->usual_recompute;
  const absl::StatusOr<Explanation> recomputed = ExplainStep(step);
  ASSERT_THAT(recomputed, IsOk());
  EXPECT_THAT(recomputed->usual_recompute, IsEmpty());
  EXPECT_EQ(plain->otherwise, recomputed->rank.memory);
  EXPECT_EQ(recomputed->otherwise, plain->rank.memory);
  EXPECT_LT(plain->otherwise->activations, plain->rank.memory.activations / 2);
}

// Of an uneven ring the rank that holds the most with one choice is not the one with the other.
TEST(ExplainStep, TheOtherChoiceIsOfTheRankThatThenHoldsTheMost) {
  TransformerConfig config;
  config.vocab = 16, config.dim = 4, config.heads = config.kv_heads = 4, config.head_size = 2;
  config.layers = 2, config.hidden = 8, config.fused_projections = true, config.qk_norm = true;
  config.tie_embeddings = true;
  TrainingStep step;
  step.model = [config]() -> absl::StatusOr<std::unique_ptr<Module>> {
    return std::make_unique<Transformer>(config);
  };
  step.mesh = *DeviceMesh::Parse("dp=1,cp=2,tp=1");
  const absl::StatusOr<ParallelPlan> plan =
      PresetPlan("zero1+cp+tp+sp", step.mesh,
                 {.context_pattern = "ring", .allow_uneven = true, .transformer = config});
  ASSERT_THAT(plan, IsOk());
  step.plan = *plan;
  step.batch = 1, step.sequence = 5, step.dtype = DType::kBF16, step.allow_uneven = true;
  const absl::StatusOr<Explanation> plain = ExplainStep(step);
  ASSERT_THAT(plain, IsOk());
  step.recompute = plain->usual_recompute;
  const absl::StatusOr<Explanation> recomputed = ExplainStep(step);
  ASSERT_THAT(recomputed, IsOk());
  ASSERT_NE(plain->rank.rank, recomputed->rank.rank);
  EXPECT_EQ(plain->otherwise, recomputed->rank.memory);
  EXPECT_EQ(recomputed->otherwise, plain->rank.memory);
}

TEST(ExplainStep, SaysNothingOfRecomputingWithoutLists) {
  TrainingStep step = SmallStep("tp=2");
  step.plan = ParallelPlan();
  step.model = []() -> absl::StatusOr<std::unique_ptr<Module>> {
    return std::make_unique<EmbeddingLayer>(16, 8, 1);
  };
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_THAT(explained->usual_recompute, IsEmpty());
  EXPECT_EQ(explained->otherwise, std::nullopt);
  EXPECT_THAT(explained->ToString(), Not(HasSubstr("recomputing")));
}

TEST(ExplainStep, SaysWhereParametersRestAndAreUsed) {
  TrainingStep step = SmallStep("dp=2,tp=2", 3);
  step.plan = TensorParallelPlan("tp", true);
  step.plan.Add({"model.layers.*", FullyShard("dp")});
  step.plan.Add({"", FullyShard("dp")});
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_THAT(explained->ToString(),
              HasSubstr("model.layers.0..2.mlp.down_proj.weight x3: [16, 24] as [dp] [tp], "
                        "used as [] [tp], 384 B"));
}

const PlacedModule& PlacedAt(const Explanation& explanation, const std::string& path) {
  for (const PlacedModule& module : explanation.placed) {
    if (!module.figures.outside && module.figures.path == path) return module;
  }
  static const PlacedModule none;
  ADD_FAILURE() << "no module " << path << " in:\n" << explanation.PlacedText();
  return none;
}

TEST(ExplainStep, SaysWhereModulesHaveWhat) {
  TrainingStep step = SmallStep("dp=2,tp=2", 3);
  step.plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
  step.plan.Add(FullyShardPlan("dp"));
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  const PlacedModule& down = PlacedAt(*explained, "model.layers.0..2.mlp.down_proj");
  EXPECT_EQ(down.figures.modules, 3);
  ASSERT_EQ(down.parameters.size(), 1);
  const PlacedParameter& weight = down.parameters[0];
  EXPECT_EQ(weight.name, "weight");
  EXPECT_EQ(PlacementsText(weight.figures.rests, weight.figures.shape), "S(0),S(1)");
  EXPECT_EQ(PlacementsText(weight.figures.used, weight.figures.shape), "R,S(1)");
  EXPECT_EQ(weight.figures.bytes, 16 * 24 / 4 * 4);
  ASSERT_EQ(down.edges.size(), 1);
  EXPECT_EQ(down.edges[0].output, Shard(1));
  EXPECT_FALSE(down.edges[0].input);
  // One reduce-scatter in forward, one all-gather in backward; a rank has half of the batch.
  EXPECT_EQ(ReceivedBytes(down.figures.phases).at("tp"), 2 * kActivation / 2 / 2);
  EXPECT_THAT(explained->PlacedText(),
              HasSubstr("model.layers.0..2.mlp.down_proj x3: receives (tp) 2.00 KiB\n"
                        "    weight [16, 24] f32 as S(0),S(1), used as R,S(1), 384 B\n"
                        "    out S(1) on tp\n"));
  std::map<std::string, int64_t> sum;
  for (const PlacedModule& module : explained->placed) {
    for (const auto& [axes, bytes] : ReceivedBytes(module.figures.phases)) {
      sum[axes] += bytes * module.figures.modules;
    }
  }
  EXPECT_EQ(sum, ReceivedBytes(explained->rank.phases()));
}

TEST(ExplainStep, ModulesThatDifferInEdgesAloneStayApart) {
  TrainingStep step = SmallStep("tp=1", 3);  // where nothing moves
  step.plan = ParallelPlan({{"model.layers.1.mlp", Edges("tp", Shard(1), std::nullopt)}});
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_EQ(PlacedAt(*explained, "model.layers.1.mlp").edges.size(), 1);
  EXPECT_TRUE(PlacedAt(*explained, "model.layers.0.mlp").edges.empty());
  EXPECT_EQ(PlacedAt(*explained, "model.layers.0..2.mlp.gate_proj").figures.modules, 3);
}

TEST(ExplainStep, SharedParametersAreSaidToBe) {
  TrainingStep step = SmallStep("tp=2");
  step.model = []() -> absl::StatusOr<std::unique_ptr<Module>> {
    TransformerConfig config = SmallTransformer();
    config.tie_embeddings = true;
    return std::make_unique<Transformer>(config);
  };
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  const PlacedModule& head = PlacedAt(*explained, "lm_head");
  ASSERT_EQ(head.parameters.size(), 1);
  EXPECT_TRUE(head.parameters[0].shared);
  EXPECT_EQ(head.parameters[0].figures.path, "model.embed_tokens.weight");
  EXPECT_THAT(explained->PlacedText(), HasSubstr("weight is model.embed_tokens.weight\n"));
}

// Each of the ranks has as much; and where they do not, the fullest one is not always the first.
TEST(ExplainStep, SimulatesFewRanks) {
  TrainingStep step = SmallStep("dp=64,tp=2");
  step.batch = 64;
  absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_EQ(explained->rank.rank, 0);
  EXPECT_THAT(explained->simulated, ElementsAre(0, 127));
  step = SmallStep("cp=4");
  step.sequence = 13;
  step.allow_uneven = true;
  explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_GT(explained->rank.rank, 0);
}

// A rank of each place in a ring; an all-to-all is none. Of many places some, evenly spread.
TEST(ExplainStep, SimulatesPlacesOfRings) {
  const auto simulated = [](const char* mesh, const char* pattern, int64_t sequence) {
    TrainingStep step = SmallStep(mesh);
    step.plan = ContextParallelPlan("cp", pattern);
    step.sequence = sequence;
    const absl::StatusOr<Explanation> explained = ExplainStep(step);
    EXPECT_THAT(explained, IsOk());
    return explained->simulated;
  };
  EXPECT_THAT(simulated("cp=4,dp=2", "zigzag", 16), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(simulated("cp=2,dp=2@0,2,1,3", "ring", 16), ElementsAre(0, 1));
  EXPECT_THAT(simulated("cp=2,dp=2", "ulysses", 16), ElementsAre(0, 3));
  EXPECT_THAT(simulated("cp=31", "ring", 62),
              ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
}

// Of four layers on two stages; the first has the embedding, the second the head.
TEST(ExplainStep, SaysWhatEachStageOfAPipelineDoes) {
  TrainingStep step = SmallStep("pp=2,dp=2", 4);
  step.plan =
      *ParallelPlan::Parse(PipelinePlan("pp", 2, 4).ToString() + "\n{\"\", DataParallel(\"dp\")}");
  step.batch = 8;
  step.micro_batches = 4;
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_THAT(explained->simulated, ElementsAre(0, 2));
  ASSERT_EQ(explained->stages.size(), 2);
  const StageFigures &first = explained->stages[0], &second = explained->stages[1];
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(second.rank, 2);
  // A sequence of 16 tokens of 16 features crosses for each micro-batch, and its gradient returns.
  constexpr int64_t kActivation = 16 * 16 * 4;
  EXPECT_GE(first.from_stages, 4 * kActivation);
  EXPECT_LE(first.from_stages, 4 * kActivation + 64);  // and numbers: the loss, the norm
  EXPECT_GE(second.from_stages, 4 * kActivation);
  EXPECT_LE(second.from_stages, 4 * kActivation + 64);
  EXPECT_GT(first.received, first.from_stages);    // gradients over dp
  EXPECT_GT(second.parameters, first.parameters);  // the norm, and a head as large as the embedding
  const int fullest = first.peak > second.peak ? 0 : 2;
  EXPECT_EQ(explained->rank.rank, fullest);
  EXPECT_EQ(explained->rank.memory.peak, std::max(first.peak, second.peak));
  const double a = first.micro_batch.all(), b = second.micro_batch.all();
  EXPECT_GT(a, 0);
  EXPECT_GT(b, a);  // it has the head's product
  const double update = std::max(first.update_seconds, second.update_seconds);
  EXPECT_DOUBLE_EQ(explained->step_seconds(), a + b + 3 * b + update);
  EXPECT_NEAR(explained->idle_share(), a / explained->step_seconds(), 0.05);
  EXPECT_THAT(explained->ToString(), HasSubstr("4 micro-batches through 2 stages by 1f1b"));
}

// The same work, with the same bytes; less of the time is waited, and the last stage keeps more.
TEST(ExplainStep, ShowsWhatZeroBubbleGains) {
  TrainingStep step = SmallStep("pp=4", 4);
  step.plan = PipelinePlan("pp", 4, 4);
  step.micro_batches = 4;
  const absl::StatusOr<Explanation> by_1f1b = ExplainStep(step);
  step.schedule = PipelineSchedule::kZeroBubble;
  const absl::StatusOr<Explanation> without = ExplainStep(step);
  ASSERT_THAT(by_1f1b, IsOk());
  ASSERT_THAT(without, IsOk());
  for (size_t s = 0; s < 4; ++s) {
    const StageFigures &before = by_1f1b->stages[s], &now = without->stages[s];
    EXPECT_EQ(before.received, now.received) << s;
    EXPECT_NEAR(before.micro_batch.all(), now.micro_batch.all(), 0.1 * now.micro_batch.all()) << s;
    EXPECT_EQ(before.micro_batch.weights, 0);
    EXPECT_EQ(now.micro_batch.weights > 0, s > 0);
  }
  EXPECT_GT(without->stages[3].peak, by_1f1b->stages[3].peak);
  EXPECT_LT(without->step_seconds(), by_1f1b->step_seconds());
  EXPECT_LT(without->idle_share(), by_1f1b->idle_share());
  EXPECT_THAT(without->ToString(), HasSubstr("4 micro-batches through 4 stages by zero_bubble"));
}

// Each stage is simulated, however many there are.
TEST(ExplainStep, LooksAtEveryStage) {
  TrainingStep step = SmallStep("dp=2,pp=20", 20);
  step.plan = PipelinePlan("pp", 20, 20);
  const absl::StatusOr<Explanation> explained = ExplainStep(step);
  ASSERT_THAT(explained, IsOk());
  EXPECT_EQ(explained->stages.size(), 20);
  EXPECT_EQ(explained->simulated.size(), 20);
}

TEST(ExplainStep, PartsOfABatchTakeLessMemory) {
  TrainingStep step = SmallStep("dp=2", 2);
  step.batch = 8;
  const absl::StatusOr<Explanation> whole = ExplainStep(step);
  step.micro_batches = 4;
  const absl::StatusOr<Explanation> parts = ExplainStep(step);
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(parts, IsOk());
  EXPECT_NEAR(static_cast<double>(whole->rank.memory.activations),
              4 * static_cast<double>(parts->rank.memory.activations), 100);
  EXPECT_THAT(parts->stages, IsEmpty());
  // Kernels and exchanges are smaller, and there are four times as many.
  EXPECT_GT(parts->step_seconds(), whole->step_seconds());
  EXPECT_LT(parts->step_seconds(), 4 * whole->step_seconds());
}

TEST(ExplainStep, RefusesWhatCannotRun) {
  const auto expect = [](const TrainingStep& step, const std::string& words) {
    EXPECT_THAT(ExplainStep(step).status().message(), HasSubstr(words));
  };
  TrainingStep step = SmallStep("tp=2");
  step.batch = 0;
  expect(step, "batch: 0 is no size");
  step = SmallStep("tp=2");
  step.sequence = -1;
  expect(step, "sequence: -1 is no size");
  step = SmallStep("tp=2");
  step.micro_batches = 0;
  expect(step, "micro_batches: 0 is no size");
  step.micro_batches = 3;
  expect(step, "micro_batches: 3 do not divide the 4 sequences");
  step = SmallStep("a=2,b=2");
  step.plan = *ParallelPlan::Parse(R"({"model.embed_tokens", Stage("a", 0)}
{"{model.layers.*,model.norm,lm_head}", Stage("b", 1)})");
  expect(step, "other stages are on \"a\"; put all stages on one axis");
  step = SmallStep("tp=2");
  step.plan = PipelinePlan("pp", 2, 2);
  expect(step, "no axis \"pp\"");
  step = SmallStep("tp=2");
  step.dtype = DType::kI32;
  expect(step, "cannot be trained");
  step = SmallStep("tp=2");
  step.recompute = {"model.layer.*"};
  expect(step, "recompute \"model.layer.*\": matches no module");
  step = SmallStep("tp=2");
  step.sequence = 15;
  expect(step, "does not divide");
  step = SmallStep("tp=2");
  step.plan = ParallelPlan({{"", DataParallel("dp")}});
  expect(step, "dp");
}

}  // namespace
}  // namespace dtensor
