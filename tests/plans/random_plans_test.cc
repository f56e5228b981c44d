// Random plans on random models: outputs, each parameter's gradient, and weights after five steps
// of AdamW are those of one rank. Random are the styles, edges, sharding between uses,
// recomputation, what is kept for Backward, when gradients are reduced, which modules and weights
// are shared, what is frozen, and the number of tokens. DTENSOR_SEED repeats the slow test, and
// DTENSOR_SECONDS sets how long it runs.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/gelu_mlp.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/fully_shard.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/slow_test_time.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kDim = 6;

// What follows from a seed alone.
class Choices {
 public:
  explicit Choices(uint32_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % n); }
  template <typename T>
  const T& OneOf(const std::vector<T>& all) {
    return all[Below(static_cast<int>(all.size()))];
  }

 private:
  std::mt19937 random_;
};

// x + inner(x).
class Residual : public Module {
 public:
  explicit Residual(std::unique_ptr<Module> inner) : inner_(std::move(inner)) {
    AddChild("inner", inner_.get());
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return Add(x, (*inner_)(x)); }

 private:
  std::unique_ptr<Module> inner_;
};

// A module that stands elsewhere as well.
class Again : public Module {
 public:
  explicit Again(Module& other) : other_(other) { AddChild("other", &other_); }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return other_(x); }

 private:
  Module& other_;
};

// `parts`: what the model has so far.
std::unique_ptr<Module> MakePart(Choices& choices, const ModuleList& parts,
                                 std::vector<ParameterPtr>& weights) {
  if (parts.size() > 0 && choices.Below(6) == 0) {
    return std::make_unique<Again>(parts[choices.Below(parts.size())]);
  }
  if (!weights.empty() && choices.Below(6) == 0) {
    return std::make_unique<LinearLayer>(choices.OneOf(weights));
  }
  const auto bias = choices.Below(2) == 0 ? LinearLayer::Bias::kNone : LinearLayer::Bias::kAdded;
  switch (choices.Below(6)) {
    case 0:
      return std::make_unique<LayerNormLayer>(kDim);
    case 1:
      return std::make_unique<RmsNormLayer>(kDim);
    case 2:
      return std::make_unique<DropoutLayer>(0.2);
    case 3: {
      const int64_t unit = choices.OneOf<int64_t>({1, 2, 3});
      auto linear =
          std::make_unique<LinearLayer>(kDim, kDim, 0.5, LinearLayer::Units{unit, unit}, bias);
      weights.push_back(linear->weight());
      return linear;
    }
    default: {
      GeluMlpOptions options;
      options.bias = bias == LinearLayer::Bias::kAdded;
      options.up_stddev = options.down_stddev = 0.5;
      return std::make_unique<GeluMlp>(kDim, choices.OneOf<int64_t>({4, 5, 9}), options);
    }
  }
}

void MakeModel(uint32_t seed, Sequential& model) {
  Choices choices(seed);
  std::vector<ParameterPtr> weights;
  const int parts = 2 + choices.Below(4);
  for (int i = 0; i < parts; ++i) {
    std::unique_ptr<Module> part = MakePart(choices, model, weights);
    if (choices.Below(3) == 0) part = std::make_unique<Residual>(std::move(part));
    model.Append(std::move(part));
  }
  model.SetDType(DType::kF64);
  model.VisitParameters([&](const std::string&, Parameter& parameter) {
    if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(1);
    parameter.trained = choices.Below(8) != 0;
  });
}

Dims OperandOf(uint32_t seed) {
  Choices choices(seed + 2);
  return {choices.OneOf<int64_t>({4, 4, 4, 2, 1, 0}), choices.OneOf<int64_t>({6, 6, 6, 4, 1}),
          kDim};
}

std::optional<Placement> AnyEdge(Choices& choices) {
  return choices.OneOf<std::optional<Placement>>(
      {std::nullopt, Replicate(), Shard(0), Shard(1), Shard(-1)});
}

// Nothing: no line.
std::optional<ParallelStyle> StyleFor(const Module& module, const std::string& axis,
                                      Choices& choices) {
  const bool splits = !module.own_parameters().empty() && !module.own_parameters()[0].roles.empty();
  switch (choices.Below(splits ? 8 : 4)) {
    case 0:
      return std::nullopt;
    case 1:
      return SequenceParallel(axis);
    case 2:
      return Edges(axis, AnyEdge(choices), AnyEdge(choices));
    case 3:
      return Replicated(axis);
    case 4:
    case 5:
      return Colwise(axis, AnyEdge(choices));
    case 6:
      return ShardParameters(axis);
    default:
      return Rowwise(axis, AnyEdge(choices).value_or(Replicate()), AnyEdge(choices));
  }
}

ParallelPlan MakePlan(Sequential& model, const DeviceMesh& mesh, Choices& choices) {
  ParallelPlan plan;
  for (const DeviceMesh::Axis& axis : mesh.axes()) {
    const int shards = choices.Below(3);
    model.VisitModules([&](const std::string& path, Module& module) {
      if (axis.name != "dp") {
        const auto style = StyleFor(module, axis.name, choices);
        if (style && !path.empty()) plan.Add({path, *style});
      } else if (path.empty() && shards > 0) {
        plan.Add({"", shards == 1 ? ParallelStyle(DataParallel("dp")) : FullyShard("dp")});
      } else if (shards == 2 && choices.Below(3) == 0) {
        plan.Add({path, FullyShard("dp", 1 + choices.Below(3))});
      }
    });
  }
  return plan;
}

using Values = std::map<std::string, std::vector<double>>;

struct Outcome {
  std::vector<double> y;
  Values gradients, weights;  // of two micro-batches; after all steps
  std::string text;           // the plan, and how it is trained
};

// How a model is trained, beside its plan.
struct Training {
  ParallelPlanOptions options = {.seed = 7, .allow_uneven = true};
  int64_t bucket_bytes = 0;
  std::string ToString() const {
    return absl::StrCat("recomputed: ", absl::StrJoin(options.recompute, " "),
                        options.recompute_keeps_collectives ? " (collectives are kept)" : "",
                        options.keep_gathered ? "; keeps what is gathered" : "", "; buckets of ",
                        bucket_bytes);
  }
};

Training MakeTraining(Sequential& model, Choices& choices) {
  Training training;
  model.VisitModules([&](const std::string& path, Module&) {
    if (!path.empty() && choices.Below(5) == 0) training.options.recompute.push_back(path);
  });
  training.options.recompute_keeps_collectives = choices.Below(2) == 0;
  training.options.keep_gathered = choices.Below(2) == 0;
  training.bucket_bytes = choices.OneOf<int64_t>({0, 1, 500, kBucketBytes});
  return training;
}

absl::StatusOr<Values> Read(Module& model, bool gradients) {
  Values all;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    EXPECT_TRUE(!gradients || parameter.tensor.grad().defined() == parameter.trained) << path;
    if (gradients && !parameter.tensor.grad().defined()) return;
    auto values = ToGlobal<double>(gradients ? parameter.tensor.grad() : parameter.tensor.Detach());
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

// Of two micro-batches, each of a tape of its own; the last one reduces, or one before it too.
absl::Status AddGradients(Context& context, Sequential& model, const TensorOr& x, uint32_t seed,
                          int64_t bucket_bytes) {
  for (int micro = 0; micro < 2; ++micro) {
    context.random() = {seed, 0};
    DT_ASSIGN_OR_RETURN(const auto y, model(x));
    const bool reduces = micro == 1 || bucket_bytes == 1;
    DT_RETURN_IF_ERROR(
        Backward(Sum(Mul(y, y), {0, 1, 2}), {.bucket_bytes = reduces ? bucket_bytes : 0}));
  }
  return ReduceGradients(model.Parameters());
}

absl::StatusOr<Outcome> RunModel(Context& context, const DeviceMesh& mesh, uint32_t seed) {
  context.random() = {seed, 0};
  Sequential model;
  MakeModel(seed, model);
  Choices choices(seed + 1);
  const ParallelPlan plan = MakePlan(model, mesh, choices);
  const Training training =
      mesh.num_axes() == 0 ? Training() : MakeTraining(model, choices);  // one rank: all is kept
  Outcome outcome;
  outcome.text = absl::StrCat("\n", plan.ToString(), "\n", training.ToString());
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, training.options));
  const TensorOr x = RandomNormal(context, Layout::Replicated(mesh, 3), OperandOf(seed),
                                  {.seed = 5, .dtype = DType::kF64});
  DT_ASSIGN_OR_RETURN(const auto y, model(x));
  DT_ASSIGN_OR_RETURN(outcome.y, ToGlobal<double>(y.Detach()));
  if (model.Parameters().empty()) return outcome;
  DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(model.Parameters(), {}));
  for (int step = 0; step < 5; ++step) {
    DT_RETURN_IF_ERROR(AddGradients(context, model, x, seed, training.bucket_bytes));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(outcome.gradients, Read(model, /*gradients=*/true));
    }
    DT_RETURN_IF_ERROR(optimizer.Step(0.01));
    optimizer.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(outcome.weights, Read(model, /*gradients=*/false));
  return outcome;
}

std::string Difference(const std::vector<double>& got, const std::vector<double>& want,
                       double tolerance = 1e-10) {
  if (got.size() != want.size()) return absl::StrCat(got.size(), " values");
  double largest = 1e-3;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance * largest)) {
      return absl::StrCat("element ", i, " is ", got[i], ", not ", want[i]);
    }
  }
  return "";
}

absl::Status Compare(const Outcome& got, const Outcome& want) {
  const auto wrong = [&](absl::string_view what, const std::string& difference) {
    return absl::InternalError(absl::StrCat(what, ": ", difference, got.text));
  };
  if (const auto difference = Difference(got.y, want.y); !difference.empty()) {
    return wrong("y", difference);
  }
  for (const auto& [path, gradient] : want.gradients) {
    const auto difference = Difference(got.gradients.at(path), gradient);
    if (!difference.empty()) return wrong(absl::StrCat("gradient of ", path), difference);
  }
  // A gradient that is nothing but noise still moves a weight, by lr noise / eps a step.
  for (const auto& [path, weight] : want.weights) {
    const auto difference = Difference(got.weights.at(path), weight, 1e-8);
    if (!difference.empty()) return wrong(absl::StrCat("weight ", path), difference);
  }
  return absl::OkStatus();
}

// Returns how many of the plans were refused. Other errors fail the test.
int Try(const std::string& mesh_text, uint32_t first, int models) {
  const DeviceMesh mesh = *DeviceMesh::Parse(mesh_text);
  int refused = 0;
  for (int i = 0; i < models; ++i) {
    const uint32_t seed = first + 2 * i;
    Outcome want;
    DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(want, RunModel(context, DeviceMesh(), seed));
      return absl::OkStatus();
    }));
    std::vector<int> refusals(mesh.size());
    const absl::Status status = RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      const absl::StatusOr<Outcome> got = RunModel(context, mesh, seed);
      refusals[context.rank()] = absl::IsInvalidArgument(got.status());
      if (refusals[context.rank()] != 0) return absl::OkStatus();
      DT_RETURN_IF_ERROR(got.status());
      return Compare(*got, want);
    });
    EXPECT_THAT(status, IsOk()) << "model " << seed << " on " << mesh_text;
    EXPECT_EQ(*std::min_element(refusals.begin(), refusals.end()), refusals[0]) << "model " << seed;
    refused += refusals[0];
    if (::testing::Test::HasFailure()) break;
  }
  return refused;
}

TEST(RandomPlans, GiveWhatOneRankGives) {
  constexpr int kModels = 15;
  int tried = 0, refused = 0;
  for (const std::string mesh :
       {"tp=2", "tp=3", "dp=2", "dp=2,tp=2", "tp=2,dp=3", "dp=2,tp=2,up=2"}) {
    refused += Try(mesh, 1, kModels);
    tried += kModels;
  }
  EXPECT_LT(refused * 3, tried) << refused << " of " << tried << " plans were refused";
}

TEST(RandomPlans, SlowGiveWhatOneRankGives) {
  const std::string meshes[] = {"tp=2", "tp=4", "dp=3", "dp=2,tp=3", "tp=2,dp=2", "dp=2,tp=2,up=2"};
  const SlowTestTime time;
  TestRandom random;
  int models = 0, refused = 0;
  for (; time.Left() && !HasFailure(); models += 50) {
    refused += Try(meshes[random.Below(6)], static_cast<uint32_t>(random.Below(1 << 30)), 50);
  }
  std::cout << models << " plans, " << refused << " refused\n";
  EXPECT_LT(refused * 2, models);
}

}  // namespace
}  // namespace dtensor
