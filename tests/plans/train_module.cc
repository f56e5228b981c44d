#include "dtensor/tests/plans/train_module.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using Values = ModuleOutcome::Values;

TensorOr Operand(Context& context, const DeviceMesh& mesh, const Dims& shape) {
  const Layout whole = Layout::Replicated(mesh, static_cast<int>(shape.size()));
  if (shape.size() > 2) {
    return RandomNormal(context, whole, shape, {.seed = 5, .dtype = DType::kF64});
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < NumElements(shape); ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % kWords));
  }
  return Distribute<int32_t>(context, whole, shape, ids);
}

// On every rank of the mesh, whatever stage has it.
absl::StatusOr<std::vector<double>> ReadOn(const DeviceMesh& mesh, const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                      x.Detach().Redistribute(Layout::Replicated(mesh, x.ndim())));
  return ToGlobal<double>(whole);
}

}  // namespace

absl::StatusOr<Values> ValuesOn(const DeviceMesh& mesh, Module& model, bool gradients) {
  Values all;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    const DistributedTensor tensor = gradients ? parameter.tensor.grad() : parameter.tensor;
    if (!tensor.defined()) return;
    auto values = ReadOn(mesh, tensor);
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

absl::StatusOr<ModuleOutcome> TrainModule(Context& context, const ModuleRun& run,
                                          const MeshAndPlan& place) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(place.plan));
  const ModulePtr model = run.make();
  model->SetDType(DType::kF64);
  model->VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (run.frozen.contains(path)) parameter.trained = false;
  });
  model->VisitModules([&](const std::string& path, Module& module) {
    module.set_recomputes(run.recomputed.contains(path));
  });
  DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {.seed = 7, .allow_uneven = true}));
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model->Parameters(), {}));
  ModuleOutcome outcome;
  for (int step = 0; step < 3; ++step) {
    const TensorOr x = Operand(context, mesh, run.x);
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto y, (*model)(x));
    if (step == 0) outcome.forward = context.communicator().traffic();
    std::vector<int> all(y.shape().size());
    std::iota(all.begin(), all.end(), 0);
    DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), all)));
    DT_RETURN_IF_ERROR(ReduceGradients(model->Parameters()));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(outcome.y, ReadOn(mesh, y));
      DT_ASSIGN_OR_RETURN(outcome.gradients, ValuesOn(mesh, *model, /*gradients=*/true));
    }
    DT_RETURN_IF_ERROR(adamw.Step(0.02));
    adamw.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(outcome.weights, ValuesOn(mesh, *model, /*gradients=*/false));
  return outcome;
}

ModuleOutcome TrainModuleOn(const ModuleRun& run, const MeshAndPlan& place) {
  const std::string what = absl::StrCat(place.mesh, "\n", place.plan);
  const auto ranks = OnSuiteRanks(DeviceMesh::Parse(place.mesh)->size(), [&](Context& context) {
    return TrainModule(context, run, place);
  });
  EXPECT_THAT(ranks, IsOk()) << what;
  if (!ranks.ok()) return {};
  for (const ModuleOutcome& other : *ranks) {
    EXPECT_TRUE(other.y == ranks->front().y && other.gradients == ranks->front().gradients &&
                other.weights == ranks->front().weights)
        << what;
  }
  return ranks->front();
}

namespace {

void ExpectSame(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [path, values] : want) {
    EXPECT_LE(RelativeRms(got.at(path), values), 1e-10) << path << " " << what;
  }
}

}  // namespace

void ExpectAsOnOneRank(const ModuleRun& run, const std::vector<MeshAndPlan>& places) {
  ModuleRun plain = run;
  plain.recomputed.clear();
  const ModuleOutcome one = TrainModuleOn(plain, {});
  EXPECT_FALSE(one.gradients.empty());
  for (const MeshAndPlan& place : places) {
    if (!SuiteHasRanks(DeviceMesh::Parse(place.mesh)->size())) continue;
    const ModuleOutcome outcome = TrainModuleOn(run, place);
    const std::string what = absl::StrCat("on ", place.mesh, "\n", place.plan);
    EXPECT_LE(RelativeRms(outcome.y, one.y), 1e-10) << what;
    ExpectSame(outcome.gradients, one.gradients, "gradient " + what);
    ExpectSame(outcome.weights, one.weights, "weight " + what);
  }
}

ModulePtr TwoLinearsOfOneWeight(int64_t features) {
  auto model = std::make_unique<Sequential>();
  const ParameterPtr weight =
      model->Append(std::make_unique<LinearLayer>(features, features, 0.3))->weight();
  model->Append(std::make_unique<RmsNormLayer>(features));
  model->Append(std::make_unique<LinearLayer>(weight));
  return model;
}

}  // namespace dtensor
