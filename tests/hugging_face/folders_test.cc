// Weights are loaded into models on any mesh and saved from them by name; each rank reads what it
// holds. A tensor that only the files have, or only the model, is refused on every rank equally.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/hugging_face/model_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 9 heads of 3 keys, as SmolLM2 has; biases, norms.
TransformerConfig SmallConfig() {
  TransformerConfig config;
  config.vocab = 29, config.dim = 36, config.layers = 2, config.heads = 9, config.kv_heads = 3;
  config.hidden = 40, config.tie_embeddings = true, config.qkv_bias = true, config.qk_norm = true;
  return config;
}

TEST_F(HuggingFaceFolder, GoesInAndOutOnAnyMesh) {
  for (const bool fused : {false, true}) {
    TransformerConfig config = SmallConfig();
    config.fused_projections = fused;
    const auto saved = Save(config, folder_, "tp=2", {});
    for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "dp=2,tp=2", "dp=3"}) {
      for (const bool other_fused : {false, true}) {
        SCOPED_TRACE(absl::StrCat(mesh, fused, other_fused));
        config.fused_projections = other_fused;
        DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) {
          Transformer model(config);
          model.SkipFirstValues();
          DT_RETURN_IF_ERROR(Place(model, context, mesh, 0));
          int64_t held = 0;
          model.VisitParameters([&](const std::string&, Parameter& parameter) {
            held += parameter.tensor.local().bytes();
          });
          DT_ASSIGN_OR_RETURN(const int64_t read, LoadHuggingFace(model, folder_));
          EXPECT_EQ(read, held) << "what a rank holds is what it reads";
          DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
          EXPECT_EQ(values, saved);
          return absl::OkStatus();
        }));
      }
    }
  }
}

TEST_F(HuggingFaceFolder, IsSeveralFilesWithAnIndex) {
  Save(SmallConfig(), folder_, "tp=1", {});  // one file, which is not to be read afterwards
  TransformerConfig config = SmallConfig();
  config.tie_embeddings = false;
  const auto saved = Save(config, folder_, "tp=3", {.config = "{}", .max_file_bytes = 5000});
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(folder_, "/", kSafetensorsFile)));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder files, SafetensorsFolder::Open(folder_));
  EXPECT_EQ(files.tensors().size(), saved.size());
  EXPECT_THAT(files.tensors().at("lm_head.weight").file->path(), HasSubstr("-of-"));
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) {
    Transformer model(config);
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 99));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
    EXPECT_EQ(values, saved);
    return absl::OkStatus();
  }));
}

TEST_F(HuggingFaceFolder, IsConvertedOnTheWay) {
  const auto saved = Save(SmallConfig(), folder_, "tp=2", {.dtype = DType::kBF16});
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) {
      Transformer model(SmallConfig());
      model.SetDType(dtype);
      model.SkipFirstValues();
      DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
      DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
      DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
      for (const auto& [name, tensor] : state) {
        DT_ASSIGN_OR_RETURN(const DistributedTensor as_f32, Cast(tensor, DType::kF32));
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(as_f32));
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_NEAR(values[i], saved.at(name)[i], std::abs(saved.at(name)[i]) / 256) << name;
        }
      }
      return absl::OkStatus();
    }));
  }
}

// The call is all ranks' all the same.
TEST_F(HuggingFaceFolder, IsSavedOfAModelOnSomeRanks) {
  for (const bool fused : {false, true}) {
    TransformerConfig config = SmallConfig();
    config.fused_projections = fused;
    const auto wanted = Save(config, folder_, "tp=2", {.dtype = DType::kBF16});
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder before, SafetensorsFolder::Open(folder_));
    const std::string other = absl::StrCat(folder_, "/some", fused);
    DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
      Transformer model(config), loaded(config);
      DT_RETURN_IF_ERROR(Place(model, context, "tp=2@1..2", 7));
      DT_RETURN_IF_ERROR(SaveHuggingFace(model, other, {.dtype = DType::kBF16}));
      DT_RETURN_IF_ERROR(Place(loaded, context, "tp=3", 8));
      DT_RETURN_IF_ERROR(LoadHuggingFace(loaded, other).status());
      DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(loaded));
      DT_RETURN_IF_ERROR(LoadHuggingFace(loaded, folder_).status());
      EXPECT_THAT(ValuesOf(loaded), IsOkAndHolds(values));
      return absl::OkStatus();
    }));
  }
}

TEST_F(HuggingFaceFolder, ThatDoesNotFitIsRefusedByName) {
  EXPECT_THAT(LoadStatus(SmallConfig(), folder_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("there is neither")));
  Save(SmallConfig(), folder_, "tp=1", {});
  TransformerConfig other = SmallConfig();
  other.layers = 1;
  EXPECT_THAT(LoadStatus(other, folder_), Refuses(HasSubstr("model.layers.1.")));
  DT_EXPECT_OK(LoadStatus(other, folder_, {.allow_others = true}));
  other = SmallConfig();
  other.layers = 3;
  EXPECT_THAT(LoadStatus(other, folder_), Refuses(HasSubstr("no tensor model.layers.2.")));
  other = SmallConfig();
  other.hidden = 44;
  EXPECT_THAT(LoadStatus(other, folder_),
              Refuses(AllOf(HasSubstr("mlp.gate_proj.weight"), HasSubstr("is [40, 36]"))));
  other = SmallConfig();
  other.tie_embeddings = false;
  EXPECT_THAT(LoadStatus(other, folder_), Refuses(HasSubstr("no tensor lm_head.weight")));
  std::ofstream(absl::StrCat(folder_, "/", kSafetensorsFile)) << "no header";
  EXPECT_THAT(LoadStatus(SmallConfig(), folder_), Refuses(HasSubstr("model.safetensors")));
}

// A folder that ranks see with unlike eyes: one of them has its own, which is cut off.
TEST_F(HuggingFaceFolder, ThatOneRankCannotReadIsAnErrorOfAll) {
  Save(SmallConfig(), folder_, "tp=1", {});
  const std::string bad = absl::StrCat(folder_, "/bad");
  std::filesystem::create_directories(bad);
  std::ofstream(absl::StrCat(bad, "/", kSafetensorsFile)) << "bad";
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) {
    Transformer model(SmallConfig());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=3", 0));
    const absl::Status status =
        LoadHuggingFace(model, context.rank() == 1 ? bad : folder_).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1: ")));
    return LoadHuggingFace(model, folder_).status();
  }));
}

// A norm of a base model, and of one around it, which the files lack.
class Norms : public Module {
 public:
  explicit Norms(Module* base) : norm_(4, 1e-5) {
    if (base != nullptr) AddChild("model", base);
    AddChild("norm", &norm_);
  }

 private:
  RmsNormLayer norm_;
};

TEST_F(HuggingFaceFolder, GivesEachTensorToOneParameter) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Norms base(nullptr), model(&base);
    DT_RETURN_IF_ERROR(model.Materialize(context, DeviceMesh(), 1));
    DT_RETURN_IF_ERROR(SaveHuggingFace(base, folder_, {}));
    EXPECT_THAT(LoadHuggingFace(base, folder_), IsOk());
    EXPECT_THAT(LoadHuggingFace(model, folder_).status(),
                Refuses(HasSubstr("has no tensor model.norm.weight")));
    return absl::OkStatus();
  }));
}

// Other weights of one kind of model fit all the same.
TEST_F(HuggingFaceFolder, MustBeOneOfAllRanks) {
  const std::string other = absl::StrCat(folder_, "/other");
  Save(SmallConfig(), folder_, "tp=1", {});
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) {
    Transformer model(SmallConfig());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=1", 8));
    return SaveHuggingFace(model, other, {});
  }));
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) {
    Transformer model(SmallConfig());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
    EXPECT_THAT(
        LoadHuggingFace(model, context.rank() == 1 ? other : folder_).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 has other files in ")));
    return LoadHuggingFace(model, folder_).status();
  }));
}

TEST_F(HuggingFaceFolder, ThatCannotBeWrittenIsAnErrorOfAll) {
  std::ofstream(absl::StrCat(folder_, "/file")) << "x";
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) {
    Transformer model(SmallConfig());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
    EXPECT_THAT(SaveHuggingFace(model, absl::StrCat(folder_, "/file/in"), {}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("file/in")));
    EXPECT_THAT(SaveHuggingFace(model, folder_, {.max_file_bytes = 0}),
                Refuses(HasSubstr("at least a byte")));
    return SaveHuggingFace(model, folder_, {});
  }));
}

TEST_F(HuggingFaceFolder, MayLackTheNameOfTheBaseModel) {
  const auto saved = Save(SmallConfig(), folder_, "tp=1", {});
  std::vector<SafetensorsEntry> entries;
  const int64_t dim = 36;
  const std::vector<float> others(dim, 1);
  std::map<std::string, Dims> shapes;
  {
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder files, SafetensorsFolder::Open(folder_));
    for (const auto& [name, tensor] : files.tensors()) shapes[name] = tensor.info->shape;
  }
  for (const auto& [name, shape] : shapes) {
    entries.push_back({name.substr(6), DType::kF32, shape, saved.at(name).data()});  // "model."
  }
  entries.push_back({"layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {dim}, others.data()});
  const std::string path = absl::StrCat(folder_, "/", kSafetensorsFile);
  for (const char* const name : {"eh_proj.weight", "enorm.weight", "self_attn.q_proj.weight"}) {
    const std::string of_second_token = absl::StrCat("model.layers.9.", name);
    entries.push_back({of_second_token, DType::kF32, {dim}, others.data()});
  }
  DT_ASSERT_OK(WriteSafetensors(path, entries, {}));
  DT_EXPECT_OK(LoadStatus(SmallConfig(), folder_));
  entries.push_back({"score.weight", DType::kF32, {dim}, others.data()});
  DT_ASSERT_OK(WriteSafetensors(path, entries, {}));
  EXPECT_THAT(LoadStatus(SmallConfig(), folder_), Refuses(HasSubstr("score.weight")));
}

}  // namespace
}  // namespace dtensor
