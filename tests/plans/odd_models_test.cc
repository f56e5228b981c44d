// Models that plans might get wrong: parameters shared in odd places, frozen ones, buffers, layers
// that are recomputed in one place but not in another. Each trains as on one rank without a plan.
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/testing/shared_models.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/plans/train_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kDim = 8;

ModulePtr Twice() { return TwoLinearsOfOneWeight(kDim); }

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
                         return TrainModule(
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
  const auto make = [] { return std::make_unique<TiedModel>(kWords, kDim, true); };
  for (const std::string frozen : {"embed.weight", "mid.weight"}) {
    for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"mid"}, {""}}) {
      const ModuleRun program{make, {4, 6}, recomputed, {frozen}};
      EXPECT_EQ(TrainModuleOn(program, {}).gradients.size(), 1);
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

}  // namespace
}  // namespace dtensor
