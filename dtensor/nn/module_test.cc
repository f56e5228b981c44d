// What a module tells about itself, and edges that a caller sets. Modules inside models, with plans
// or without: parallel_plans/parallel_plan_test.cc, shared_parameters_test.cc.
#include "dtensor/nn/module.h"

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/latent_attention.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const OwnParameter& Weight(const Module& layer) { return layer.own_parameters().at(0); }

TEST(Layers, SayWhatTheirDimensionsAre) {
  EXPECT_THAT(Weight(LinearLayer(4, 8, 1)).roles, ElementsAre(DimRole::kOutput, DimRole::kInput));
  EXPECT_THAT(Weight(EmbeddingLayer(12, 4, 1)).roles, ElementsAre(DimRole::kRow, DimRole::kOutput));
  EXPECT_THAT(Weight(RmsNormLayer(4)).roles, IsEmpty());
}

TEST(Layers, SayOfWhatPiecesAndPartsTheyAre) {
  const Conv1dLayer three(4, 24, 1, {.out = 2, .out_pieces = 3});
  EXPECT_THAT(Weight(three).roles, ElementsAre(DimRole::kInput, DimRole::kOutput));
  EXPECT_THAT(Weight(three).parameter->shape, ElementsAre(4, 24));
  EXPECT_EQ(Weight(three).parameter->piece_size(0), 4);
  EXPECT_EQ(Weight(three).parameter->piece_size(1), 8);
  EXPECT_EQ(Weight(three).parameter->unit(1, 2), 2);
  EXPECT_EQ(three.bias()->piece_size(0), 8);
  EXPECT_EQ(LinearLayer(4, 8, 1).weight()->num_pieces(0), 1);
}

// A number of pieces, or rows of parts, that cannot be is refused where the parameter gets memory.
TEST(Parameter, IsRefusedWithPiecesOrPartsThatDoNotMakeItUp) {
  const auto checked = [](Dims pieces, std::vector<ParameterPart> parts) {
    const ParameterPtr parameter = Parameter::New({6, 4}, ParameterInit::Constant(0));
    parameter->pieces = std::move(pieces);
    parameter->parts = std::move(parts);
    return parameter->Check("w");
  };
  const auto refuses = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  DT_EXPECT_OK(checked({3, 1}, {{"q", 2}, {"k", 1}}));
  EXPECT_THAT(checked({4, 1}, {}), refuses("w of shape [6, 4] is not made of [4, 1] equal pieces"));
  EXPECT_THAT(checked({0, 1}, {}), refuses("[0, 1] equal pieces"));
  EXPECT_THAT(checked({3}, {}), refuses("[3] equal pieces"));
  EXPECT_THAT(checked({}, {{"q", 0}}), refuses("groups of 0 rows of q"));
  EXPECT_THAT(checked({}, {{"q", 3}, {"k", 1}}), refuses("3 rows of q and 1 rows of k"));
  EXPECT_THAT(checked({}, {{"q", int64_t{1} << 62}, {"k", 1}}), refuses("divide dimension 0"));
}

// The same of units: a plan would divide by one that is 0, and read one that is not there.
TEST(Parameter, IsRefusedWithUnitsThatDoNotFit) {
  const auto checked = [](Dims units, Dims unit_parts) {
    return Parameter::New({6, 4}, ParameterInit::Constant(0), std::move(units),
                          std::move(unit_parts))
        ->Check("w");
  };
  DT_EXPECT_OK(checked({2, 1}, {}));
  DT_EXPECT_OK(checked({2, 4}, {1, 2}));
  EXPECT_THAT(checked({2}, {}), Refuses(HasSubstr("w of shape [6, 4] has units [2]")));
  EXPECT_THAT(checked({2, 0}, {}), Refuses(HasSubstr("units [2, 0]")));
  EXPECT_THAT(checked({2, -1}, {}), Refuses(HasSubstr("units [2, -1]")));
  EXPECT_THAT(checked({2, 4}, {1}), Refuses(HasSubstr("unit_parts [1]")));
  EXPECT_THAT(checked({2, 4}, {0, 1}), Refuses(HasSubstr("unit_parts [0, 1]")));
  EXPECT_THAT(checked({}, {1, 1}), Refuses(HasSubstr("unit_parts [1, 1] without units")));
}

TEST(Parameter, IsRefusedWithADeviationThatIsNone) {
  for (const double stddev : {-0.5, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(Parameter::New({6, 4}, ParameterInit::Normal(stddev))->Check("w"),
                Refuses(HasSubstr("w starts with a standard deviation of ")));
  }
  DT_EXPECT_OK(Parameter::New({6, 4}, ParameterInit::Normal(0))->Check("w"));
}

// Where it has no elements: as parameters that start otherwise.
TEST(Parameter, StartsWithValuesOnRanksThatAreNotOnItsMesh) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2@0..1"));
    LinearLayer layer(2, 1, 1, {}, LinearLayer::Bias::kAdded);
    layer.weight()->init = ParameterInit::Values({3, 4});
    DT_RETURN_IF_ERROR(layer.Materialize(context, mesh, 1));
    if (context.rank() == 2) return absl::OkStatus();
    EXPECT_THAT(ToGlobal<float>(layer.weight()->tensor), IsOkAndHolds(std::vector<float>{3, 4}));
    return absl::OkStatus();
  }));
}

// Its gradients are those of the function that was called.
TEST(Module, RunsAgainAsItTrainedThen) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Sequential model;
    model.Append(std::make_unique<DropoutLayer>(0.5));
    model.set_recomputes(true);
    for (const bool trains : {true, false}) {
      model.SetTraining(trains);
      DT_ASSIGN_OR_RETURN(DistributedTensor x,
                          Full(context, DeviceMesh(), {}, {64}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      DT_ASSIGN_OR_RETURN(const DistributedTensor y, model(x));
      model.SetTraining(!trains);
      DT_RETURN_IF_ERROR(Backward(Sum(y, {0})));
      EXPECT_EQ(ToGlobal<float>(x.grad()).value(), ToGlobal<float>(y.Detach()).value());
      EXPECT_EQ(model.training(), !trains);
    }
    return absl::OkStatus();
  }));
}

// One that throws when it runs again.
class ThrowsAgain : public Module {
 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    if (++calls_ == 2) throw std::runtime_error("not now");
    return Scale(x, 2);
  }

 private:
  int calls_ = 0;
};

TEST(Module, TrainsAsItDidAfterAnExceptionInBackward) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    ThrowsAgain model;
    model.set_recomputes(true);
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Full(context, DeviceMesh(), {}, {2}, DType::kF32, 1));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const TensorOr loss = Sum(model(x), {0});
    model.SetTraining(false);
    EXPECT_THROW(Backward(loss).IgnoreError(), std::runtime_error);
    EXPECT_FALSE(model.training());
    return absl::OkStatus();
  }));
}

// What the caller did, and the remedy.
TEST(ModuleDeathTest, SaysWhatItsCallerDid) {
  LinearLayer layer(2, 1, 1);
  EXPECT_DEATH(layer.Parameters(), "^dtensor: Module::Parameters\\(\\) .* Materialize");
  class Parent : public Module {
   public:
    void Add(std::string name, Module* child) { AddChild(std::move(name), child); }
    void AddOwn(ParameterPtr parameter, std::vector<DimRole> roles) {
      AddParameter("weight", std::move(parameter), std::move(roles));
    }
    void Name(std::vector<std::string> names) { SetOperands(std::move(names)); }
  } parent;
  EXPECT_DEATH(parent.Add("a.b", &layer), "^dtensor: Module::AddChild: .*'\\.'");
  EXPECT_DEATH(parent.Add("a", nullptr), "^dtensor: Module::AddChild: .*null");
  EXPECT_DEATH(parent.Add("a", &parent), "^dtensor: Module::AddChild: .*itself");
  EXPECT_DEATH(parent.AddOwn(nullptr, {}), "^dtensor: Module::AddParameter: .*null");
  EXPECT_DEATH(parent.AddOwn(layer.weight(), {DimRole::kOther}),
               "^dtensor: Module::AddParameter: .*role");
  EXPECT_DEATH(parent.Name({"x", "x"}), "^dtensor: Module::SetOperands");
  EXPECT_DEATH((void)std::make_unique<LinearLayer>(ParameterPtr()), "^dtensor: LinearLayer");
  EXPECT_DEATH((void)std::make_unique<EmbeddingLayer>(ParameterPtr()), "^dtensor: EmbeddingLayer");
  EXPECT_DEATH(
      {
        (void)RunRanks(1, [&](Context& context) -> absl::Status {
          DT_RETURN_IF_ERROR(layer.Materialize(context, DeviceMesh(), 1));
          layer.SetDType(DType::kBF16);
          return absl::OkStatus();
        });
      },
      "dtensor: Module::SetDType\\(\\)");
}

// What wraps a module has its names, and so none of them for itself.
// A counter and a mask are no floats, and a bias that moves by small steps is no narrower one.
TEST(Module, HasATypeOfItsFloats) {
  class Counted : public Module {
   public:
    explicit Counted(const std::vector<DType>& dtypes) {
      for (const DType dtype : dtypes) {
        const ParameterPtr buffer = Parameter::New({3}, ParameterInit::Constant(1));
        buffer->dtype = dtype;
        AddBuffer(std::string(ToString(dtype)), buffer);
      }
      const ParameterPtr precise = Parameter::New({3}, ParameterInit::Constant(1));
      precise->keeps_precision = true;
      AddBuffer("precise", precise);
    }
  };
  const auto types_of = [](Module& module) {
    std::vector<DType> types;
    for (const OwnParameter& own : module.own_parameters()) types.push_back(own.parameter->dtype);
    return types;
  };
  Counted module({DType::kI64, DType::kBool, DType::kF16});
  module.SetDType(DType::kBF16);
  EXPECT_THAT(types_of(module), ElementsAre(DType::kI64, DType::kBool, DType::kBF16, DType::kF32));
  module.SetDType(DType::kF64);
  EXPECT_THAT(types_of(module), ElementsAre(DType::kI64, DType::kBool, DType::kF64, DType::kF64));
}

TEST(JoinPath, PutsADotBetweenNames) {
  EXPECT_EQ(JoinPath("layers.0", "attn"), "layers.0.attn");
  EXPECT_EQ(JoinPath("", "attn"), "attn");  // of the model itself
  EXPECT_EQ(JoinPath("attn", ""), "attn");  // of a child without a name
}

TEST(Module, WithTwoParametersOfOnePathIsRefused) {
  class Wrapper : public Module {
   public:
    explicit Wrapper(const char* name) : inner_(4, 4, 1), own_(Parameter::New({4}, {})) {
      AddChild("", &inner_);
      AddParameter(name, own_);
    }
    LinearLayer inner_;
    ParameterPtr own_;
  };
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Wrapper twice("weight"), once("scale");
    EXPECT_THAT(twice.Materialize(context, DeviceMesh(), 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("two parameters have the path weight,")));
    EXPECT_FALSE(twice.own_->tensor.defined());
    return once.Materialize(context, DeviceMesh(), 1);
  }));
}

// One weight, which is something else to each of its modules.
TEST(Layers, SayItForThemselvesOfASharedParameter) {
  EmbeddingLayer embedding(12, 4, 1);
  const LinearLayer head(embedding.weight());
  EXPECT_EQ(Weight(head).parameter, Weight(embedding).parameter);
  EXPECT_THAT(Weight(head).roles, ElementsAre(DimRole::kOutput, DimRole::kInput));
}

TEST(Layers, AttentionAloneHasOptions) {
  GroupedQueryAttention attention({});
  EXPECT_EQ(attention.attention(), &attention.attention_options());
  EXPECT_EQ(LinearLayer(4, 8, 1).attention(), nullptr);
}

TEST(Layers, AttentionRefusesWhatIsNoBatchOfTexts) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    TransformerConfig latent;
    latent.kv_lora_rank = 8, latent.rotary_dim = 4, latent.v_head_dim = 8;
    latent.kv_heads = latent.heads;
    GroupedQueryAttention grouped({});
    LatentAttention of_latents(latent);
    for (const Dims& shape : {Dims{}, Dims{128}, Dims{4, 128}, Dims{1, 1, 4, 128}}) {
      for (Module* const attention :
           {static_cast<Module*>(&grouped), static_cast<Module*>(&of_latents)}) {
        EXPECT_THAT((*attention)(Full(context, {}, {}, shape, DType::kF32, 1)),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("give it as [batch, sequence, features]")));
      }
    }
    return absl::OkStatus();
  }));
}

// A module that overrides nothing is refused by its path, and the Context stays usable.
struct Nothing : Module {
  void Rename() { SetOperands({"a", "b"}); }
};

TEST(Module, WithoutForwardIsRefused) {
  EXPECT_THAT(RunRanks(1,
                       [](Context& context) -> absl::Status {
                         const TensorOr x = Full(context, {}, {}, {2}, DType::kF32, 1);
                         Sequential model;
                         model.Append(std::make_unique<Nothing>());
                         EXPECT_THAT(model(x), StatusIs(absl::StatusCode::kInvalidArgument,
                                                        HasSubstr("no Forward; override it")));
                         Nothing pair;
                         pair.Rename();
                         EXPECT_THAT(pair(x, x), StatusIs(absl::StatusCode::kInvalidArgument,
                                                          HasSubstr("no ForwardAll")));
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(Edges, AreValuesThatAnyoneMaySet) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                         LinearLayer layer(4, 8, 1);
                         DT_RETURN_IF_ERROR(layer.Materialize(context, mesh, 1));
                         const auto run = [&] {
                           return layer(Full(context, mesh, {Replicate()}, {2, 4}, DType::kF32, 1));
                         };
                         DT_ASSIGN_OR_RETURN(const DistributedTensor plain, run());
                         EXPECT_EQ(plain.layout().ToString(), "[] []");
                         EXPECT_EQ(layer.last_result(), nullptr);
                         layer.edges() = {{mesh, {0}, Shard(0), Shard(1)}};
                         DT_ASSIGN_OR_RETURN(const DistributedTensor y, run());
                         EXPECT_EQ(y.layout().ToString(), "[] [tp]");
                         EXPECT_EQ(layer.last_result()->layout.ToString(), "[tp] []");
                         return absl::OkStatus();
                       }),
              IsOk());
}

}  // namespace
}  // namespace dtensor
