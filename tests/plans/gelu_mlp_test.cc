// A GELU MLP with biases and dropout by plans: outputs and gradients of one rank on every mesh, one
// reduction a pass, and masks that do not depend on the mesh; recomputed or not.
#include "dtensor/nn/gelu_mlp.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kBatch = 2, kSequence = 6, kDim = 8, kHidden = 12;

struct Case {
  std::string mesh;
  bool sequence_parallel = false, recompute = false, training = true;
};

struct Outcome {
  std::vector<double> y;
  std::map<std::string, std::vector<double>> gradients;
  std::map<std::string, int64_t> collectives;  // of forward, on "tp"
};

// Biases that are not 0.
void SetBiases(Module& model) {
  model.VisitParameters([](const std::string&, Parameter& parameter) {
    if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(1);
  });
}

absl::StatusOr<Outcome> RunCase(Context& context, const Case& c) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  context.random().seed = 11;
  Sequential model;
  model.Append(std::make_unique<GeluMlp>(kDim, kHidden));
  model.Append(std::make_unique<DropoutLayer>(0.3));
  model.SetDType(DType::kF64);
  SetBiases(model);
  model[0].set_recomputes(c.recompute);
  model.SetTraining(c.training);
  const Placement residual = c.sequence_parallel ? Shard(1) : Replicate();
  ParallelPlan plan;
  if (mesh.Find("tp").ok()) {
    plan = ParallelPlan({{"0.up_proj", Colwise("tp")}, {"0.down_proj", Rowwise("tp", residual)}});
  }
  if (mesh.Find("dp").ok()) plan.Add({"", DataParallel("dp")});
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 2}));
  const TensorOr x = RandomNormal(context, Layout::Replicated(mesh, 3), {kBatch, kSequence, kDim},
                                  {.seed = 5, .dtype = DType::kF64});
  context.communicator().ResetTraffic();
  DT_ASSIGN_OR_RETURN(const auto y, model(x));
  Outcome outcome;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    if (key.first == "tp") outcome.collectives[std::string(ToString(key.second))] += traffic.calls;
  }
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2})));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_ASSIGN_OR_RETURN(outcome.y, ToGlobal<double>(y.Detach()));
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    auto values = ToGlobal<double>(parameter.tensor.grad());
    if (status.ok()) status = values.status();
    if (values.ok()) outcome.gradients[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return outcome;
}

Outcome RunOn(const Case& c) {
  Outcome outcome;
  DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(c.mesh)->size(), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(Outcome mine, RunCase(context, c));
    if (context.rank() == 0) outcome = std::move(mine);
    return absl::OkStatus();
  }));
  return outcome;
}

void ExpectSame(const Outcome& outcome, const Outcome& reference, const std::string& what) {
  EXPECT_LE(RelativeRms(outcome.y, reference.y), 1e-13) << what;
  ASSERT_EQ(outcome.gradients.size(), 4) << what;
  for (const auto& [path, gradient] : reference.gradients) {
    EXPECT_LE(RelativeRms(outcome.gradients.at(path), gradient), 1e-13) << what << " " << path;
  }
}

TEST(GeluMlp, IsTheSameOnEveryMesh) {
  const Outcome one = RunOn({"tp=1"});
  for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "dp=2", "dp=2,tp=2"}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const bool recompute : {false, true}) {
        ExpectSame(RunOn({mesh, sequence_parallel, recompute}), one, mesh);
      }
    }
  }
}

TEST(GeluMlp, DropsOutWhileItTrainsAlone) {
  const Outcome training = RunOn({"tp=2"}), evaluated = RunOn({.mesh = "tp=2", .training = false});
  int64_t dropped = 0;
  for (size_t i = 0; i < training.y.size(); ++i) {
    dropped += training.y[i] == 0;
    if (training.y[i] != 0) {
      EXPECT_NEAR(training.y[i], evaluated.y[i] / 0.7, 1e-12);
    }
  }
  EXPECT_GT(dropped, 10);  // of 96
  EXPECT_LT(dropped, 50);
}

TEST(GeluMlp, ReducesOnceThoughItHasBiases) {
  EXPECT_THAT(RunOn({"tp=2"}).collectives, ElementsAre(Pair("all-reduce", 1)));
  EXPECT_THAT(RunOn({"tp=2", true}).collectives, ElementsAre(Pair("reduce-scatter", 1)));
}

}  // namespace
}  // namespace dtensor
