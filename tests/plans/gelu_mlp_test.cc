// A GELU MLP with biases and dropout under plans: outputs, gradients and weights equal those of one
// rank on every mesh, with one reduction per pass and masks that do not depend on the mesh,
// recomputed or not.
#include "dtensor/nn/gelu_mlp.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/plans/train_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kDim = 8, kHidden = 12;

// With biases that are not 0.
ModuleRun MlpRun(bool training = true) {
  const auto make = [training]() -> ModulePtr {
    auto model = std::make_unique<Sequential>();
    model->Append(std::make_unique<GeluMlp>(kDim, kHidden));
    model->Append(std::make_unique<DropoutLayer>(0.3));
    model->VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(1);
    });
    model->SetTraining(training);
    return model;
  };
  return {.make = make, .x = {2, 6, kDim}};
}

MeshAndPlan On(const std::string& mesh, bool sequence_parallel) {
  MeshAndPlan place{mesh, ""};
  if (mesh.find("tp") != std::string::npos) {
    place.plan = "{\"0.up_proj\", Colwise(\"tp\")}\n{\"0.down_proj\", Rowwise(\"tp\", out ";
    place.plan += sequence_parallel ? "S(1))}\n" : "R)}\n";
  }
  if (mesh.find("dp") != std::string::npos) place.plan += "{\"\", DataParallel(\"dp\")}\n";
  return place;
}

TEST(GeluMlp, IsTheSameOnEveryMesh) {
  std::vector<MeshAndPlan> places;
  for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "dp=2", "dp=2,tp=2"}) {
    for (const bool sequence_parallel : {false, true})
      places.push_back(On(mesh, sequence_parallel));
  }
  ModuleRun run = MlpRun();
  ExpectAsOnOneRank(run, places);
  run.recomputed = {"0"};
  ExpectAsOnOneRank(run, places);
}

TEST(GeluMlp, DropsOutWhileItTrainsAlone) {
  const std::vector<double> training = TrainModuleOn(MlpRun(), On("tp=2", false)).y,
                            evaluated = TrainModuleOn(MlpRun(false), On("tp=2", false)).y;
  ASSERT_EQ(training.size(), 96);
  ASSERT_EQ(evaluated.size(), 96);
  int64_t dropped = 0;
  for (size_t i = 0; i < training.size(); ++i) {
    dropped += training[i] == 0;
    if (training[i] != 0) {
      EXPECT_NEAR(training[i], evaluated[i] / 0.7, 1e-12);
    }
  }
  EXPECT_GT(dropped, 10);
  EXPECT_LT(dropped, 50);
}

TEST(GeluMlp, ReducesOnceThoughItHasBiases) {
  const auto calls = [](bool sequence_parallel) {
    std::vector<std::pair<CollectiveKind, int64_t>> all;
    for (const auto& [key, traffic] :
         TrainModuleOn(MlpRun(), On("tp=2", sequence_parallel)).forward)
      all.emplace_back(key.second, traffic.calls);
    return all;
  };
  EXPECT_THAT(calls(false), ElementsAre(Pair(CollectiveKind::kAllReduce, 1)));
  EXPECT_THAT(calls(true), ElementsAre(Pair(CollectiveKind::kReduceScatter, 1)));
}

}  // namespace
}  // namespace dtensor
