// Models that plans might get wrong: parameters shared in odd places, frozen ones, buffers, layers
// that are recomputed in one place and not in another, and sizes smaller than the mesh. Each trains
// as it does on one rank without a plan.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/adamw.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/shared_models.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;
using ModulePtr = std::unique_ptr<Module>;

constexpr int64_t kDim = 8, kVocab = 10;

struct Program {
  std::function<ModulePtr()> make;
  Dims x = {4, 6, kDim};  // [b, s]: ids below kVocab
  std::set<std::string> recomputed = {}, frozen = {};
};

struct Place {
  std::string mesh = "none=1", plan;
};

struct Outcome {
  std::vector<double> y;
  Values gradients, weights;  // of the first step; after three
};

TensorOr Operand(Context& context, const DeviceMesh& mesh, const Dims& shape) {
  const Layout whole = Layout::Replicated(mesh, static_cast<int>(shape.size()));
  if (shape.size() > 2) {
    return RandomNormal(context, whole, shape, {.seed = 5, .dtype = DType::kF64});
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < NumElements(shape); ++i)
    ids.push_back(static_cast<int32_t>(i * 7 % kVocab));
  return Distribute<int32_t>(context, whole, shape, ids);
}

absl::StatusOr<Values> Read(Module& model, bool gradients) {
  Values all;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    const DistributedTensor tensor = gradients ? parameter.tensor.grad() : parameter.tensor;
    if (!tensor.defined()) return;
    auto values = ToGlobal<double>(tensor);
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

absl::StatusOr<Outcome> TrainOn(Context& context, const Program& program, const Place& place) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(place.plan));
  const ModulePtr model = program.make();
  model->SetDType(DType::kF64);
  model->VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (program.frozen.contains(path)) parameter.trained = false;
  });
  model->VisitModules([&](const std::string& path, Module& module) {
    module.set_recomputes(program.recomputed.contains(path));
  });
  DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {.seed = 7, .allow_uneven = true}));
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model->Parameters(), {}));
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    DT_ASSIGN_OR_RETURN(const auto y, (*model)(Operand(context, mesh, program.x)));
    DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2})));
    DT_RETURN_IF_ERROR(ReduceGradients(model->Parameters()));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(outcome.y, ToGlobal<double>(y.Detach()));
      DT_ASSIGN_OR_RETURN(outcome.gradients, Read(*model, true));
    }
    DT_RETURN_IF_ERROR(adamw.Step(0.02));
    adamw.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(outcome.weights, Read(*model, false));
  return outcome;
}

Outcome RunOn(const Program& program, const Place& place) {
  Outcome outcome;
  EXPECT_THAT(RunRanks(DeviceMesh::Parse(place.mesh)->size(),
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(Outcome mine, TrainOn(context, program, place));
                         if (context.rank() == 0) outcome = std::move(mine);
                         return absl::OkStatus();
                       }),
              IsOk())
      << place.mesh << "\n"
      << place.plan;
  return outcome;
}

void ExpectSame(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [path, values] : want) {
    EXPECT_LE(RelativeRms(got.at(path), values), 1e-10) << path << " " << what;
  }
}

// As on one rank, where nothing is recomputed.
void ExpectAsOnOneRank(const Program& program, const std::vector<Place>& places) {
  Program plain = program;
  plain.recomputed.clear();
  const Outcome one = RunOn(plain, {});
  EXPECT_FALSE(one.gradients.empty());
  for (const Place& place : places) {
    const Outcome outcome = RunOn(program, place);
    const std::string what = absl::StrCat("on ", place.mesh, "\n", place.plan);
    EXPECT_LE(RelativeRms(outcome.y, one.y), 1e-10) << what;
    ExpectSame(outcome.gradients, one.gradients, "gradient " + what);
    ExpectSame(outcome.weights, one.weights, "weight " + what);
  }
}

// --- Shared parameters.

// y = x w, of the weight [features, dim] that makes features of x elsewhere.
class Decoder : public Module {
 public:
  explicit Decoder(ParameterPtr weight) : weight_(std::move(weight)) {
    AddParameter("weight", weight_, {DimRole::kInput, DimRole::kOutput});
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return MatMul(x, weight_->Value()); }

 private:
  const ParameterPtr weight_;
};

// "0" encodes, "1" decodes by the same weight.
ModulePtr Autoencoder() {
  auto model = std::make_unique<Sequential>();
  const ParameterPtr weight = model->Append(std::make_unique<LinearLayer>(kDim, 12, 0.5))->weight();
  model->Append(std::make_unique<Decoder>(weight));
  return model;
}

TEST(OddModels, AWeightThatIsUsedTransposedIsSplitColwiseAndRowwise) {
  const std::string split = "{\"0\", Colwise(\"tp\")}\n{\"1\", Rowwise(\"tp\", out S(1))}";
  const std::string across = "{\"0\", Rowwise(\"tp\")}\n{\"1\", Colwise(\"tp\")}";
  for (const std::set<std::string>& recomputed :
       {std::set<std::string>{}, {"0"}, {"1"}, {"0", "1"}, {""}}) {
    ExpectAsOnOneRank({.make = Autoencoder, .recomputed = recomputed},
                      {{"tp=2", split},
                       {"tp=3", split},
                       {"tp=2", across},
                       {"fs=2,tp=2", split + "\n{\"{0,1}\", FullyShard(\"fs\")}"},
                       {"fs=3", "{\"0\", FullyShard(\"fs\")}\n{\"1\", FullyShard(\"fs\")}"},
                       {"fs=3", "{\"1\", FullyShard(\"fs\")}"},
                       {"fs=2,dp=2", "{\"\", FullyShard(\"fs\")}\n{\"\", DataParallel(\"dp\")}"}});
  }
}

// "0" and "2" have one weight.
ModulePtr Twice() {
  auto model = std::make_unique<Sequential>();
  const ParameterPtr weight =
      model->Append(std::make_unique<LinearLayer>(kDim, kDim, 0.3))->weight();
  model->Append(std::make_unique<RmsNormLayer>(kDim));
  model->Append(std::make_unique<LinearLayer>(weight));
  return model;
}

TEST(OddModels, AWeightOfTwoLinearsIsSplitOneWay) {
  const std::string both = "{\"{0,2}\", Colwise(\"tp\")}", rows = "{\"{0,2}\", Rowwise(\"tp\")}";
  for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"0"}, {"2"}}) {
    ExpectAsOnOneRank({.make = Twice, .recomputed = recomputed},
                      {{"tp=2", both},
                       {"tp=3", both + "\n{\"1\", SequenceParallel(\"tp\")}"},
                       {"tp=4", rows},
                       {"tp=2,fs=2", rows + "\n{\"{0,2,}\", FullyShard(\"fs\")}"},
                       {"tp=2", "{\"0\", Colwise(\"tp\")}"},
                       {"tp=2", "{\"2\", Rowwise(\"tp\", out S(1))}"}});
  }
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) {
                         return TrainOn(
                                    context, {.make = Twice},
                                    {"tp=2", "{\"0\", Colwise(\"tp\")}\n{\"2\", Rowwise(\"tp\")}"})
                             .status();
                       }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("2.weight is 0.weight as well"), HasSubstr("S(1)"),
                             HasSubstr("{\"0\", Colwise(\"tp\")}"), HasSubstr("S(0)"))));
}

TEST(OddModels, ATowerIsRecomputedAndTheOtherIsNot) {
  const auto make = [] { return std::make_unique<TwoTowers>(kDim); };
  const std::string units = "{\"{a,b,a.proj}\", FullyShard(\"fs\")}\n{\"\", FullyShard(\"fs\")}";
  for (const std::string recomputed : {"a", "b", "a.proj", ""}) {
    ExpectAsOnOneRank({.make = make, .recomputed = {recomputed}},
                      {{"fs=2", units},
                       {"fs=3", "{\"{a,b}\", FullyShard(\"fs\")}"},
                       {"fs=2", "{\"b\", FullyShard(\"fs\")}"},
                       {"tp=2", "{\"b.proj\", Colwise(\"tp\")}"},
                       {"tp=2,fs=2", "{\"a.proj\", Rowwise(\"tp\", out S(1))}\n" + units}});
  }
}

// Adds its layer's bias once more, and its gain, which a layer inside has too.
class Outer : public Module {
 public:
  Outer()
      : gain_(Parameter::New({kDim}, ParameterInit::Normal(1))),
        inner_(kDim, kDim, 0.4, {}, LinearLayer::Bias::kAdded),
        norm_(kDim) {
    inner_.bias()->init = ParameterInit::Normal(1);
    AddChild("inner", &inner_);
    AddChild("norm", &norm_);
    AddParameter("gain", gain_);
    AddParameter("bias", inner_.bias(), {DimRole::kOutput});
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr y = Mul(Add(inner_(x), inner_.bias()->Value()), gain_->Value());
    return Add(norm_(y), Mul(inner_(y), norm_.weight()->Value()));
  }

 private:
  const ParameterPtr gain_;
  LinearLayer inner_;
  RmsNormLayer norm_;
};

TEST(OddModels, AModuleUsesWhatItsChildrenHave) {
  for (const std::set<std::string>& recomputed :
       {std::set<std::string>{}, {"inner"}, {"norm"}, {""}, {"", "inner"}}) {
    ExpectAsOnOneRank(
        {.make = [] { return std::make_unique<Outer>(); }, .recomputed = recomputed},
        {{"tp=2", "{\"inner\", Colwise(\"tp\")}"},
         {"tp=4", "{\"inner\", Colwise(\"tp\", out S(1))}\n{\"norm\", SequenceParallel(\"tp\")}"},
         {"tp=3", "{\"inner\", Colwise(\"tp\", out R)}"},
         {"fs=2", "{\"inner\", FullyShard(\"fs\")}"},
         {"fs=3", "{\"{inner,norm,}\", FullyShard(\"fs\")}"},
         {"fs=2", "{\"{norm,}\", FullyShard(\"fs\", 1)}\n{\"inner\", FullyShard(\"fs\", 2)}"},
         {"fs=2,tp=2", "{\"inner\", Colwise(\"tp\")}\n{\"{inner,}\", FullyShard(\"fs\")}"}});
  }
}

// --- Frozen parameters and buffers.

TEST(OddModels, FrozenParametersStayAndTheOthersTrain) {
  const auto make = [] { return std::make_unique<TiedModel>(kVocab, kDim, true); };
  for (const std::string frozen : {"embed.weight", "mid.weight"}) {
    for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"mid"}, {""}}) {
      const Program program{make, {4, 6}, recomputed, {frozen}};
      EXPECT_EQ(RunOn(program, {}).gradients.size(), 1);
      ExpectAsOnOneRank(
          program, {{"fs=2", "{\"{embed,mid,}\", FullyShard(\"fs\")}"},
                    {"fs=3", "{\"\", FullyShard(\"fs\", 1)}"},
                    {"fs=2", "{\"{mid,}\", FullyShard(\"fs\", 2)}"},
                    {"tp=2",
                     "{\"embed\", VocabParallel(\"tp\", out S(1))}\n"
                     "{\"mid\", Rowwise(\"tp\")}\n{\"head\", VocabParallel(\"tp\")}"},
                    {"dp=2,fs=2", "{\"\", DataParallel(\"dp\")}\n{\"\", FullyShard(\"fs\")}"}});
    }
  }
}

// x * scale + shift, of a buffer [dim] and one without dimensions.
class Shifted : public Module {
 public:
  explicit Shifted(ParameterPtr scale)
      : scale_(std::move(scale)), shift_(Parameter::New({}, ParameterInit::Constant(0.5))) {
    AddBuffer("scale", scale_, {DimRole::kOutput});
    AddBuffer("shift", shift_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return Add(Mul(x, scale_->Value()), shift_->Value());
  }

 private:
  const ParameterPtr scale_, shift_;
};

// "0" and "2" share a buffer.
ModulePtr WithBuffers() {
  auto model = std::make_unique<Sequential>();
  const ParameterPtr scale =
      Parameter::New({kDim}, ParameterInit::Values({1, 2, 3, 4, 5, 6, 7, 8}));
  model->Append(std::make_unique<Shifted>(scale));
  model->Append(std::make_unique<LinearLayer>(kDim, kDim, 0.1));
  model->Append(std::make_unique<Shifted>(scale));
  return model;
}

TEST(OddModels, BuffersGoWithTheirModules) {
  for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"0"}, {"1", "2"}}) {
    ExpectAsOnOneRank(
        {.make = WithBuffers, .recomputed = recomputed},
        {{"fs=2", "{\"{0,1,2}\", FullyShard(\"fs\")}"},
         {"fs=3", "{\"\", FullyShard(\"fs\")}"},
         {"fs=2", "{\"0\", FullyShard(\"fs\", 2)}"},
         {"tp=2", "{\"{0,2}\", SequenceParallel(\"tp\")}"},
         {"tp=3", "{\"{0,1,2}\", Colwise(\"tp\")}"},
         {"tp=2,fs=2", "{\"{0,2}\", Colwise(\"tp\")}\n{\"{0,}\", FullyShard(\"fs\")}"}});
  }
}

// --- Sizes smaller than the mesh.

TEST(OddModels, BatchesAndSequencesMayBeSmallerThanTheMeshAndEmpty) {
  for (const Dims& x : {Dims{0, 6, kDim}, Dims{1, 1, kDim}, Dims{2, 3, kDim}, Dims{4, 0, kDim}}) {
    for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"0"}, {"1"}}) {
      ExpectAsOnOneRank(
          {.make = Twice, .x = x, .recomputed = recomputed},
          {{"dp=4", "{\"\", DataParallel(\"dp\")}"},
           {"fs=4", "{\"{0,1,}\", FullyShard(\"fs\")}"},
           {"tp=4", "{\"{0,2}\", Rowwise(\"tp\", out S(1))}\n{\"1\", SequenceParallel(\"tp\")}"},
           {"dp=2,fs=3", "{\"\", FullyShard(\"fs\")}\n{\"\", DataParallel(\"dp\")}"},
           {"fs=2,tp=4",
            "{\"{0,2}\", Colwise(\"tp\", out S(1))}\n{\"{0,}\", FullyShard(\"fs\")}"}});
    }
  }
}

TEST(OddModels, FeaturesAndWordsMayBeFewerThanRanks) {
  const auto narrow = [] {
    auto model = std::make_unique<Sequential>();
    model->Append(std::make_unique<EmbeddingLayer>(kVocab, 2, 0.5));
    model->Append(
        std::make_unique<LinearLayer>(2, 3, 0.5, LinearLayer::Units(), LinearLayer::Bias::kAdded));
    model->Append(
        std::make_unique<LinearLayer>(3, 1, 0.5, LinearLayer::Units(), LinearLayer::Bias::kAdded));
    return model;
  };
  ExpectAsOnOneRank({.make = narrow, .x = {2, 3}},
                    {{"tp=4",
                      "{\"0\", VocabParallel(\"tp\", out S(1))}\n{\"1\", Colwise(\"tp\")}\n"
                      "{\"2\", Rowwise(\"tp\", out S(1))}"},
                     {"tp=8",
                      "{\"0\", Colwise(\"tp\")}\n{\"1\", Rowwise(\"tp\", out S(-1))}\n"
                      "{\"2\", VocabParallel(\"tp\")}"},
                     {"tp=16", "{\"0\", VocabParallel(\"tp\")}\n{\"1\", Colwise(\"tp\")}"},
                     {"fs=8", "{\"{0,1,2}\", FullyShard(\"fs\")}"},
                     {"fs=3,tp=4",
                      "{\"0\", VocabParallel(\"tp\")}\n{\"1\", Colwise(\"tp\")}\n"
                      "{\"2\", Rowwise(\"tp\")}\n{\"{0,1,2,}\", FullyShard(\"fs\")}"}});
}

}  // namespace
}  // namespace dtensor
