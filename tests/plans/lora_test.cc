// LoRA: only adapters train, they add no collective to forward, and merged they are the model.
#include "dtensor/nn/lora.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/mixture.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;

const std::vector<std::string>& AllProjections() {
  static const auto* const names = new std::vector<std::string>{
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return *names;
}

TransformerConfig Config(bool bias = false) {
  TransformerConfig config = SmallTransformer();
  config.qkv_bias = bias;
  return config;
}

absl::Status Place(Module& model, Context& context, const DeviceMesh& mesh,
                   const std::string& preset) {
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, PresetPlan(preset, mesh, {.transformer = Config()}));
  return plan.Apply(model, context, mesh, {.seed = 5});
}

TensorOr Logits(Context& context, const DeviceMesh& mesh, Module& model) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 32; ++i) ids.push_back((i * i * 7 + i) % kSmallVocab);
  return model(Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {4, 8}, ids));
}

absl::StatusOr<std::vector<double>> Numbers(const TensorOr& x) {
  DT_RETURN_IF_ERROR(x.status());
  DT_ASSIGN_OR_RETURN(const auto wide, Cast(x->Detach(), DType::kF64));
  return ToGlobal<double>(wide);
}

// First values that are nowhere 0.
void Fill(Module& model) {
  model.VisitParameters([](const std::string&, Parameter& parameter) {
    if (parameter.is_adapter) parameter.init = ParameterInit::Normal(0.2);
  });
}

TEST(Lora, IsTheModelAtFirst) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    std::vector<std::vector<double>> logits;
    for (const bool adapted : {false, true}) {
      Transformer model(Config());
      if (adapted) DT_RETURN_IF_ERROR(AddLora(model, {.layers = AllProjections()}));
      DT_RETURN_IF_ERROR(Place(model, context, mesh, "tp+sp"));
      DT_ASSIGN_OR_RETURN(logits.emplace_back(), Numbers(Logits(context, mesh, model)));
    }
    EXPECT_EQ(logits[0], logits[1]);
    return absl::OkStatus();
  }));
}

// Each rank receives in forward what it does without adapters: not even a message more.
TEST(Lora, AddsNoCollectiveToForward) {
  for (const char* const preset : {"tp", "tp+sp"}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
      std::vector<TrafficTable> traffic;
      for (const bool adapted : {false, true}) {
        Transformer model(Config(/*bias=*/true));
        if (adapted) DT_RETURN_IF_ERROR(AddLora(model, {.layers = AllProjections()}));
        DT_RETURN_IF_ERROR(Place(model, context, mesh, preset));
        context.communicator().ResetTraffic();
        DT_RETURN_IF_ERROR(Logits(context, mesh, model).status());
        traffic.push_back(context.communicator().traffic());
      }
      EXPECT_EQ(traffic[0], traffic[1]) << preset;
      EXPECT_FALSE(traffic[0].empty());
      return absl::OkStatus();
    }));
  }
}

// B's rows as the weight's rows, A's columns as its columns, everything else whole; in heads, and
// in the pieces of GPT-2's queries, keys and values.
absl::Status ExpectPlaced(Module& model) {
  size_t found = 0;
  model.VisitModules([&](const std::string& path, Module& module) {
    LinearLayer* const layer = module.linear();
    if (layer == nullptr || !layer->adapter()) return;
    ++found;
    const Layout& weight = layer->weight()->tensor.layout();
    const Layout& a = layer->adapter()->a->tensor.layout();
    const Layout& b = layer->adapter()->b->tensor.layout();
    const int out = layer->out_dim();
    EXPECT_EQ(a.dim(1), weight.dim(1 - out)) << path;
    EXPECT_EQ(b.dim(0), weight.dim(out)) << path;
    EXPECT_FALSE(IsSplit(a.dim(0)) || IsSplit(b.dim(1))) << path;
    EXPECT_TRUE(IsSplit(a.dim(1)) || IsSplit(b.dim(0))) << path;
  });
  EXPECT_GT(found, 0u);
  return absl::OkStatus();
}

TEST(Lora, PlacesItsMatricesAsTheWeightLies) {
  for (const int ranks : {2, 3}) {  // 4 heads of keys on three ranks are uneven
    DT_EXPECT_OK(RunRanks(ranks, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse(absl::StrCat("tp=", ranks));
      Transformer model(Config());
      DT_RETURN_IF_ERROR(AddLora(model, {.layers = AllProjections()}));
      DT_ASSIGN_OR_RETURN(const DeviceMesh there,
                          ApplyTensorParallel(model, context, mesh, {.allow_uneven = true}));
      DT_RETURN_IF_ERROR(ExpectPlaced(model));
      Gpt2 gpt2({.vocab = 8, .positions = 8, .dim = 12, .layers = 1, .heads = 3, .hidden = 12});
      DT_RETURN_IF_ERROR(AddLora(gpt2, {.layers = {"c_attn", "c_proj", "c_fc"}}));
      DT_RETURN_IF_ERROR(ApplyTensorParallel(gpt2, context, mesh, {.allow_uneven = true}).status());
      return ExpectPlaced(gpt2);
    }));
  }
}

TEST(Lora, TrainsAdaptersAlone) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    Transformer model(Config());
    DT_RETURN_IF_ERROR(AddLora(model, {.rank = 2}));
    DT_RETURN_IF_ERROR(Place(model, context, mesh, "fsdp"));
    std::map<std::string, std::vector<double>> first;
    const auto read = [&](std::map<std::string, std::vector<double>>& all) {
      model.VisitParameters([&](const std::string& path, Parameter& parameter) {
        all[path] = Numbers(parameter.tensor).value();
      });
    };
    read(first);
    const std::vector<DistributedTensor> parameters = model.Parameters();
    EXPECT_EQ(parameters.size(), 2 * 2 * Config().layers);
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(parameters, {}));
    for (int step = 0; step < 2; ++step) {
      DT_ASSIGN_OR_RETURN(const auto logits, Logits(context, mesh, model));
      DT_RETURN_IF_ERROR(Backward(SumOfSquares(logits)));
      DT_RETURN_IF_ERROR(ReduceGradients(parameters));
      DT_RETURN_IF_ERROR(adamw.Step(0.01));
      adamw.ClearGradients();
    }
    std::map<std::string, std::vector<double>> last;
    read(last);
    model.VisitParameters([&](const std::string& path, Parameter& parameter) {
      EXPECT_EQ(first[path] != last[path], parameter.is_adapter) << path;
    });
    return absl::OkStatus();
  }));
}

// The same results without adapters, and the names of before.
TEST(Lora, MergesIntoTheWeights) {
  for (const auto& [text, preset] :
       {std::pair<const char*, const char*>{"tp=1", "none"}, {"tp=2", "tp+sp"}, {"dp=2", "fsdp"}}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&, preset = preset](Context& context) -> absl::Status {
      Transformer model(Config(/*bias=*/true)), plain(Config(/*bias=*/true));
      model.SetDType(DType::kF64);
      DT_RETURN_IF_ERROR(AddLora(model, {.rank = 3, .alpha = 5, .layers = AllProjections()}));
      Fill(model);
      DT_RETURN_IF_ERROR(Place(model, context, mesh, preset));
      DT_RETURN_IF_ERROR(Place(plain, context, mesh, preset));
      const NoGrad no_grad(context);
      DT_ASSIGN_OR_RETURN(const auto adapted, Numbers(Logits(context, mesh, model)));
      DT_RETURN_IF_ERROR(MergeLora(model));
      DT_ASSIGN_OR_RETURN(const auto merged, Numbers(Logits(context, mesh, model)));
      DT_ASSIGN_OR_RETURN(const auto without, Numbers(Logits(context, mesh, plain)));
      EXPECT_THAT(merged, Pointwise(DoubleNear(1e-6), adapted));  // norms and angles are f32
      EXPECT_THAT(merged, Not(Pointwise(DoubleNear(1e-2), without)));
      DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
      DT_ASSIGN_OR_RETURN(const StateDict names, StateDictOf(plain));
      EXPECT_EQ(state.size(), names.size());
      for (const auto& [name, tensor] : state) EXPECT_TRUE(names.contains(name)) << name;
      EXPECT_THAT(MergeLora(model),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AddLora")));
      return absl::OkStatus();
    }));
  }
}

struct OneLayer : Module {
  explicit OneLayer(LinearLayer* layer) : layer(layer) { AddChild("proj", layer); }
  TensorOr Forward(const DistributedTensor& x) override { return (*layer)(x); }
  LinearLayer* layer;
};

// By hand: y = x W^T + 3 / 2 (x A^T) B^T + bias, in both orders of the weight's dimensions; and the
// merged weight.
TEST(Lora, IsTheFormula) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=1");
    LinearLayer linear(2, 3, 0, {}, LinearLayer::Bias::kAdded);
    Conv1dLayer conv(2, 3, 0);
    linear.weight()->init = ParameterInit::Values({1, 2, 3, 4, 5, 6});
    conv.weight()->init = ParameterInit::Values({1, 3, 5, 2, 4, 6});
    for (LinearLayer* const layer : {&linear, static_cast<LinearLayer*>(&conv)}) {
      OneLayer model(layer);
      DT_RETURN_IF_ERROR(AddLora(model, {.rank = 2, .alpha = 3, .layers = {"proj"}}));
      layer->adapter()->a->init = ParameterInit::Values({1, 1, 0, 2});
      layer->adapter()->b->init = ParameterInit::Values({1, 0, 0, 1, 2, 2});
      layer->bias()->init = ParameterInit::Values({100, 200, 300});
      DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
      DT_ASSIGN_OR_RETURN(const auto x,
                          Distribute<float>(context, mesh, {Replicate()}, {1, 2}, {1, 10}));
      // x W^T = [21, 43, 65], x A^T = [11, 20], (x A^T) B^T = [11, 20, 62].
      EXPECT_THAT(Numbers(model(x)), IsOkAndHolds(ElementsAre(137.5, 273, 458)));
      DT_RETURN_IF_ERROR(MergeLora(model));
      EXPECT_THAT(Numbers(model(x)), IsOkAndHolds(ElementsAre(137.5, 273, 458)));
      EXPECT_EQ(layer->own_parameters().size(), 2u);
    }
    return absl::OkStatus();
  }));
}

// 256 + 1 + 1 and 256 + 0.5 + 0.5 are 258 and 257 in f32; in bf16 257 is a tie, which goes to 256,
// and terms that are added one by one are lost.
TEST(Lora, MergesInF32AndRoundsOnce) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    LinearLayer layer(2, 1, 0);
    OneLayer model(&layer);
    model.SetDType(DType::kBF16);
    layer.weight()->init = ParameterInit::Values({256, 256});
    DT_RETURN_IF_ERROR(AddLora(model, {.rank = 2, .alpha = 2, .layers = {"proj"}}));
    layer.adapter()->a->init = ParameterInit::Values({1, 0.5, 1, 0.5});
    layer.adapter()->b->init = ParameterInit::Values({1, 1});
    DT_RETURN_IF_ERROR(model.Materialize(context, *DeviceMesh::Parse("tp=1"), 1));
    DT_RETURN_IF_ERROR(MergeLora(model));
    EXPECT_THAT(Numbers(layer.weight()->tensor), IsOkAndHolds(ElementsAre(258, 256)));
    return absl::OkStatus();
  }));
}

// Routers with sigmoid scores compute in f32 in 16-bit models; so do their adapters.
TEST(Lora, AdaptsRouters) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    MixtureConfig config{.dim = 2, .hidden = 2, .experts = 4, .experts_per_token = 1};
    config.score = RouterScore::kSigmoid;
    MixtureOfExperts mixture(config);
    mixture.SetDType(DType::kBF16);
    DT_RETURN_IF_ERROR(AddLora(mixture, {.rank = 1, .layers = {"gate"}}));
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=1");
    DT_RETURN_IF_ERROR(mixture.Materialize(context, mesh, 1));
    DT_ASSIGN_OR_RETURN(const auto x,
                        Full(context, mesh, {Replicate()}, {1, 1, 2}, DType::kBF16, 1));
    DT_ASSIGN_OR_RETURN(const auto y, mixture.Call({x}));
    DT_RETURN_IF_ERROR(Backward(SumOfSquares(y[0])));
    const LinearLayer::Adapter& adapter = *mixture.router().adapter();
    EXPECT_TRUE(adapter.b->tensor.grad().defined());
    return absl::OkStatus();
  }));
}

// A style that places the weight alone: the adapter's product is whole where the layer's is a sum.
struct WeightByInput {
  std::string axis;
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite&) const {
    StyleWishes wishes;
    wishes.parameters["weight"] = Shard(1);
    return wishes;
  }
  std::string ToString() const { return absl::StrCat("WeightByInput(\"", axis, "\")"); }
  friend bool operator==(const WeightByInput&, const WeightByInput&) = default;
};

TEST(Lora, KeepsTheBiasWhereverItsMatricesLie) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    LinearLayer layer(2, 3, 0, {}, LinearLayer::Bias::kAdded);
    OneLayer model(&layer);
    layer.weight()->init = ParameterInit::Values({1, 2, 3, 4, 5, 6});
    layer.bias()->init = ParameterInit::Values({100, 200, 300});
    DT_RETURN_IF_ERROR(AddLora(model, {.rank = 2, .layers = {"proj"}}));
    DT_RETURN_IF_ERROR(
        ParallelPlan({{"proj", WeightByInput{"tp"}}}).Apply(model, context, mesh, {}));
    DT_ASSIGN_OR_RETURN(const auto x,
                        Distribute<float>(context, mesh, {Replicate()}, {1, 2}, {1, 10}));
    EXPECT_THAT(Numbers(model(x)), IsOkAndHolds(ElementsAre(121, 243, 365)));
    return absl::OkStatus();
  }));
}

TEST(Lora, IsScaledByTheRootOfItsRank) {
  LinearLayer layer(2, 2, 0);
  OneLayer model(&layer);
  DT_EXPECT_OK(
      AddLora(model, {.rank = 16, .alpha = 8, .rank_stabilized = true, .layers = {"proj"}}));
  EXPECT_EQ(layer.adapter()->scale, 2);
}

// Some of x's features, in training only; the same ones on every mesh.
TEST(Lora, DropsOutInTraining) {
  std::vector<double> want;
  for (const char* const text : {"tp=1", "tp=2"}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      Transformer model(Config());
      model.SetDType(DType::kF64);
      DT_RETURN_IF_ERROR(AddLora(model, {.dropout = 0.5, .layers = {"q_proj", "down_proj"}}));
      Fill(model);
      DT_RETURN_IF_ERROR(Place(model, context, mesh, "tp"));
      const NoGrad no_grad(context);
      DT_ASSIGN_OR_RETURN(const auto once, Numbers(Logits(context, mesh, model)));
      DT_ASSIGN_OR_RETURN(const auto again, Numbers(Logits(context, mesh, model)));
      EXPECT_NE(once, again);
      model.SetTraining(false);
      DT_ASSIGN_OR_RETURN(const auto still, Numbers(Logits(context, mesh, model)));
      EXPECT_THAT(Numbers(Logits(context, mesh, model)), IsOkAndHolds(still));
      if (want.empty()) want = once;
      EXPECT_THAT(once, Pointwise(DoubleNear(1e-6), want)) << text;
      return absl::OkStatus();
    }));
  }
}

TEST(Lora, SkippedFirstValuesAreNotThoseOfAdapters) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Transformer model(Config());
    DT_RETURN_IF_ERROR(AddLora(model, {}));
    model.SkipFirstValues();
    DT_RETURN_IF_ERROR(model.Materialize(context, *DeviceMesh::Parse("tp=1"), 1));
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      if (!parameter.is_adapter) return;
      const bool is_b = path.ends_with("lora_B");
      const std::vector<double> values = Numbers(parameter.tensor).value();
      EXPECT_THAT(values, is_b ? testing::Matcher<const std::vector<double>&>(Each(0))
                               : testing::Contains(testing::Ne(0)))
          << path;
    });
    return absl::OkStatus();
  }));
}

TEST(Lora, RefusesWhatItCannotAdapt) {
  TransformerConfig tied = Config();
  tied.tie_embeddings = true;
  struct Case {
    TransformerConfig config;
    LoraOptions options;
    std::vector<const char*> words;
  };
  for (const Case& c : {
           Case{Config(), {.rank = 0}, {"AddLora: rank 0", "1 or more"}},
           Case{Config(), {.alpha = NAN}, {"alpha"}},
           Case{Config(), {.dropout = 1}, {"dropout 1"}},
           Case{Config(), {.layers = {}}, {"no layers are named"}},
           Case{Config(), {.layers = {"q_proj", "c_attn"}}, {"'c_attn'", "q_proj", "lm_head"}},
           Case{Config(), {.layers = {"_proj"}}, {"'_proj'"}},
           Case{Config(), {.layers = {""}}, {"''"}},
           Case{tied, {.layers = {"q_proj", "lm_head"}}, {"lm_head", "shares its weight"}},
       }) {
    Transformer model(c.config);
    const absl::Status status = AddLora(model, c.options);
    for (const char* const word : c.words) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(word)));
    }
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      EXPECT_TRUE(parameter.trained && !parameter.is_adapter) << path;
    });
  }
  Transformer model(Config());
  DT_EXPECT_OK(AddLora(model, {.layers = {"q_proj", "model.layers.0.self_attn.q_proj"}}));
  EXPECT_THAT(AddLora(model, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("q_proj"), HasSubstr("already"))));
  DT_EXPECT_OK(AddLora(model, {.layers = {"v_proj"}}));  // more of them
  EXPECT_THAT(MergeLora(model),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no memory")));
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Transformer placed(Config());
    DT_RETURN_IF_ERROR(placed.Materialize(context, *DeviceMesh::Parse("tp=1"), 1));
    EXPECT_THAT(AddLora(placed, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has memory")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
