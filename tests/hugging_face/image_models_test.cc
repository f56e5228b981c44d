// Models of images that are made from Hugging Face's configurations compute what Hugging Face's do,
// in evaluation and in training: results, gradients and running statistics by the same names, on
// one rank and by plans. make_image_cases.py made what they are compared with.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/resnet.h"
#include "dtensor/nn/vit.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/hugging_face/formula.h"
#include "dtensor/tests/torch_cases/stored_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-12;

// By name.
using Tensors = std::map<std::string, StoredTensor>;

struct Case {
  std::string config;
  Dims pixels;
  StoredTensor evaluated, trained;
  Tensors gradients, after;
};

absl::StatusOr<Tensors> ReadTensors(const SafetensorsReader& file, const std::string& prefix) {
  Tensors tensors;
  for (const auto& [name, info] : file.tensors()) {
    if (!absl::StartsWith(name, prefix)) continue;
    DT_ASSIGN_OR_RETURN(tensors[name.substr(prefix.size())], ReadStoredTensor(file, name));
  }
  return tensors;
}

absl::StatusOr<Case> ReadCase(const std::string& name) {
  DT_ASSIGN_OR_RETURN(const SafetensorsReader file,
                      SafetensorsReader::Open("tests/hugging_face/image_cases.safetensors"));
  Case out{.config = file.metadata().at(name)};
  DT_ASSIGN_OR_RETURN(const StoredTensor shape, ReadStoredTensor(file, name + "/pixels"));
  for (const double size : shape.values) out.pixels.push_back(static_cast<int64_t>(size));
  DT_ASSIGN_OR_RETURN(out.evaluated, ReadStoredTensor(file, name + "/result0"));
  DT_ASSIGN_OR_RETURN(out.trained, ReadStoredTensor(file, name + "/result1"));
  DT_ASSIGN_OR_RETURN(out.gradients, ReadTensors(file, name + "/gradient/"));
  DT_ASSIGN_OR_RETURN(out.after, ReadTensors(file, name + "/after/"));
  return out;
}

std::vector<double> FormulaOf(const std::string& path, const Parameter& parameter) {
  std::vector<double> values = Formula(path, NumElements(parameter.shape));
  if (!absl::EndsWith(path, "running_var")) return values;
  for (double& value : values) value = 1 + value / 2;
  return values;
}

absl::Status ExpectStored(const std::string& what, const DistributedTensor& tensor,
                          const StoredTensor& stored) {
  EXPECT_EQ(tensor.shape(), stored.shape) << what;
  DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(tensor.Detach()));
  EXPECT_LE(ErrorOf(values, stored.values, 0.1), kTolerance) << what;
  return absl::OkStatus();
}

// Of each parameter that `stored` has a tensor for; it has no others.
absl::Status ExpectAllStored(Module& model, const Tensors& stored, bool trained) {
  absl::Status status;
  size_t found = 0;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (parameter.trained != trained) return;
    ++found;
    const DistributedTensor tensor = trained ? parameter.tensor.grad() : parameter.tensor;
    const auto at = stored.find(path);
    if (at == stored.end())
      ADD_FAILURE() << path << " is not Hugging Face's";
    else
      status.Update(ExpectStored(path, tensor, at->second));
  });
  EXPECT_EQ(found, stored.size());
  return status;
}

TensorOr LossOf(const DistributedTensor& logits) {
  const Layout whole = Layout::Replicated(logits.mesh(), 2);
  const TensorOr factors = Distribute<double>(logits.context(), whole, logits.shape(),
                                              Formula("result", NumElements(logits.shape())));
  return Sum(Mul(logits, factors), {0, 1});
}

struct Place {
  std::string mesh, plan;
};

// Returns the results of training.
template <typename Model, typename Config>
absl::StatusOr<std::vector<double>> Compute(Context& context, const Case& wanted,
                                            const Place& place) {
  DT_ASSIGN_OR_RETURN(const Config config, Config::FromJson(wanted.config));
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(place.plan));
  Model model(config);
  model.SetDType(DType::kF64);
  model.VisitParameters([](const std::string& path, Parameter& parameter) {
    parameter.init = ParameterInit::Values(FormulaOf(path, parameter));
  });
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.allow_uneven = true}));
  const TensorOr pixels = Distribute<double>(context, Layout::Replicated(mesh, 4), wanted.pixels,
                                             Formula("pixel_values", NumElements(wanted.pixels)));
  model.SetTraining(false);
  DT_ASSIGN_OR_RETURN(const DistributedTensor evaluated, model(pixels));
  DT_RETURN_IF_ERROR(ExpectStored("evaluated", evaluated, wanted.evaluated));
  model.SetTraining(true);
  DT_ASSIGN_OR_RETURN(const DistributedTensor trained, model(pixels));
  DT_RETURN_IF_ERROR(ExpectStored("trained", trained, wanted.trained));
  DT_RETURN_IF_ERROR(ExpectAllStored(model, wanted.after, false));
  DT_RETURN_IF_ERROR(Backward(LossOf(trained)));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_RETURN_IF_ERROR(ExpectAllStored(model, wanted.gradients, true));
  return ToGlobal<double>(trained.Detach());
}

constexpr char kBatch[] = "{\"\", DataParallel(\"dp\")}\n";
constexpr char kStrips[] = "{\"\", Edges(\"cp\", in S(1))}\n";
constexpr char kShards[] =
    "{\"resnet.encoder.stages.*\", FullyShard(\"fsdp\")}\n"
    "{\"\", FullyShard(\"fsdp\")}\n";

template <typename Model, typename Config>
void ExpectWhatHuggingFaceHas(const std::string& name, const std::vector<Place>& places) {
  DT_ASSERT_OK_AND_ASSIGN(const Case wanted, ReadCase(name));
  for (const Place& place : places) {
    const int size = DeviceMesh::Parse(place.mesh)->size();
    if (!SuiteHasRanks(size)) continue;
    SCOPED_TRACE(absl::StrCat(name, " on ", place.mesh));
    DT_EXPECT_OK(OnSuiteRanks(
        size, [&](Context& context) { return Compute<Model, Config>(context, wanted, place); }));
  }
}

TEST(ResNet, ComputesWhatHuggingFacesDoes) {
  for (const char* const name : {"bottleneck", "bottleneck_first", "basic"}) {
    ExpectWhatHuggingFaceHas<ResNet, ResNetConfig>(name,
                                                   {{"none=1", ""},
                                                    {"dp=2", kBatch},
                                                    {"dp=3", kBatch},
                                                    {"cp=2", kStrips},
                                                    {"cp=3", kStrips},
                                                    {"fsdp=2", kShards},
                                                    {"dp=2,cp=2", std::string(kBatch) + kStrips}});
  }
}

// As docs/convolutions.md has it.
constexpr char kFeatures[] = R"(
{"vit.encoder.layer.*.attention.attention.{query,key,value}", Colwise("tp")}
{"vit.encoder.layer.*.attention.output.dense", Rowwise("tp")}
{"vit.encoder.layer.*.intermediate.dense", Colwise("tp")}
{"vit.encoder.layer.*.output.dense", Rowwise("tp")}
)";
// Tokens are sharded from the encoder on, and attention is a ring.
constexpr char kTokens[] = "{\"vit.encoder\", Edges(\"cp\", in S(1))}\n";
// Images in strips of rows of patches.
constexpr char kPatchRows[] = "{\"vit.embeddings\", Edges(\"strips\", in S(1), out R)}\n";

TEST(Vit, ComputesWhatHuggingFacesDoes) {
  for (const char* const name : {"vit", "vit_otherwise"}) {
    ExpectWhatHuggingFaceHas<Vit, VitConfig>(name,
                                             {{"none=1", ""},
                                              {"dp=2", kBatch},
                                              {"tp=2", kFeatures},
                                              {"tp=4", kFeatures},
                                              {"cp=2", kTokens},
                                              {"cp=3", kTokens},
                                              {"strips=3", kPatchRows},
                                              {"dp=2,tp=2", std::string(kBatch) + kFeatures},
                                              {"cp=2,tp=2", std::string(kTokens) + kFeatures}});
  }
}

// Hugging Face's library writes one tensor more for each norm.
struct Counter : Module {
  Counter() { AddBuffer("num_batches_tracked", Parameter::New({}, ParameterInit::Constant(3))); }
};
struct Counted : Module {
  explicit Counted(const ResNetConfig& config) : resnet(config) {
    AddChild("", &resnet);
    AddChild("norm", &counter);
  }
  ResNet resnet;
  Counter counter;
};

TEST(ResNet, IsInFoldersOfHuggingFace) {
  DT_ASSERT_OK_AND_ASSIGN(const Case wanted, ReadCase("basic"));
  const std::string folder = ::testing::TempDir() + "/resnet";
  std::filesystem::remove_all(folder);
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const ResNetConfig config, ResNetConfig::FromJson(wanted.config));
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    Counted one(config);
    ResNet other(config);
    DT_RETURN_IF_ERROR(one.Materialize(context, mesh, 1));
    DT_RETURN_IF_ERROR(other.Materialize(context, mesh, 2));
    DT_RETURN_IF_ERROR(SaveHuggingFace(one, folder, {.config = wanted.config}));
    DT_RETURN_IF_ERROR(LoadHuggingFace(other, folder).status());
    std::map<std::string, std::vector<float>> values;
    one.resnet.VisitParameters([&](const std::string& path, Parameter& parameter) {
      values[path] = *ToGlobal<float>(parameter.tensor.Detach());
    });
    other.VisitParameters([&](const std::string& path, Parameter& parameter) {
      EXPECT_EQ(*ToGlobal<float>(parameter.tensor.Detach()), values.at(path)) << path;
    });
    EXPECT_EQ(values.size(), wanted.gradients.size() + wanted.after.size());
    return absl::OkStatus();
  }));
}

TEST(ResNetConfig, RefusesWhatItDoesNotHave) {
  const auto refuses = [](absl::string_view json, absl::string_view words) {
    EXPECT_THAT(ResNetConfig::FromJson(json).status(), Refuses(HasSubstr(words))) << json;
  };
  DT_ASSERT_OK_AND_ASSIGN(const ResNetConfig config, ResNetConfig::FromJson("{}"));
  EXPECT_EQ(config.classes, 2);
  EXPECT_EQ(config.features.size(), 4);
  refuses(R"({"model_type": "bert"})", "resnet");
  refuses(R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\"");
  refuses(R"({"layer_type": "odd"})", "layer_type is \"odd\"");
  refuses(R"({"depths": [1, 2]})", "features of 4 stages and depths of 2");
  refuses(R"({"depths": [], "hidden_sizes": []})", "features of 0 stages");
  refuses(R"({"depths": [1, 0, 1, 1]})", "depth of a stage is 0");
  refuses(R"({"depths": [1, 1, 4096, 1]})", "more than 4096 layers");
  refuses(R"({"hidden_sizes": [256, 510, 1024, 2048]})", "must divide features of a stage");
  refuses(R"({"hidden_sizes": "256"})", "hidden_sizes is \"256\"");
  refuses(R"({"id2label": {}})", "classes is 0");
}

TEST(VitConfig, RefusesWhatItDoesNotHave) {
  const auto refuses = [](absl::string_view json, absl::string_view words) {
    EXPECT_THAT(VitConfig::FromJson(json).status(), Refuses(HasSubstr(words))) << json;
  };
  DT_ASSERT_OK_AND_ASSIGN(const VitConfig config, VitConfig::FromJson("{}"));
  EXPECT_EQ(config.classes, 2);
  EXPECT_EQ(config.patches(), 196);
  refuses(R"({"model_type": "bert"})", "vit");
  refuses(R"({"hidden_act": "relu"})", "hidden_act is \"relu\"");
  refuses(R"({"image_size": [224, 224]})", "image_size is a list");
  refuses(R"({"image_size": 30})", "patch must divide image");
  refuses(R"({"num_attention_heads": 5})", "heads must divide dim");
  refuses(R"({"id2label": {}})", "classes is 0");
}

TEST(Vit, TakesImagesOfItsSize) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Vit model({.image = 8, .patch = 4, .dim = 8, .layers = 1, .heads = 2, .hidden = 4});
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    const Layout whole = Layout::Replicated(mesh, 4);
    EXPECT_THAT(model(RandomNormal(context, whole, {1, 8, 12, 3}, {})).status(),
                Refuses(HasSubstr("with images of [8, 8, 3]")));
    return absl::OkStatus();
  }));
}

TEST(ResNet, TakesImagesWithChannelsLast) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    ResNet model({.features = {8}, .depths = {1}});
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    const Layout whole = Layout::Replicated(mesh, 4);
    EXPECT_THAT(model(RandomNormal(context, whole, {1, 3, 32, 32}, {})).status(),
                Refuses(HasSubstr("give [batch, height, width, 3], channels last")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
