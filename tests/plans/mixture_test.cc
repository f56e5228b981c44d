// Transformers with mixtures of experts train on every mesh as on one rank, their experts or the
// experts' features sharded; checkpoints have them by expert.
#include "dtensor/nn/mixture.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/expert_parallel.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/plans/model_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TransformerConfig Config(bool mixtral = false) {
  TransformerConfig config = SmallTransformer();
  config.experts = 4;
  config.experts_per_token = 2;
  config.mixtral_names = mixtral;
  config.normalize_experts = mixtral;
  config.hidden = 12;
  return config;
}

ModelOutcome Train(const TransformerConfig& config, const ModelRun& run) {
  const auto outcome = RunModel(Tested<Transformer>(config, "model.layers.*"), run);
  EXPECT_THAT(outcome, IsOk()) << run.mesh;
  return outcome.ok() ? *outcome : ModelOutcome();
}

void ExpectAsOnOneRank(const TransformerConfig& config, ModelRun run,
                       const std::vector<std::string>& meshes) {
  run.steps = 3;
  ModelRun one = run;
  one.recompute = false;
  const ModelOutcome want = Train(config, one);
  for (const std::string& mesh : meshes) {
    if (!SuiteHasRanks(DeviceMesh::Parse(mesh)->size())) continue;
    run.mesh = mesh;
    EXPECT_EQ(Difference(Train(config, run), want), "") << mesh;
  }
}

TEST(Mixture, TrainsOnEveryMeshAsOnOneRank) {
  ExpectAsOnOneRank(Config(), {},
                    {"tp=2", "tp=4", "ep=2", "ep=4", "ep=2,tp=2", "dp=2,ep=2", "cp=2,ep=2",
                     "cp=2,tp=2", "dp=2,ep=2,tp=2"});
  ExpectAsOnOneRank(Config(/*mixtral=*/true), {.sequence_parallel = false},
                    {"tp=2", "ep=2", "ep=2,tp=2"});
}

TEST(Mixture, TrainsFullyShardedAndRecomputed) {
  ExpectAsOnOneRank(Config(), {}, {"fsdp=2", "fsdp=2,ep=2", "fsdp=2,tp=2"});
  ExpectAsOnOneRank(Config(), {.recompute = true}, {"ep=2", "fsdp=2,ep=2,tp=2"});
}

// Over dp and ep together, and the experts over dp.
TEST(Mixture, TrainsByThePresetsThatShardEverything) {
  const ModelOutcome want = Train(Config(), {.steps = 3});
  for (const auto& [name, mesh] : {std::pair("fsdp+ep", "dp=2,ep=2"),
                                   {"zero1+ep", "dp=2,ep=2"},
                                   {"zero2+ep", "ep=2,dp=2"},
                                   {"hsdp+ep", "a=2,b=2,ep=2;dp=a*b"},
                                   {"fsdp+ep+tp+sp", "dp=2,ep=2,tp=2"}}) {
    TestedModel tested = Tested<Transformer>(Config(), "model.layers.*");
    tested.plan = [name = name](const DeviceMesh& on,
                                const TensorParallelOptions&) -> absl::StatusOr<TensorParallelism> {
      DT_ASSIGN_OR_RETURN(ParallelPlan plan, PresetPlan(name, on, {.transformer = Config()}));
      return TensorParallelism{on, std::move(plan)};
    };
    if (!SuiteHasRanks(DeviceMesh::Parse(mesh)->size())) continue;
    // On 8 ranks only 4 have a sequence.
    const auto outcome = RunModel(tested, {.mesh = mesh, .uneven = true, .steps = 3});
    ASSERT_THAT(outcome.status(), IsOk()) << name;
    EXPECT_EQ(Difference(*outcome, want), "") << name;
  }
}

TEST(Mixture, ARankStoresItsPartOfEverything) {
  DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,ep=2");
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan,
                        PresetPlan("fsdp+ep", mesh, {.transformer = Config()}));
    Transformer model(Config());
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
    model.VisitParameters([&](const std::string& path, Parameter& parameter) {
      EXPECT_EQ(parameter.tensor.local().numel() * 4, NumElements(parameter.shape)) << path;
      if (!absl::StrContains(path, "experts")) return;
      EXPECT_THAT(parameter.tensor.layout().ToString(), HasSubstr("[ep]")) << path;
      EXPECT_THAT(parameter.tensor.layout().ToString(), HasSubstr("[dp]")) << path;
    });
    return absl::OkStatus();
  }));
}

TEST(Mixture, MayHaveExpertsThatDoNotDivide) {
  ExpectAsOnOneRank(Config(), {.uneven = true}, {"ep=3", "tp=3", "fsdp=3"});
  TransformerConfig config = Config();
  config.experts = 3;  // fewer than ranks
  config.experts_per_token = 3;
  ExpectAsOnOneRank(config, {.uneven = true}, {"ep=2", "ep=4"});
}

TEST(Mixture, ARankHasItsExpertsOrItsPartOfEach) {
  for (const auto& [mesh, up, down] : {std::tuple("ep=2", "[ep] [] []", "[ep] [] []"),
                                       {"tp=2", "[] [tp] []", "[] [] [tp]"},
                                       {"ep=2,tp=2", "[ep] [tp] []", "[ep] [] [tp]"}}) {
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      Transformer model(Config());
      DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, *DeviceMesh::Parse(mesh)).status());
      std::map<std::string, std::string> layouts;
      model.VisitParameters([&](const std::string& path, Parameter& parameter) {
        layouts[path] = parameter.tensor.layout().ToString();
      });
      EXPECT_EQ(layouts["model.layers.0.mlp.experts.gate_proj"], up);
      EXPECT_EQ(layouts["model.layers.0.mlp.experts.up_proj"], up);
      EXPECT_EQ(layouts["model.layers.1.mlp.experts.down_proj"], down);
      EXPECT_EQ(layouts["model.layers.1.mlp.gate.weight"], "[] []");
      return absl::OkStatus();
    }));
  }
}

// In forward and backward: ids are gathered, and tokens go to the experts and back.
TEST(Mixture, SendsTokensToTheirExpertsAndBack) {
  const int64_t layers = Config().layers;
  EXPECT_THAT(CallsOf(Train(Config(), {.mesh = "ep=2"}).forward),
              ElementsAre(Pair("ep all-gather", layers), Pair("ep all-to-all", 2 * layers)));
}

// If the plan wants that: tokens, what they pick, and the weights come in; one sum goes out.
TEST(Mixture, GathersTokensAndScattersTheirSums) {
  TestedModel tested = Tested<Transformer>(Config(), "model.layers.*");
  tested.plan = [](const DeviceMesh& mesh,
                   const TensorParallelOptions&) -> absl::StatusOr<TensorParallelism> {
    return TensorParallelism{
        mesh, ParallelPlan({{"", DataParallel("ep")},
                            {"model.layers.*.mlp.experts",
                             ExpertParallel("ep", Shard(0), /*input=*/Replicate())}})};
  };
  const auto outcome = RunModel(tested, {.mesh = "ep=2"});
  DT_ASSERT_OK(outcome);
  const int64_t layers = Config().layers;
  EXPECT_THAT(CallsOf(outcome->forward),
              ElementsAre(Pair("ep all-gather", 3 * layers), Pair("ep reduce-scatter", layers)));
  EXPECT_EQ(Difference(*outcome, Train(Config(), {})), "");
}

// Experts on an axis that shards no tokens: a sum, which is all-reduced.
TEST(Mixture, AddsUpWhatRanksWithTheSameTokensMake) {
  TestedModel tested = Tested<Transformer>(Config(), "model.layers.*");
  tested.plan = [](const DeviceMesh& mesh,
                   const TensorParallelOptions&) -> absl::StatusOr<TensorParallelism> {
    return TensorParallelism{mesh,
                             ParallelPlan({{"model.layers.*.mlp.experts", ExpertParallel("ep")}})};
  };
  const auto outcome = RunModel(tested, {.mesh = "ep=2"});
  DT_ASSERT_OK(outcome);
  EXPECT_THAT(CallsOf(outcome->forward), ElementsAre(Pair("ep all-reduce", Config().layers)));
  EXPECT_EQ(Difference(*outcome, Train(Config(), {})), "");
}

// Without the gathers of ids, and with results that do not come back: backward runs forward again.
TEST(Mixture, MayKeepWhatItReceivedWhileItIsRecomputed) {
  const ModelOutcome want = Train(Config(), {});
  for (const bool keep : {false, true}) {
    TestedModel tested = Tested<Transformer>(Config(), "model.layers.*");
    tested.load = [&](Module& model, const DeviceMesh&) {
      model.VisitModules([&](const std::string& path, Module& module) {
        if (absl::EndsWith(path, ".mlp")) {
          module.set_recomputes(true, {.keep_collectives = keep});
        }
      });
      return absl::OkStatus();
    };
    const auto outcome = RunModel(tested, {.mesh = "ep=2"});
    DT_ASSERT_OK(outcome);
    EXPECT_EQ(Difference(*outcome, want), "") << keep;
  }
}

TEST(Mixture, TrainsInHalfPrecision) {
  const ModelRun run = {.dtype = DType::kBF16};
  const ModelOutcome want = Train(Config(), run);
  for (const char* const mesh : {"ep=2", "tp=2"}) {
    if (!SuiteHasRanks(2)) continue;
    ModelRun there = run;
    there.mesh = mesh;
    // A pick may differ where two probabilities are as near as roundings of 16 bits.
    EXPECT_EQ(Difference(Train(Config(), there), want, {.error = 0.1, .of_weights = 0.1}), "")
        << mesh;
  }
}

// What a rank receives and holds at most in ExpertMlp and its backward. Of four experts, token t
// picks t % 4 and the one after the next.
struct Costs {
  TrafficTable traffic;
  int64_t peak_bytes = 0;
};
absl::StatusOr<Costs> CostsOfExperts(Context& context, const DeviceMesh& mesh, const char* tokens,
                                     const char* experts) {
  constexpr int64_t kTokens = 32;
  const Layout by_token = *Layout::Parse(mesh, absl::StrCat(tokens, " []"));
  const Layout by_expert = *Layout::Parse(mesh, absl::StrCat(experts, " [] []"));
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) ids.insert(ids.end(), {t % 4, (t + 2) % 4});
  DT_ASSIGN_OR_RETURN(auto x, Full(context, by_token, {kTokens, 6}, DType::kF32, 1));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  const TensorOr weights = Full(context, by_token, {kTokens, 2}, DType::kF32, 1);
  const TensorOr gate = Full(context, by_expert, {4, 5, 6}, DType::kF32, 1);
  const TensorOr down = Full(context, by_expert, {4, 6, 5}, DType::kF32, 1);
  const TensorOr picks = Distribute<int64_t>(context, by_token, {kTokens, 2}, ids);
  context.communicator().ResetTraffic();
  context.device().ResetPeak();
  DT_RETURN_IF_ERROR(Backward(Sum(ExpertMlp(x, picks, weights, gate, gate, down), {0, 1})));
  return Costs{context.communicator().traffic(), context.device().memory().peak_bytes};
}

// Simulate() spreads the picks evenly, as these are.
TEST(Mixture, IsSimulatedAsItRuns) {
  const DeviceMesh mesh = *DeviceMesh::Parse("a=2,b=2");
  for (const auto& [tokens, experts] : {std::pair("[a]", "[a]"),
                                        {"[a]", "[b]"},
                                        {"[a]", "[a,b]"},
                                        {"[a,b]", "[b]"},
                                        {"[a,b]", "[b,a]"}}) {
    const auto run = [&](Costs& costs) {
      return [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(Costs mine, CostsOfExperts(context, mesh, tokens, experts));
        if (context.rank() == 1) costs = std::move(mine);
        return absl::OkStatus();
      };
    };
    Costs real, simulated;
    DT_ASSERT_OK(RunRanks(4, run(real)));
    DT_ASSERT_OK(Simulate(1, 4, run(simulated)));
    EXPECT_EQ(simulated.traffic, real.traffic) << tokens << " " << experts;
    EXPECT_EQ(simulated.peak_bytes, real.peak_bytes) << tokens << " " << experts;
  }
}

// --- An id of no expert, on one rank alone.

TEST(Mixture, AnIdOfNoExpertEndsTheWorldOnAllRanks) {
  for (const int64_t bad : {int64_t{-1}, int64_t{3}, int64_t{1} << 40}) {
    std::vector<absl::Status> seen(4);
    const absl::Status status = RunRanks(4, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,ep=2");
      const Layout tokens = *Layout::Parse(mesh, "[dp,ep] []"),
                   experts = *Layout::Parse(mesh, "[ep] [] []");
      std::vector<int64_t> ids = {0, 1, 2, 0, 1, 2, 0, 1};
      ids[5] = bad;  // choice 1 of token 0 of rank 2
      const TensorOr y = ExpertMlp(Full(context, tokens, {4, 3}, DType::kF32, 1),
                                   Distribute<int64_t>(context, tokens, {4, 2}, ids),
                                   Full(context, tokens, {4, 2}, DType::kF32, 1),
                                   Full(context, experts, {3, 2, 3}, DType::kF32, 1),
                                   Full(context, experts, {3, 2, 3}, DType::kF32, 1),
                                   Full(context, experts, {3, 3, 2}, DType::kF32, 1));
      absl::Status mine = y.status();
      if (mine.ok()) mine = ToGlobal<float>(*y).status();
      seen[context.rank()] = mine;
      return mine;
    });
    for (const absl::Status& mine : seen) {
      EXPECT_THAT(mine, StatusIs(absl::StatusCode::kOutOfRange,
                                 HasSubstr(absl::StrCat("expert ", bad,
                                                        ", choice 1 of token 0 of "
                                                        "rank 2, is outside [0, 3)"))));
    }
    EXPECT_FALSE(status.ok());
  }
}

// --- Checkpoints.

// Each tensor of `state` by its values.
std::map<std::string, std::vector<double>> ValuesOf(const StateDict& state) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, tensor] : state) values[name] = ToGlobal<double>(tensor).value();
  return values;
}

// Puts one model's weights into another, which lies otherwise, and back.
TEST(Mixture, IsSavedByExpertAndLoadedOnAnyMesh) {
  TransformerConfig config = Config(/*mixtral=*/true);
  config.experts = 70;  // more than one Concat joins
  config.layers = 1;
  for (const char* const mesh : {"ep=2", "tp=2", "ep=2,tp=2", "ep=4"}) {
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      const DeviceMesh four = *DeviceMesh::Parse("dp=4");
      const DeviceMesh there = *DeviceMesh::Parse(
          DeviceMesh::Parse(mesh)->size() == 4 ? mesh : absl::StrCat(mesh, ",dp=2"));
      Transformer plain(config), planned(config);
      plain.SetDType(DType::kF64);
      planned.SetDType(DType::kF64);
      DT_RETURN_IF_ERROR(plain.Materialize(context, four, 1));
      TensorParallelOptions options;
      options.seed = 2;
      options.allow_uneven = true;
      DT_RETURN_IF_ERROR(ApplyTensorParallel(planned, context, there, options).status());
      DT_ASSIGN_OR_RETURN(const StateDict wanted, StateDictOf(plain));
      const std::string name = "model.layers.0.block_sparse_moe.experts.";
      EXPECT_EQ(wanted.at(name + "69.w1.weight").shape(), (Dims{12, 16}));
      EXPECT_EQ(wanted.at(name + "7.w2.weight").shape(), (Dims{16, 12}));
      EXPECT_EQ(wanted.at(name + "0.w3.weight").shape(), (Dims{12, 16}));
      EXPECT_TRUE(wanted.contains("model.layers.0.block_sparse_moe.gate.weight"));
      DT_RETURN_IF_ERROR(LoadStateDict(planned, wanted));
      DT_ASSIGN_OR_RETURN(const StateDict got, StateDictOf(planned));
      const auto want_values = ValuesOf(wanted), values = ValuesOf(got);
      EXPECT_EQ(values.size(), want_values.size());
      EXPECT_TRUE(values == want_values) << mesh;
      // Expert 69 is the last slice of the stack.
      absl::Status status;
      plain.VisitParameters([&](const std::string& path, Parameter& parameter) {
        if (path != name + "w1") return;
        const auto stack = ToGlobal<double>(parameter.tensor);
        status.Update(stack.status());
        if (!stack.ok()) return;
        const std::vector<double> last(stack->end() - 12 * 16, stack->end());
        EXPECT_EQ(last, want_values.at(name + "69.w1.weight"));
      });
      return status;
    }));
  }
}

// A rank takes the experts apart without holding them all.
TEST(Mixture, IsTakenApartByAnAllToAll) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(Config());
    DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, *DeviceMesh::Parse("ep=2")).status());
    DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
    const auto& part = state.at("model.layers.0.mlp.experts.3.up_proj.weight");
    EXPECT_EQ(part.layout().ToString(), "[ep] []");
    return absl::OkStatus();
  }));
}

// --- Refusals.

TEST(Mixture, RefusesAnAxisOfExpertsWithoutExperts) {
  EXPECT_THAT(PlanTensorParallel(SmallTransformer(), *DeviceMesh::Parse("ep=2")),
              Refuses(AllOf(HasSubstr("\"ep\" shards experts"), HasSubstr("dp"))));
  EXPECT_THAT(PresetPlan("ep+tp", *DeviceMesh::Parse("ep=2,tp=2")),
              Refuses(AllOf(HasSubstr("preset \"ep+tp\""), HasSubstr("the model has none"))));
}

TEST(Mixture, RefusesExpertsThatDoNotDivide) {
  const ModelRun run = {.mesh = "ep=3"};
  EXPECT_THAT(RunModel(Tested<Transformer>(Config(), "model.layers.*"), run).status(),
              Refuses(AllOf(HasSubstr("dimension 0 of model.layers.0.mlp.experts.gate_proj, 4"),
                            HasSubstr("ExpertParallel(\"ep\", out S(0))"), HasSubstr("uneven"))));
}

// A block without experts, between two whose mixtures have a shared expert.
TransformerConfig ConfigWithSums() {
  TransformerConfig config = Config();
  config.layers = 3;
  config.dense_layers = {1};
  config.dense_hidden = 16;
  config.shared_hidden = 8;
  config.router_sums = true;
  return config;
}

// The loss is a sum of logits and router_sums, so the gradients of both are compared.
TEST(Mixture, ReturnsRouterSumsOnEveryMesh) {
  ExpectAsOnOneRank(ConfigWithSums(), {},
                    {"tp=2", "tp=4", "ep=2", "ep=2,tp=2", "dp=2,ep=2", "cp=2,tp=2", "cp=2,ep=2",
                     "dp=2,ep=2,tp=2", "fsdp=2", "fsdp=2,ep=2"});
  ExpectAsOnOneRank(ConfigWithSums(), {.sequence_parallel = false}, {"tp=2", "ep=2,tp=2"});
  ExpectAsOnOneRank(ConfigWithSums(), {.recompute = true}, {"dp=2,ep=2", "fsdp=2,ep=2,tp=2"});
  TransformerConfig mixtral = ConfigWithSums();
  mixtral.mixtral_names = true;  // of blocks with experts; the other's are those of a LLaMA
  ExpectAsOnOneRank(mixtral, {}, {"tp=2", "ep=2,tp=2"});
}

// They are Partial where tokens are sharded, and nothing adds them up before someone wants them.
TEST(Mixture, RouterSumsMoveNothing) {
  TransformerConfig without = ConfigWithSums();
  without.router_sums = false;
  for (const std::string mesh : {"ep=2", "tp=2", "dp=2,cp=2"}) {
    if (!SuiteHasRanks(DeviceMesh::Parse(mesh)->size())) continue;
    EXPECT_EQ(CallsOf(Train(ConfigWithSums(), {.mesh = mesh}).forward),
              CallsOf(Train(without, {.mesh = mesh}).forward))
        << mesh;
  }
}

// As DeepSeek's: 4 experts in two groups of which one is picked.
TransformerConfig ConfigWithSigmoids() {
  TransformerConfig config = ConfigWithSums();
  config.router_score = RouterScore::kSigmoid;
  config.expert_groups = 2;
  config.routed_scaling_factor = 1.5;
  config.rotary_dim = 2;
  return config;
}

TEST(Mixture, WithSigmoidScoresTrainsOnEveryMesh) {
  ExpectAsOnOneRank(
      ConfigWithSigmoids(), {},
      {"tp=2", "tp=4", "ep=2", "ep=2,tp=2", "dp=2,ep=2", "cp=2,tp=2", "fsdp=2", "fsdp=2,ep=2"});
  ExpectAsOnOneRank(ConfigWithSigmoids(), {.recompute = true}, {"dp=2,ep=2", "fsdp=2,ep=2,tp=2"});
}

// As GPT-OSS's: sinks in attention, a window in the first layer, experts with biases.
TransformerConfig ConfigWithClamp() {
  TransformerConfig config = Config();
  config.normalize_experts = true;
  config.router_sums = true;
  config.qkv_bias = config.o_bias = config.attention_sinks = true;
  config.window = 3;
  config.full_layers = {1};
  config.expert_clamp = {1.702, 0.02};  // which many gates and ups exceed
  return config;
}

TEST(Mixture, WithClampedExpertsTrainsOnEveryMesh) {
  ExpectAsOnOneRank(ConfigWithClamp(), {},
                    {"tp=2", "tp=4", "ep=2", "ep=4", "ep=2,tp=2", "dp=2,ep=2", "cp=2,tp=2",
                     "cp=2,ep=2", "fsdp=2", "fsdp=2,ep=2"});
  ExpectAsOnOneRank(ConfigWithClamp(), {.recompute = true}, {"dp=2,ep=2", "fsdp=2,ep=2,tp=2"});
  TransformerConfig uneven = ConfigWithClamp();
  uneven.hidden = 5;  // a gate and its up stay together
  uneven.experts = 3;
  ExpectAsOnOneRank(uneven, {.uneven = true}, {"tp=4", "ep=2", "ep=2,tp=2"});
}

// What the step of a model moves, without the reduction of gradients.
TrafficTable TrafficOf(const TransformerConfig& config, const std::string& mesh) {
  TrafficTable traffic;
  const int ranks = DeviceMesh::Parse(mesh)->size();
  DT_EXPECT_OK(Simulate(0, ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh on, DeviceMesh::Parse(mesh));
    Transformer model(config);
    DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, on, {}).status());
    const TensorOr ids = Full(context, Layout::Replicated(on, 2), {4, 8}, DType::kI64, 1);
    DT_ASSIGN_OR_RETURN(const auto results, model.Call({ids}));
    DT_RETURN_IF_ERROR(Backward(Sum(results[0], {0, 1, 2})));
    traffic = context.communicator().traffic();
    return absl::OkStatus();
  }));
  return traffic;
}

// They lie with the heads.
TEST(Mixture, SinksMoveNothing) {
  TransformerConfig without = ConfigWithClamp();
  without.attention_sinks = false;
  for (const std::string mesh : {"dp=2,tp=2", "ep=2,tp=2", "cp=2,tp=2"}) {
    EXPECT_EQ(CallsOf(TrafficOf(ConfigWithClamp(), mesh)), CallsOf(TrafficOf(without, mesh)))
        << mesh;
  }
}

TEST(Mixture, RefusesImpossibleNumbers) {
  TransformerConfig config = Config();
  config.experts_per_token = 5;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("experts_per_token is 5")));
  config.experts_per_token = 0;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("experts_per_token is 0")));
  config = Config();
  config.experts = -1;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("experts is -1")));
  config = Config();
  config.fused_projections = true;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("fused_projections")));
  config = Config();
  config.dense_layers = {0, config.layers};
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("dense_layers has 2, and layers are 0 to 1")));
  config.dense_layers = {1, 0};
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("all layers are in dense_layers")));
  config = Config();
  config.shared_hidden = -1;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("shared_hidden is -1")));
  config.experts = 0;
  config.shared_hidden = 8;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("shared_hidden is set")));
  config.shared_hidden = 0;
  config.dense_hidden = 8;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("dense_hidden is set")));
  config.dense_hidden = 0;
  config.router_score = RouterScore::kSigmoid;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("router_score is set")));
  config.router_score = RouterScore::kSoftmax;
  config.picked_groups = 2;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("picked_groups is set")));
  config.picked_groups = 1;
  config.router_sums = true;
  EXPECT_THAT(config.Validate(), Refuses(HasSubstr("router_sums is set")));
}

TEST(Mixture, RefusesImpossibleLatentAttention) {
  TransformerConfig latent = SmallTransformer();
  latent.kv_lora_rank = 4;
  latent.head_size = 6;
  latent.rotary_dim = 2;
  latent.v_head_dim = 4;
  latent.kv_heads = latent.heads;
  DT_EXPECT_OK(latent.Validate());
  const auto refuses = [&](const std::function<void(TransformerConfig&)>& change,
                           const std::string& words) {
    TransformerConfig config = latent;
    change(config);
    EXPECT_THAT(config.Validate(), Refuses(HasSubstr(words)));
  };
  refuses([](auto& c) { c.kv_lora_rank = 0; }, "v_head_dim is set, which only latent attention");
  refuses([](auto& c) { c.v_head_dim = 0; }, "v_head_dim is 0");
  refuses([](auto& c) { c.rotary_dim = 6; }, "with latent attention give fewer");
  refuses([](auto& c) { c.rotary_dim = -2; }, "rotary_dim is -2");
  refuses([](auto& c) { c.qk_norm = true; }, "qk_norm is set, which latent attention has not");
  refuses([](auto& c) { c.window = 3; }, "window is set, which latent attention has not");
  refuses([](auto& c) { c.fused_projections = true; }, "fused_projections is set");
  refuses([](auto& c) { c.kv_heads = 4; }, "kv_heads is 4 and heads 8; with latent attention");
  refuses([](auto& c) { c.attention_scale = -1; }, "attention_scale is -1");
  TransformerConfig usual = SmallTransformer();
  usual.rotary_dim = 2 * usual.head_dim();
  EXPECT_THAT(usual.Validate(), Refuses(HasSubstr("give no more")));
}

// A style of experts where there are none.
TEST(Mixture, RefusesOtherModules) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(SmallTransformer());
    const ParallelPlan plan({{"model.layers.*.mlp.up_proj", ExpertParallel("tp")}});
    EXPECT_THAT(plan.Apply(model, context, *DeviceMesh::Parse("tp=2"), {}),
                Refuses(AllOf(HasSubstr("ExpertParallel(\"tp\""), HasSubstr("experts"))));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
