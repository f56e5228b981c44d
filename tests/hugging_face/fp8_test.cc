// Folders whose matrices are in FP8, as DeepSeek-V3's: dequantized on any mesh, each rank reading
// what it holds; what cannot be read is refused, and none is written.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/hugging_face/model_folder.h"
#include "dtensor/tests/hugging_face/raw_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBlock[] = {7, 5};  // which divides nothing

TransformerConfig Config() {
  TransformerConfig config;
  config.vocab = 29, config.dim = 24, config.layers = 2, config.heads = 6, config.kv_heads = 3;
  config.hidden = 18, config.qkv_bias = true;
  return config;
}
// The experts' matrices are stacked in the model.
TransformerConfig ConfigWithExperts() {
  TransformerConfig config = Config();
  config.experts = 3;
  config.dense_layers = {0};
  return config;
}

// By another way than the library's: sign, exponent, mantissa.
double E4m3(uint8_t byte) {
  const int exponent = (byte & 0x7f) >> 3;
  const double mantissa = (byte & 7) / 8.0 + (exponent > 0 ? 1 : 0);
  return (byte & 0x80 ? -1 : 1) * mantissa * std::pow(2, (exponent > 0 ? exponent : 1) - 7);
}

void WriteConfig(const std::string& folder, absl::string_view block = "[7, 5]") {
  std::ofstream(absl::StrCat(folder, "/config.json"))
      << R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": )" << block
      << "}}";
}

std::string ConfigOf(const std::string& folder) {
  std::ifstream file(absl::StrCat(folder, "/config.json"));
  return {std::istreambuf_iterator<char>(file), {}};
}

// Quantizes the matrices of the folder's layers to whatever bytes, and says what they stand for.
std::vector<RawTensor> Quantize(const std::string& folder,
                                std::map<std::string, std::vector<float>>& values) {
  std::vector<RawTensor> tensors;
  uint32_t state = 1;
  const auto random = [&state] { return (state = state * 1664525 + 1013904223) >> 8; };
  const SafetensorsFolder files = *SafetensorsFolder::Open(folder);
  for (const auto& [name, tensor] : files.tensors()) {
    const Dims& shape = tensor.info->shape;
    std::vector<float>& wanted = values.at(name);
    if (!absl::EndsWith(name, "_proj.weight")) {
      tensors.push_back({name, "F32", shape, BytesOf(wanted)});
      continue;
    }
    const Dims count = {(shape[0] + kBlock[0] - 1) / kBlock[0],
                        (shape[1] + kBlock[1] - 1) / kBlock[1]};
    std::vector<float> scales(count[0] * count[1]);
    for (float& scale : scales) scale = 1e-3f * static_cast<float>(1 + random() % 1000);
    std::vector<uint8_t> bytes(wanted.size());
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
      do bytes[i] = static_cast<uint8_t>(random());
      while ((bytes[i] & 0x7f) == 0x7f);  // NaN
      const int64_t row = i / shape[1] / kBlock[0], column = i % shape[1] / kBlock[1];
      wanted[i] = static_cast<float>(E4m3(bytes[i])) * scales[row * count[1] + column];
    }
    tensors.push_back({name, "F8_E4M3", shape, BytesOf(bytes)});
    tensors.push_back({name + "_scale_inv", "F32", count, BytesOf(scales)});
  }
  return tensors;
}

class Fp8Folder : public HuggingFaceFolder {
 protected:
  Fp8Folder() { Make(Config()); }

  void Make(const TransformerConfig& config) {
    values_ = Save(config, folder_, "tp=1", {});
    tensors_ = Quantize(folder_, values_);
    WriteRaw(folder_, tensors_);
    WriteConfig(folder_);
  }

  RawTensor& Find(absl::string_view name) {
    for (RawTensor& raw : tensors_) {
      if (raw.name == name) return raw;
    }
    ADD_FAILURE() << name;
    return tensors_[0];
  }

  std::map<std::string, std::vector<float>> values_;
  std::vector<RawTensor> tensors_;
  const std::string name_ = "model.layers.0.self_attn.q_proj.weight";
};

TEST_F(Fp8Folder, IsReadOnAnyMesh) {
  TransformerConfig fused = Config();
  fused.fused_projections = true;
  for (const TransformerConfig& config : {Config(), fused, ConfigWithExperts()}) {
    if (config.experts > 0) Make(config);
    int64_t all = 0;
    for (const RawTensor& raw : tensors_) all += static_cast<int64_t>(raw.bytes.size());
    for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "dp=2,tp=2"}) {
      SCOPED_TRACE(absl::StrCat(mesh, config.fused_projections, config.experts));
      DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) {
        Transformer model(config);
        model.SkipFirstValues();
        DT_RETURN_IF_ERROR(Place(model, context, mesh, 0));
        DT_ASSIGN_OR_RETURN(const int64_t read, LoadHuggingFace(model, folder_));
        EXPECT_EQ(read < all, mesh != "tp=1") << read << " of " << all;
        DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
        EXPECT_EQ(values, values_);
        return absl::OkStatus();
      }));
    }
  }
}

// What f32 values are when they are rounded.
TEST_F(Fp8Folder, IsRoundedFromF32) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      Transformer model(Config());
      model.SetDType(dtype);
      DT_RETURN_IF_ERROR(Place(model, context, "tp=1", 0));
      DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
      model.VisitParameters([&](const std::string& path, Parameter& parameter) {
        if (path != name_) return;
        const std::vector<double> got =
            *ToGlobal<double>(*Cast(parameter.tensor.Detach(), DType::kF64));
        for (size_t i = 0; i < got.size(); ++i) {
          float want = values_.at(name_)[i];
          if (dtype == DType::kBF16) want = static_cast<float>(BFloat16(want));
          if (dtype == DType::kF16) want = static_cast<float>(Float16(want));
          EXPECT_EQ(got[i], want) << i;
        }
      });
      return absl::OkStatus();
    }));
  }
}

// The files may have a tied weight under both of its names, each with scales; the first is read.
TEST_F(Fp8Folder, MayHaveATiedWeightTwice) {
  TransformerConfig tied = Config();
  tied.tie_embeddings = true;
  Make(tied);
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  RawTensor& stored = Find(embedding);
  const Dims blocks = {(tied.vocab + kBlock[0] - 1) / kBlock[0],
                       (tied.dim + kBlock[1] - 1) / kBlock[1]};
  stored.type = "F8_E4M3";
  stored.bytes = std::string(tied.vocab * tied.dim, '\x38');  // 1
  const RawTensor copy = {head, stored.type, stored.shape, stored.bytes};
  const std::string scales = BytesOf(std::vector<float>(blocks[0] * blocks[1], 0.25f));
  tensors_.push_back(copy);
  for (const std::string& name : {embedding, head}) {
    tensors_.push_back({name + "_scale_inv", "F32", blocks, scales});
  }
  WriteRaw(folder_, tensors_);
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(tied);
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
    EXPECT_EQ(values.at(embedding), std::vector<float>(tied.vocab * tied.dim, 0.25f));
    return absl::OkStatus();
  }));
}

TEST_F(Fp8Folder, MayHaveScalesInBf16) {
  RawTensor& scales = Find(name_ + "_scale_inv");
  scales.type = "BF16";
  const size_t count = scales.bytes.size() / sizeof(float);
  scales.bytes = BytesOf(std::vector<BFloat16>(count, BFloat16(0.5f)));
  WriteRaw(folder_, tensors_);
  const std::string bytes = Find(name_).bytes;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(Config());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(values.at(name_)[i], 0.5 * E4m3(static_cast<uint8_t>(bytes[i])));
    }
    return absl::OkStatus();
  }));
}

// All bytes, NaN among them.
TEST_F(Fp8Folder, HasTheValuesOfE4m3) {
  RawTensor& raw = Find("model.layers.0.self_attn.o_proj.weight");  // 576 elements
  for (size_t i = 0; i < raw.bytes.size(); ++i) raw.bytes[i] = static_cast<char>(i);
  RawTensor& scales = Find(raw.name + "_scale_inv");
  scales.bytes = BytesOf(std::vector<float>(scales.bytes.size() / sizeof(float), 1));
  WriteRaw(folder_, tensors_);
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Transformer model(Config());
    DT_RETURN_IF_ERROR(Place(model, context, "tp=1", 0));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    DT_ASSIGN_OR_RETURN(const auto values, ValuesOf(model));
    const std::vector<float>& got = values.at(raw.name);
    for (size_t i = 0; i < got.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(i);
      if ((byte & 0x7f) == 0x7f) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], E4m3(byte)) << i;
      }
    }
    EXPECT_EQ(got[0x7e], 448);
    EXPECT_EQ(got[0x01], std::pow(2, -9));
    EXPECT_EQ(got[0xb8], -1);
    return absl::OkStatus();
  }));
}

TEST_F(Fp8Folder, ThatCannotBeReadIsRefused) {
  const std::vector<RawTensor> good = tensors_;
  const auto refuses = [&](std::vector<const char*> words) {
    WriteRaw(folder_, tensors_);
    const absl::Status status = LoadStatus(Config(), folder_);
    EXPECT_THAT(status, Refuses(HasSubstr("LoadHuggingFace: ")));
    for (const char* const word : words) EXPECT_THAT(status, Refuses(HasSubstr(word)));
    tensors_ = good;
  };
  const std::string scales = name_ + "_scale_inv";
  Find(scales).name = "other";
  refuses({"layers.0.self_attn.q_proj.weight [24, 24] is in FP8",
           "q_proj.weight_scale_inv is missing"});
  Find(scales).shape = {5, 4};
  refuses({"its scales are F32 [5, 4]", "blocks of [7, 5]", "floats [4, 5]"});
  Find(scales).type = "I32";
  refuses({"its scales are I32 [4, 5]"});
  Find(name_).type = "F8_E5M2";
  refuses({"q_proj.weight is F8_E5M2, and the model's is f32, to which it is not converted"});
  // Scales of what is not in FP8.
  Find(name_) = {name_, "F32", {24, 24}, BytesOf(values_.at(name_))};
  refuses({"has a tensor model.layers.0.self_attn.q_proj.weight_scale_inv, which the model lacks"});
  RawTensor& bias = Find("model.layers.0.self_attn.q_proj.bias");
  bias.type = "F8_E4M3";
  bias.bytes.resize(bias.bytes.size() / sizeof(float));
  refuses({"q_proj.bias [24] is in FP8", "only matrices"});

  WriteRaw(folder_, good);
  WriteConfig(folder_, "[8, 5]");
  EXPECT_THAT(LoadStatus(Config(), folder_), Refuses(HasSubstr("blocks of [8, 5]")));
  WriteConfig(folder_, "[7]");
  EXPECT_THAT(LoadStatus(Config(), folder_),
              Refuses(AllOf(HasSubstr("/config.json"), HasSubstr("weight_block_size"))));
  std::ofstream(absl::StrCat(folder_, "/config.json")) << "{}";
  EXPECT_THAT(LoadStatus(Config(), folder_), Refuses(HasSubstr("no quantization_config")));
  std::filesystem::remove(absl::StrCat(folder_, "/config.json"));
  EXPECT_THAT(LoadStatus(Config(), folder_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

// There are as many blocks of 6 rows as of 7.
TEST_F(Fp8Folder, HasOneSizeOfBlocksForAllRanks) {
  const std::string other = absl::StrCat(folder_, "/other");
  std::filesystem::create_directories(other);
  WriteRaw(other, tensors_);
  const auto load = [&] {
    return RunRanks(2, [&](Context& context) -> absl::Status {
      Transformer model(Config());
      DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
      return LoadHuggingFace(model, context.rank() == 1 ? other : folder_).status();
    });
  };
  WriteConfig(other, "[7, 5]");
  DT_EXPECT_OK(load());
  WriteConfig(other, "[6, 5]");
  EXPECT_THAT(load(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 has other files")));
}

// A folder that is written has what its configuration says.
TEST_F(Fp8Folder, IsWrittenWithoutQuantization) {
  const std::string out = absl::StrCat(folder_, "/out");
  const std::string config =
      R"({"z": 1, "quantization_config": {"quant_method": "fp8"}, "a": 1e-06})";
  Save(Config(), out, "tp=1", {.config = config});
  EXPECT_EQ(ConfigOf(out), "{\n  \"z\": 1,\n  \"a\": 1e-06\n}\n");
  const std::string plain = "{ \"z\": 1 }";  // as it is
  Save(Config(), out, "tp=1", {.config = plain});
  EXPECT_EQ(ConfigOf(out), plain);
}

}  // namespace
}  // namespace dtensor
