// A simulated rank counts the same for a step as the rank that runs it: collectives, bytes and
// memory, for each style and for whole plans, and on meshes that do not divide the sizes.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/explain/explain.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

struct Case {
  std::string name, mesh;
  std::string plan;  // the text of a plan
  int64_t batch = 4, sequence = 16;
  std::vector<std::string> recompute = {};
  StepOptimizer optimizer = StepOptimizer::kAdamW;
  DType dtype = DType::kF32;
  bool allow_uneven = false;
  bool tied = false;
  int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};

TrainingStep StepOf(const Case& c) {
  TrainingStep step;
  const bool tied = c.tied;
  step.model = [tied]() -> absl::StatusOr<std::unique_ptr<Module>> {
    TransformerConfig config = SmallTransformer();
    config.tie_embeddings = tied;
    return std::make_unique<Transformer>(config);
  };
  const absl::StatusOr<ParallelPlan> plan = ParallelPlan::Parse(c.plan);
  EXPECT_THAT(plan, IsOk()) << c.name;
  if (plan.ok()) step.plan = *plan;
  step.mesh = *DeviceMesh::Parse(c.mesh);
  step.batch = c.batch;
  step.sequence = c.sequence;
  step.dtype = c.dtype;
  step.optimizer = c.optimizer;
  step.recompute = c.recompute;
  step.allow_uneven = c.allow_uneven;
  step.micro_batches = c.micro_batches;
  step.schedule = c.schedule;
  return step;
}

std::string TrafficOf(const TrafficTable& table) {
  std::string text;
  for (const auto& [key, traffic] : table) {
    text += std::string(ToString(key.second)) + "(" + key.first + ") " +
            std::to_string(traffic.calls) + " calls " + std::to_string(traffic.messages) +
            " messages " + std::to_string(traffic.bytes) + " bytes; ";
  }
  return text;
}

// Modules that did nothing are not listed.
ModuleFigures ModuleLike(const RankFigures& rank, const ModuleFigures& module) {
  for (const ModuleFigures& one : rank.modules) {
    if (one.path == module.path && one.outside == module.outside) return one;
  }
  return {};
}

// Whether a unit is gathered ahead: begun by one module, with which a simulated rank counts it, and
// received in another, where a rank that runs does.
bool GathersAhead(const Case& c, StepPhase phase) {
  return phase == StepPhase::kBackward && absl::StrContains(c.plan, R"(FullyShard("dp")})");
}

// Whether a stage's copy of a weight is sent by one module and phase, with which a simulated rank
// counts it, and arrives in others.
bool SendsCopies(const Case& c) { return c.tied && absl::StrContains(c.plan, "Stage("); }

std::string AllTraffic(const StepPhases& phases) {
  PhaseFigures sum;
  for (const PhaseFigures& phase : phases) Add(phase, 1, sum);
  return TrafficOf(sum.traffic);
}

void ExpectSame(const RankFigures& predicted, const RankFigures& counted, const Case& c) {
  const std::string what = c.name + ", rank " + std::to_string(counted.rank);
  const StepPhases all_predicted = predicted.phases(), all_counted = counted.phases();
  EXPECT_EQ(AllTraffic(all_predicted), AllTraffic(all_counted)) << what;
  for (const StepPhase phase : kStepPhases) {
    if (SendsCopies(c)) continue;
    EXPECT_EQ(TrafficOf(Of(all_predicted, phase).traffic),
              TrafficOf(Of(all_counted, phase).traffic))
        << what << ", " << ToString(phase);
  }
  EXPECT_EQ(predicted.memory, counted.memory) << what;
  ASSERT_FALSE(counted.modules.empty()) << what;
  // A simulated rank also lists modules that only took time.
  for (const ModuleFigures& module : predicted.modules) {
    const ModuleFigures same = ModuleLike(counted, module);
    EXPECT_EQ(same.saved_bytes, module.saved_bytes) << what << ", " << module.path;
    EXPECT_EQ(same.parameter_bytes, module.parameter_bytes) << what << ", " << module.path;
    for (const StepPhase phase : kStepPhases) {
      if (GathersAhead(c, phase) || SendsCopies(c)) continue;
      EXPECT_EQ(TrafficOf(Of(same.phases, phase).traffic),
                TrafficOf(Of(module.phases, phase).traffic))
          << what << ", " << module.path << ", " << ToString(phase);
    }
  }
}

// Runs the step on every rank, and predicts each; then looks at what is said of the fullest.
void ExpectPredicted(const Case& c) {
  const TrainingStep step = StepOf(c);
  const int ranks = step.mesh.size();
  std::vector<RankFigures> counted(ranks);
  ASSERT_THAT(RunRanks(ranks,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(CountedStep mine, CountStep(context, step));
                         counted[context.rank()] = std::move(mine.figures);
                         return absl::OkStatus();
                       }),
              IsOk())
      << c.name;
  int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    CountedStep predicted;
    ASSERT_THAT(Simulate(rank, ranks,
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(predicted, CountStep(context, step));
                           return absl::OkStatus();
                         }),
                IsOk())
        << c.name;
    ExpectSame(predicted.figures, counted[rank], c);
    most = std::max(most, counted[rank].memory.peak);
  }
  const absl::StatusOr<Explanation> explanation = ExplainStep(step);
  ASSERT_THAT(explanation, IsOk()) << c.name;
  EXPECT_EQ(explanation->rank.memory.peak, most) << c.name;
  EXPECT_EQ(counted[explanation->rank.rank].memory.peak, most) << c.name;
}

const std::string kTensorParallel = R"({"model.embed_tokens", VocabParallel("tp", out S(1))}
{"model.layers.*.{input,post_attention}_layernorm", SequenceParallel("tp")}
{"model.norm", SequenceParallel("tp")}
{"model.layers.*.self_attn.{q,k,v}_proj", Colwise("tp")}
{"model.layers.*.self_attn.o_proj", Rowwise("tp", out S(1))}
{"model.layers.*.mlp.{gate,up}_proj", Colwise("tp")}
{"model.layers.*.mlp.down_proj", Rowwise("tp", out S(1))}
{"lm_head", VocabParallel("tp")}
)";
const std::string kData = R"({"", DataParallel("dp")})";

TEST(CountedStep, EachStyleAlone) {
  const std::vector<std::pair<std::string, std::string>> plans = {
      {"tp=2", ""},
      {"tp=2", R"({"model.layers.*.mlp.{gate,up}_proj", Colwise("tp")})"},
      {"tp=2", R"({"model.layers.*.mlp.{gate,up}_proj", Colwise("tp", out R)})"},
      {"tp=2", R"({"model.layers.*.mlp.down_proj", Rowwise("tp")})"},
      {"tp=2", R"({"model.layers.*.mlp.down_proj", Rowwise("tp", out S(1))})"},
      {"tp=3", R"({"{model.embed_tokens,lm_head}", VocabParallel("tp")})"},
      {"tp=2", R"({"model.norm", SequenceParallel("tp")})"},
      {"tp=2", R"({"model.layers.*.mlp.down_proj", Replicated("tp")})"},
      {"tp=2", R"({"model.layers.*.mlp", PrepareInput("tp", S(1))})"},
      {"tp=2", R"({"model.layers.*.mlp", PrepareOutput("tp", S(1))})"},
      {"tp=2", R"({"model.layers.*.mlp", Edges("tp", in S(1), out R)})"},
      {"dp=4", kData},
  };
  for (const auto& [mesh, plan] : plans) ExpectPredicted({plan, mesh, plan});
  Case tied = {"tied", "tp=2", R"({"{model.embed_tokens,lm_head}", VocabParallel("tp")})"};
  tied.tied = true;
  ExpectPredicted(tied);
}

std::string Sharded(int level, const std::string& axis = "dp") {
  const std::string style =
      "FullyShard(\"" + axis + "\"" + (level == 3 ? ")" : ", " + std::to_string(level) + ")");
  return "{\"model.layers.*\", " + style + "}\n{\"\", " + style + "}\n";
}

TEST(CountedStep, FullyShardedAtEachLevel) {
  for (const int level : {1, 2, 3}) {
    Case sharded = {"level " + std::to_string(level), "dp=4", Sharded(level)};
    ExpectPredicted(sharded);
    sharded.name += ", recomputed";
    sharded.recompute = {"model.layers.*"};
    ExpectPredicted(sharded);
  }
  ExpectPredicted({"hybrid", "rep=2,dp=2", Sharded(3) + R"({"", DataParallel("rep")})"});
  ExpectPredicted({"with sequence parallelism", "dp=2,tp=2", kTensorParallel + Sharded(3)});
}

TEST(CountedStep, WholePlans) {
  ExpectPredicted({"tp+sp", "tp=4", kTensorParallel});
  ExpectPredicted({"one rank", "dp=1,tp=1", kTensorParallel + kData});
  Case whole = {"dp, tp+sp", "dp=2,tp=2", kTensorParallel + kData};
  ExpectPredicted(whole);
  whole.recompute = {"model.layers.*"};
  ExpectPredicted(whole);
  whole.recompute = {"model.layers.*.self_attn"};
  ExpectPredicted(whole);
  whole.dtype = DType::kBF16;
  ExpectPredicted(whole);
  whole.optimizer = StepOptimizer::kSgd;
  ExpectPredicted(whole);
  whole.optimizer = StepOptimizer::kNone;
  ExpectPredicted(whole);
}

std::string Context(const std::string& pattern) {
  const std::string style = "ContextParallel(\"cp\", \"" + pattern + "\")}\n";
  return "{\"\", " + style + "{\"model.layers.*.self_attn\", " + style;
}

TEST(CountedStep, ContextParallelism) {
  for (const char* pattern : {"ring", "zigzag", "striped", "ulysses"}) {
    ExpectPredicted({pattern, "cp=4", Context(pattern)});
  }
  ExpectPredicted({"double ring", "o=2,i=2;cp=o*i", Context("double_ring")});
  ExpectPredicted({"dp, cp, tp+sp", "dp=2,cp=2,tp=2", kTensorParallel + Context("zigzag") + kData});
}

const std::string kTwoStages = R"({"{model.embed_tokens,model.layers.0}", Stage("pp", 0)}
{"{model.layers.1,model.norm,lm_head}", Stage("pp", 1)}
)";

TEST(CountedStep, Pipelines) {
  for (const int64_t n : {1, 2, 4}) {
    Case c = {"pipeline", "pp=2", kTwoStages};
    c.micro_batches = n;
    ExpectPredicted(c);
    c.recompute = {"model.layers.*"};
    ExpectPredicted(c);
    c.tied = true;
    ExpectPredicted(c);
    c = {"in parts", "dp=2", kData, 8};
    c.micro_batches = n;
    ExpectPredicted(c);
  }
  Case whole = {"pp, dp, tp+sp", "pp=2,dp=2,tp=2", kTwoStages + kTensorParallel + kData, 8};
  whole.micro_batches = 4;
  ExpectPredicted(whole);
  ExpectPredicted({"all in the second stage", "pp=2,dp=2", "{\"\", Stage(\"pp\", 1)}\n" + kData});
  whole = {"pp, fsdp", "dp=2,pp=2", kTwoStages + Sharded(3), 8};
  whole.micro_batches = 2;
  ExpectPredicted(whole);
}

TEST(CountedStep, ZeroBubbles) {
  const std::string three = R"({"model.embed_tokens", Stage("pp", 0)}
{"model.layers.*", Stage("pp", 1)}
{"{model.norm,lm_head}", Stage("pp", 2)}
)";
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (Case c : std::vector<Case>{
             {"three stages", "pp=3", three},
             {"three stages, recomputed", "pp=3", three, 4, 16, {"model.layers.*"}},
             {"pp, dp, tp+sp", "pp=2,dp=2,tp=2", kTwoStages + kTensorParallel + kData, 8},
             {"pp, fsdp", "dp=2,pp=2", kTwoStages + Sharded(3), 8}}) {
      c.micro_batches = 4;
      c.schedule = schedule;
      ExpectPredicted(c);
    }
  }
}

void ExpectPredictedUneven(const std::string& mesh, const std::string& plan, int64_t batch,
                           int64_t sequence) {
  Case c = {"batch " + std::to_string(batch) + ", sequence " + std::to_string(sequence) + " on " +
                mesh + ":\n" + plan,
            mesh, plan, batch, sequence};
  c.allow_uneven = true;
  ExpectPredicted(c);
}

// The fullest rank is not the first everywhere: zigzag gives that one the sequence's short end.
TEST(CountedStep, SizesThatDoNotDivide) {
  ExpectPredictedUneven("dp=3", kData, 5, 16);
  ExpectPredictedUneven("dp=3", kData, 2, 16);
  ExpectPredictedUneven("tp=3", kTensorParallel, 4, 13);
  ExpectPredictedUneven("cp=4", Context("zigzag"), 4, 13);
  ExpectPredictedUneven("cp=3", Context("zigzag"), 4, 9);
  ExpectPredictedUneven("cp=4", Context("ring"), 4, 10);
  // The last rank of the ring has a token less, and holds the most.
  ExpectPredictedUneven("cp=3", Context("ring"), 1, 83);
  ExpectPredictedUneven("cp=3", Context("ring"), 1, 128);
  ExpectPredictedUneven("cp=4", Context("striped"), 4, 13);
  ExpectPredictedUneven("cp=2,tp=3", kTensorParallel + Context("zigzag"), 4, 13);
  ExpectPredictedUneven("dp=3", Sharded(3), 5, 16);
  ExpectPredictedUneven("dp=5", Sharded(3), 5, 16);
  ExpectPredictedUneven("tp=3", R"({"model.layers.*.mlp", Edges("tp", in S(1,block(2)))})", 4, 13);
  // The first rank has the only token: it gathers and receives nothing.
  ExpectPredictedUneven("tp=2", R"({"model.layers.*", Edges("tp", in S(1), out R)})", 4, 1);
}

}  // namespace
}  // namespace dtensor
