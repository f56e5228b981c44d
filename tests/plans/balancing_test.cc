// What balances the experts of a mixture: sums of router scores, biases that move by them, and the
// balancing loss.
#include "dtensor/nn/balancing.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/nn/mixture.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
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

// Two of its three blocks are mixtures, of 4 experts; with sigmoid scores they are in two groups of
// which one is picked.
TransformerConfig Config(RouterScore score = RouterScore::kSigmoid) {
  TransformerConfig config = SmallTransformer();
  config.layers = 3;
  config.dense_layers = {1};
  config.hidden = 12;
  config.experts = 4;
  config.experts_per_token = 2;
  config.router_sums = true;
  config.router_score = score;
  if (score == RouterScore::kSigmoid) config.expert_groups = 2;
  return config;
}

// By hand, of two tokens; in a 16-bit model with a product in f32, whose terms have 15 bits.
TEST(Balancing, SigmoidSumsAreOfScoresDividedByTheirSum) {
  const std::vector<double> x = {1.0078125, -0.50390625, 0.251953125, 2.015625};
  const std::vector<double> weight = {0.50390625, 1.0078125,    -1.0078125, 0.7578125,
                                      0.12109375, -0.251953125, 1.5078125,  0.251953125};
  const std::vector<double> bias = {0, 0.5, -0.25, 0};
  std::vector<double> want(8, 0);
  for (int token = 0; token < 2; ++token) {
    std::vector<double> score, choice;
    for (int e = 0; e < 4; ++e) {
      const double logit = x[2 * token] * weight[2 * e] + x[2 * token + 1] * weight[2 * e + 1];
      score.push_back(1 / (1 + std::exp(-logit)));
      choice.push_back(score[e] + bias[e]);
    }
    for (int e = 0; e < 4; ++e) {
      const auto before = [&](double other) { return other > choice[e]; };
      want[e] += absl::c_count_if(choice, before) < 2 ? 1 : 0;
      want[4 + e] += score[e] / absl::c_accumulate(score, 0.0);
    }
  }
  for (const DType dtype : {DType::kF64, DType::kBF16}) {
    DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
      MixtureConfig config{.dim = 2, .hidden = 2, .experts = 4, .experts_per_token = 2};
      config.score = RouterScore::kSigmoid;
      config.router_sums = true;
      MixtureOfExperts mixture(config);
      mixture.SetDType(dtype);
      mixture.router().weight()->init = ParameterInit::Values(weight);
      mixture.router().expert_bias()->init = ParameterInit::Values(bias);
      DT_RETURN_IF_ERROR(mixture.Materialize(context, mesh, 1));
      DT_ASSIGN_OR_RETURN(const auto wide,
                          Distribute<double>(context, mesh, {Replicate()}, {1, 2, 2}, x));
      DT_ASSIGN_OR_RETURN(const auto results, mixture.Call({Cast(wide, dtype)}));
      EXPECT_EQ(results[1].dtype(), dtype == DType::kF64 ? DType::kF64 : DType::kF32);
      DT_ASSIGN_OR_RETURN(const auto sums, Cast(results[1].Detach(), DType::kF64));
      DT_ASSIGN_OR_RETURN(const std::vector<double> got, ToGlobal<double>(sums));
      const double error = dtype == DType::kF64 ? 1e-14 : 1e-6;
      EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(error), want)) << ToString(dtype);
      return absl::OkStatus();
    }));
  }
}

// The counts of each of three rounds: two micro-batches forward, then the biases move.
absl::StatusOr<std::vector<std::vector<double>>> Rounds(Context& context, const DeviceMesh& mesh,
                                                        const std::string& preset) {
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, PresetPlan(preset, mesh, {.transformer = Config()}));
  Transformer model(Config());
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 5}));
  const NoGrad no_grad(context);
  std::vector<std::vector<double>> rounds;
  for (int round = 0; round < 3; ++round) {
    TensorOr sums;
    for (int micro = 0; micro < 2; ++micro) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 32; ++i) ids.push_back((i * i * 7 + 13 * micro + i) % kSmallVocab);
      const Layout whole = Layout::Replicated(mesh, 2);
      DT_ASSIGN_OR_RETURN(const auto results,
                          model.Call({Distribute<int32_t>(context, whole, {4, 8}, ids)}));
      sums = micro == 0 ? TensorOr(results[1]) : Add(sums, results[1]);
    }
    DT_RETURN_IF_ERROR(sums.status());
    DT_RETURN_IF_ERROR(BalanceByBias(model, *sums, 0.125));
    DT_ASSIGN_OR_RETURN(const auto counts,
                        Slice(sums->Redistribute(Layout::Replicated(mesh, 3)), 1, 0, 1));
    DT_ASSIGN_OR_RETURN(rounds.emplace_back(), ToGlobal<double>(counts));
  }
  return rounds;
}

// However experts, biases and layers are spread, each round picks what it does on one rank.
TEST(Balancing, MovesBiasesAlikeOnEveryMesh) {
  std::vector<std::vector<double>> want;
  for (const auto& [text, preset] : {std::pair<std::string, std::string>{"dp=1", "dp"},
                                     {"ep=2", "ep"},
                                     {"dp=2", "fsdp"},
                                     {"dp=2", "zero1"},
                                     {"dp=2", "zero2"},
                                     {"pp=2", "pp"},
                                     {"pp=2,tp=2", "pp+tp+sp"},
                                     {"pp=3,ep=2", "pp+ep"}}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    if (!SuiteHasRanks(mesh.size())) continue;
    const auto ranks =
        OnSuiteRanks(mesh.size(), [&](Context& context) { return Rounds(context, mesh, preset); });
    ASSERT_THAT(ranks, IsOk()) << text;
    if (want.empty()) {
      want = ranks->front();
      EXPECT_NE(want[0], want[1]);
      EXPECT_NE(want[1], want[2]);
    }
    for (const auto& rounds : *ranks) EXPECT_EQ(rounds, want) << text << " " << preset;
  }
}

// In a model of 16 bits, where steps of 0.001 would be lost from 1 on.
TEST(Balancing, BiasesStayF32) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    Transformer model(Config());
    model.SetDType(DType::kBF16);
    std::vector<ParameterPtr> biases;
    model.VisitModules([&](const std::string&, Module& module) {
      const auto* const mixture = dynamic_cast<MixtureOfExperts*>(&module);
      if (mixture != nullptr) biases.push_back(mixture->router().expert_bias());
    });
    EXPECT_EQ(biases.size(), 2);
    for (const ParameterPtr& bias : biases) bias->init = ParameterInit::Constant(2);
    DT_RETURN_IF_ERROR(FullyShardPlan("dp").Apply(model, context, mesh, {}));
    // The second mixture is even; the second rows are probabilities.
    const std::vector<float> sums = {9, 3, 4, 0, 7, 7, 7, 7, 5, 5, 5, 5, 7, 7, 7, 7};
    DT_ASSIGN_OR_RETURN(const auto x,
                        Distribute<float>(context, mesh, {Replicate()}, {2, 2, 4}, sums));
    for (int step = 0; step < 3; ++step) DT_RETURN_IF_ERROR(BalanceByBias(model, x, 1e-3));
    const float r = 3e-3F;
    for (size_t i = 0; i < biases.size(); ++i) {
      DT_ASSIGN_OR_RETURN(const auto whole,
                          biases[i]->tensor.Redistribute(Layout::Replicated(mesh, 1)));
      DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(whole));
      const std::vector<float> want =
          i == 0 ? std::vector<float>{2 - r, 2 + r, 2, 2 + r} : std::vector<float>(4, 2);
      EXPECT_THAT(values, testing::Pointwise(testing::FloatNear(1e-6), want));
    }
    return absl::OkStatus();
  }));
}

TEST(Balancing, MovesOnlyBiasesThatThereAre) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
    const auto sums = [&](const Dims& shape) {
      return *Full(context, mesh, {Replicate()}, shape, DType::kF32, 1);
    };
    Transformer softmax(Config(RouterScore::kSoftmax)), sigmoid(Config());
    DT_RETURN_IF_ERROR(sigmoid.Materialize(context, mesh, 1));
    EXPECT_THAT(BalanceByBias(softmax, sums({2, 2, 4}), 0.1),
                Refuses(HasSubstr("no mixture with sigmoid scores")));
    EXPECT_THAT(BalanceByBias(sigmoid, sums({1, 2, 4}), 0.1),
                Refuses(AllOf(HasSubstr("[1, 2, 4] f32"), HasSubstr("[2, 2, 4]"))));
    EXPECT_THAT(BalanceByBias(sigmoid, sums({2, 2, 4}), -1), Refuses(HasSubstr("rate is -1")));
    EXPECT_THAT(BalanceByBias(sigmoid, DistributedTensor(), 1), Refuses(HasSubstr("undefined")));
    Transformer without_memory(Config());
    EXPECT_THAT(BalanceByBias(without_memory, sums({2, 2, 4}), 1),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no memory")));
    return BalanceByBias(sigmoid, sums({2, 2, 4}), 0);
  }));
}

// Two layers, three experts, 4 tokens of two picks.
TEST(Balancing, LossIsThatOfTheWholeBatch) {
  const std::vector<double> sums = {4, 3, 1, 2, 1.5, 0.5, 2, 2, 4, 1, 1, 2};
  for (const std::string mesh : {"dp=1", "dp=2"}) {
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh on, DeviceMesh::Parse(mesh));
      std::vector<double> mine = sums;
      for (double& x : mine) x *= on.size() == 1 ? 1 : context.rank() == 0 ? 0.75 : 0.25;
      DT_ASSIGN_OR_RETURN(const Tensor local, FromHost<double>(context.device(), mine, {2, 2, 3}));
      DT_ASSIGN_OR_RETURN(DistributedTensor x,
                          FromLocal(context, on, {Partial()}, {2, 2, 3}, local));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const DistributedTensor loss, BalancingLoss(x, 4));
      DT_RETURN_IF_ERROR(Backward(loss));
      if (on.size() == 2) {  // the counts become whole; the loss stays a sum over the ranks
        EXPECT_THAT(CallsOf(context.communicator().traffic()),
                    ElementsAre(Pair("dp all-reduce", 1)));
        EXPECT_EQ(loss.ToString(), R"([] f64 on ["dp"=2] as P(sum: dp))");
      }
      // counts 6 5 5, probabilities 3 2.5 2.5, of 8 rows
      DT_ASSIGN_OR_RETURN(const std::vector<double> value, ToGlobal<double>(loss.Detach()));
      EXPECT_NEAR(value[0], 3 * (6 * 3 + 5 * 2.5 + 5 * 2.5) / 64, 1e-12);
      DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, ToGlobal<double>(x.grad()));
      for (int i = 0; i < 12; ++i) {
        const double count = i % 3 == 0 ? 6 : 5;
        EXPECT_NEAR(gradient[i], i / 3 % 2 == 0 ? 0 : 3 * count / 64, 1e-12) << i;
      }
      return absl::OkStatus();
    }));
  }
}

TEST(Balancing, LossRefusesWhatIsNoSums) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
    const auto sums = [&](const Dims& shape) {
      return Full(context, mesh, {Replicate()}, shape, DType::kF32, 1);
    };
    EXPECT_THAT(BalancingLoss(sums({2, 3}), 4).status(), Refuses(HasSubstr("[2, 3] f32")));
    EXPECT_THAT(BalancingLoss(sums({1, 3, 2}), 4).status(), Refuses(HasSubstr("2, experts")));
    EXPECT_THAT(BalancingLoss(sums({0, 2, 3}), 4).status(), Refuses(HasSubstr("a layer or more")));
    EXPECT_THAT(BalancingLoss(sums({1, 2, 3}), 0).status(), Refuses(HasSubstr("0 tokens")));
    EXPECT_THAT(BalancingLoss(TensorOr(absl::NotFoundError("x")), 4).status(),
                StatusIs(absl::StatusCode::kNotFound));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
