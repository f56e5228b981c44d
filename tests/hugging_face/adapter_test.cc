// Adapters go in and out of PEFT's folders, on any mesh, and compute what they do there.
// make_peft_case.py made what they are compared with.
#include "dtensor/hugging_face/adapter.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/hugging_face/formula.h"
#include "dtensor/tests/torch_cases/stored_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kPeft[] = "tests/hugging_face/peft";

// A model on a mesh, with the adapters that PEFT's folder has.
struct Adapted {
  TransformerConfig config;
  LoraOptions lora;

  static absl::StatusOr<Adapted> Read() {
    DT_ASSIGN_OR_RETURN(const SafetensorsReader file,
                        SafetensorsReader::Open(absl::StrCat(kPeft, "/case.safetensors")));
    Adapted out;
    DT_ASSIGN_OR_RETURN(out.config,
                        TransformerConfig::FromJson(file.metadata().find("config")->second));
    DT_ASSIGN_OR_RETURN(out.lora, ReadLoraOptions(kPeft));
    return out;
  }

  absl::Status Place(Transformer& model, Context& context, const DeviceMesh& mesh,
                     const std::string& preset) const {
    model.SetDType(DType::kF64);
    model.SetTraining(false);
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      if (parameter.is_adapter) return;
      parameter.init = ParameterInit::Values(Formula(path, NumElements(parameter.shape)));
    });
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan,
                        PresetPlan(preset, mesh, {.allow_uneven = true, .transformer = config}));
    return plan.Apply(model, context, mesh, {.seed = 1, .allow_uneven = true});
  }
};

std::string PeftName(const std::string& path) {
  return absl::StrCat("base_model.model.", path, ".weight");
}

// Norms and angles of Hugging Face's LLaMA are f32.
constexpr double kTolerance = 2e-5;

absl::Status ExpectGradients(Transformer& model, const SafetensorsReader& file) {
  absl::Status status;
  size_t found = 0;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!parameter.is_adapter || !status.ok()) return;
    const auto check = [&]() -> absl::Status {
      DT_ASSIGN_OR_RETURN(const StoredTensor stored,
                          ReadStoredTensor(file, absl::StrCat("gradient/", PeftName(path))));
      DT_ASSIGN_OR_RETURN(const std::vector<double> values,
                          ToGlobal<double>(parameter.tensor.grad()));
      EXPECT_LE(ErrorOf(values, stored.values, 0), kTolerance) << path;
      ++found;
      return absl::OkStatus();
    };
    status = check();
  });
  EXPECT_EQ(found, 12u);
  return status;
}

// Logits, gradients, and logits once more when the adapters are merged.
absl::Status RunCase(Context& context, const Adapted& adapted, const DeviceMesh& mesh,
                     const std::string& preset) {
  DT_ASSIGN_OR_RETURN(const SafetensorsReader file,
                      SafetensorsReader::Open(absl::StrCat(kPeft, "/case.safetensors")));
  DT_ASSIGN_OR_RETURN(const StoredTensor ids, ReadStoredTensor(file, "operand0"));
  DT_ASSIGN_OR_RETURN(const StoredTensor want, ReadStoredTensor(file, "result0"));
  Transformer model(adapted.config);
  DT_RETURN_IF_ERROR(AddLora(model, adapted.lora));
  DT_RETURN_IF_ERROR(adapted.Place(model, context, mesh, preset));
  DT_RETURN_IF_ERROR(LoadAdapter(model, kPeft).status());
  const std::vector<int64_t> tokens(ids.values.begin(), ids.values.end());
  const auto logits = [&] {
    return model(Distribute<int64_t>(context, Layout::Replicated(mesh, 2), ids.shape, tokens));
  };
  const auto expect = [&](const TensorOr& got) -> absl::Status {
    DT_RETURN_IF_ERROR(got.status());
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(got->Detach()));
    EXPECT_LE(ErrorOf(values, want.values, 0), kTolerance);
    return absl::OkStatus();
  };
  DT_ASSIGN_OR_RETURN(const DistributedTensor got, logits());
  DT_RETURN_IF_ERROR(expect(got));
  const std::vector<double> factors = Formula("result0", NumElements(want.shape));
  DT_RETURN_IF_ERROR(Backward(
      Sum(Mul(got, Distribute<double>(context, Layout::Replicated(mesh, 3), want.shape, factors)),
          {0, 1, 2})));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_RETURN_IF_ERROR(ExpectGradients(model, file));
  DT_RETURN_IF_ERROR(MergeLora(model));
  return expect(logits());
}

TEST(PeftAdapter, ComputesWhatItDoesThere) {
  DT_ASSERT_OK_AND_ASSIGN(const Adapted adapted, Adapted::Read());
  EXPECT_EQ(adapted.lora.rank, 3);
  EXPECT_EQ(adapted.lora.dropout, 0.25);
  EXPECT_TRUE(adapted.lora.rank_stabilized);
  for (const auto& [text, preset] : {std::pair<const char*, const char*>{"tp=1", "none"},
                                     {"tp=2", "tp+sp"},
                                     {"dp=2", "fsdp"},
                                     {"dp=2,tp=2", "fsdp+tp+sp"}}) {
    SCOPED_TRACE(text);
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&, preset = preset](Context& context) {
      return RunCase(context, adapted, mesh, preset);
    }));
  }
}

class AdapterFolder : public ::testing::Test {
 protected:
  AdapterFolder() {
    static int count = 0;
    folder_ = absl::StrCat(testing::TempDir(), "/adapter", getpid(), "_", count++);
  }
  ~AdapterFolder() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

absl::StatusOr<std::map<std::string, std::vector<double>>> AdaptersOf(Transformer& model) {
  std::map<std::string, std::vector<double>> values;
  DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
  for (const auto& [name, tensor] : state) {
    if (!absl::StrContains(name, "lora_")) continue;
    DT_ASSIGN_OR_RETURN(values[name], ToGlobal<double>(tensor));
  }
  return values;
}

TEST_F(AdapterFolder, GoesOutAndInOnAnyMesh) {
  DT_ASSERT_OK_AND_ASSIGN(const Adapted adapted, Adapted::Read());
  std::map<std::string, std::vector<double>> saved;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(adapted.config);
    DT_RETURN_IF_ERROR(AddLora(model, adapted.lora));
    DT_RETURN_IF_ERROR(adapted.Place(model, context, *DeviceMesh::Parse("tp=2"), "tp"));
    DT_RETURN_IF_ERROR(LoadAdapter(model, kPeft).status());
    SaveHuggingFaceOptions options;
    options.config = LoraToJson(adapted.lora, "a model");
    options.max_file_bytes = 1;  // of adapters PEFT reads one file
    DT_RETURN_IF_ERROR(SaveAdapter(model, folder_, options));
    DT_ASSIGN_OR_RETURN(auto mine, AdaptersOf(model));
    if (context.rank() == 0) saved = std::move(mine);
    return absl::OkStatus();
  }));
  // PEFT's names, and nothing else.
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader ours,
                          SafetensorsReader::Open(folder_ + "/adapter_model.safetensors"));
  DT_ASSERT_OK_AND_ASSIGN(
      const SafetensorsReader theirs,
      SafetensorsReader::Open(absl::StrCat(kPeft, "/adapter_model.safetensors")));
  EXPECT_EQ(ours.tensors().size(), theirs.tensors().size());
  for (const auto& [name, info] : theirs.tensors()) {
    const auto found = ours.tensors().find(name);
    ASSERT_TRUE(found != ours.tensors().end()) << name;
    DT_ASSERT_OK_AND_ASSIGN(const StoredTensor mine, ReadStoredTensor(ours, name));
    DT_ASSERT_OK_AND_ASSIGN(const StoredTensor want, ReadStoredTensor(theirs, name));
    EXPECT_EQ(mine.shape, want.shape) << name;
    EXPECT_EQ(mine.values, want.values) << name;
  }
  DT_ASSERT_OK_AND_ASSIGN(const LoraOptions again, ReadLoraOptions(folder_));
  EXPECT_EQ(LoraToJson(again), LoraToJson(adapted.lora));
  for (const auto& [text, preset] :
       {std::pair<const char*, const char*>{"tp=3", "tp"}, {"dp=3", "fsdp"}, {"pp=2", "pp"}}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&, preset = preset](Context& context) -> absl::Status {
      Transformer model(adapted.config);
      DT_RETURN_IF_ERROR(AddLora(model, again));
      model.VisitParameters([](const std::string&, Parameter& parameter) {
        if (parameter.is_adapter) parameter.init = ParameterInit::Constant(7);
      });
      DT_RETURN_IF_ERROR(adapted.Place(model, context, mesh, preset));
      DT_RETURN_IF_ERROR(LoadAdapter(model, folder_).status());
      const Layout one = Layout::Replicated(mesh, 2);
      absl::Status status;
      model.VisitParameters([&](const std::string& path, Parameter& parameter) {
        if (!parameter.is_adapter || !status.ok()) return;
        const TensorOr whole = parameter.tensor.Detach().Redistribute(one);
        status.Update(whole.status());
        if (!whole.ok()) return;
        const auto values = ToGlobal<double>(*whole);
        EXPECT_THAT(values, IsOkAndHolds(saved.at(path))) << path << " on " << mesh.ToString();
      });
      return status;
    }));
  }
}

// Base weights are those of the model's own folder, with and without adapters.
TEST_F(AdapterFolder, IsApartFromTheModels) {
  DT_ASSERT_OK_AND_ASSIGN(const Adapted adapted, Adapted::Read());
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    Transformer plain(adapted.config), model(adapted.config);
    DT_RETURN_IF_ERROR(adapted.Place(plain, context, mesh, "tp"));
    DT_RETURN_IF_ERROR(SaveHuggingFace(plain, folder_, {}));
    DT_RETURN_IF_ERROR(AddLora(model, adapted.lora));
    DT_RETURN_IF_ERROR(adapted.Place(model, context, mesh, "tp"));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    EXPECT_THAT(SaveHuggingFace(model, folder_, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("lora_"), HasSubstr("MergeLora"))));
    EXPECT_THAT(SaveAdapter(model, folder_, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LoraToJson")));
    EXPECT_THAT(SaveAdapter(plain, folder_, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AddLora")));
    EXPECT_THAT(LoadAdapter(model, folder_),  // it has a model's weights alone
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("adapter_model.safetensors")));
    EXPECT_THAT(LoadAdapter(plain, kPeft),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which the model lacks")));
    DT_RETURN_IF_ERROR(SaveAdapter(model, folder_, {.config = "{}"}));  // beside the model
    DT_RETURN_IF_ERROR(LoadAdapter(model, folder_).status());
    return LoadHuggingFace(model, folder_).status();
  }));
}

TEST_F(AdapterFolder, OfAnotherRankIsRefused) {
  DT_ASSERT_OK_AND_ASSIGN(Adapted adapted, Adapted::Read());
  adapted.lora.rank = 4;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Transformer model(adapted.config);
    DT_RETURN_IF_ERROR(AddLora(model, adapted.lora));
    DT_RETURN_IF_ERROR(adapted.Place(model, context, *DeviceMesh::Parse("tp=1"), "none"));
    EXPECT_THAT(
        LoadAdapter(model, kPeft),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("LoadAdapter: "), HasSubstr("[3, 24]"), HasSubstr("[4, 24]"))));
    return absl::OkStatus();
  }));
}

TEST(LoraJson, IsReadAsItIsWritten) {
  const LoraOptions options = {
      .rank = 5, .alpha = 2.5, .rank_stabilized = true, .dropout = 0.125, .layers = {"a", "b.c"}};
  DT_ASSERT_OK_AND_ASSIGN(const LoraOptions read, LoraFromJson(LoraToJson(options, "x")));
  EXPECT_EQ(LoraToJson(read, "x"), LoraToJson(options, "x"));
  EXPECT_EQ(read.alpha, 2.5);
  EXPECT_EQ(read.layers, options.layers);
}

TEST(LoraJson, KeepsAnyScale) {
  for (const double alpha : {0.0, 1e300, 1e15, 123456789.25}) {
    const absl::StatusOr<LoraOptions> read = LoraFromJson(LoraToJson({.alpha = alpha}));
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->alpha, alpha);
  }
  EXPECT_TRUE(
      LoraFromJson(R"({"target_modules": null, "init_lora_weights": "gaussian"})")->layers.empty());
}

TEST(LoraJson, RefusesWhatThereIsNot) {
  for (const auto& [json, word] : {
           std::pair<const char*, const char*>{"[]", "no JSON object"},
           {R"({"peft_type": "LOHA"})", "LOHA"},
           {R"({"r": 0})", "r"},
           {R"({"lora_dropout": 1})", "lora_dropout"},
           {R"({"target_modules": "all-linear"})", "give a list"},
           {R"({"target_modules": ["a", 1]})", "list of texts"},
           {R"({"bias": "all"})", "biases"},
           {R"({"use_dora": true})", "two matrices"},
           {R"({"rank_pattern": {"q_proj": 3}})", "rank_pattern.q_proj"},
           {R"({"alpha_pattern": {"a": 3}})", "one scale"},
           {R"({"rank_pattern": [3]})", "rank_pattern"},
           {R"({"lora_alpha": -1})", "lora_alpha"},
           {R"({"init_lora_weights": "pissa_niter_16"})", "path_initial_model_for"},
           {R"({"init_lora_weights": 1})", "init_lora_weights"},
           {R"({"kasa_config": {"a": 1}})", "two matrices"},
           {R"({"modules_to_save": ["lm_head"]})", "target_modules"},
           {R"({"layers_to_transform": [0]})", "target_modules"},
       }) {
    EXPECT_THAT(LoraFromJson(json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(word)))
        << json;
  }
  EXPECT_THAT(ReadLoraOptions("/nowhere"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/adapter_config.json")));
}

}  // namespace
}  // namespace dtensor
