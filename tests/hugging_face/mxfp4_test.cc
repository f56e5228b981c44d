// Folders whose experts are in MXFP4, as OpenAI's of GPT-OSS: dequantized on any mesh, each rank
// reading what it holds; what cannot be read is refused.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/hugging_face/model_folder.h"
#include "dtensor/tests/hugging_face/raw_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

// Two blocks of 32 in each column of gate_up_proj, three in each of down_proj.
TransformerConfig Config() {
  TransformerConfig config;
  config.vocab = 29, config.dim = 64, config.layers = 1, config.heads = 6, config.kv_heads = 3;
  config.head_size = 4, config.hidden = 96, config.qkv_bias = config.o_bias = true;
  config.attention_sinks = true;
  config.experts = 4, config.expert_clamp = SwiGluClamp();
  return config;
}

// By another way than the library's: sign, exponent, mantissa.
double E2m1(int bits) {
  const int exponent = bits >> 1 & 3;
  const double mantissa = (bits & 1) / 2.0 + (exponent > 0 ? 1 : 0);
  return (bits & 8 ? -1 : 1) * mantissa * std::pow(2, (exponent > 0 ? exponent : 1) - 1);
}

class Mxfp4Folder : public HuggingFaceFolder {
 protected:
  Mxfp4Folder() {
    values_ = Save(Config(), folder_, "tp=1", {});
    const SafetensorsFolder files = *SafetensorsFolder::Open(folder_);
    for (const auto& [name, tensor] : files.tensors()) {
      const Dims& shape = tensor.info->shape;
      if (absl::EndsWith(name, "_proj") && shape.size() == 3) {
        Quantize(name, shape);
      } else {
        tensors_.push_back({name, "F32", shape, BytesOf(values_.at(name))});
      }
    }
    WriteRaw(folder_, tensors_);
  }

  // Makes whatever bytes, and says what they stand for.
  void Quantize(const std::string& name, const Dims& shape) {
    const int64_t experts = shape[0], in = shape[1], columns = shape[2];
    std::vector<uint8_t> blocks(experts * columns * in / 2), scales(experts * columns * in / 32);
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(Random());
    for (uint8_t& byte : scales) byte = static_cast<uint8_t>(117 + Random() % 20);
    std::vector<float>& values = values_.at(name);
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t i = 0; i < in; ++i) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t element = (e * columns + c) * in + i;  // they are stored transposed
          const int bits = i % 2 == 0 ? blocks[element / 2] % 16 : blocks[element / 2] / 16;
          values[(e * in + i) * columns + c] =
              static_cast<float>(E2m1(bits) * std::pow(2, scales[element / 32] - 127));
        }
      }
    }
    tensors_.push_back({name + "_blocks", "U8", {experts, columns, in / 32, 16}, BytesOf(blocks)});
    tensors_.push_back({name + "_scales", "U8", {experts, columns, in / 32}, BytesOf(scales)});
  }

  uint32_t Random() { return (state_ = state_ * 1664525 + 1013904223) >> 8; }

  RawTensor& Find(absl::string_view name) {
    for (RawTensor& raw : tensors_) {
      if (raw.name == name) return raw;
    }
    ADD_FAILURE() << name;
    return tensors_[0];
  }

  std::map<std::string, std::vector<float>> values_;
  std::vector<RawTensor> tensors_;
  uint32_t state_ = 1;
  const std::string name_ = "model.layers.0.mlp.experts.down_proj";
};

TEST_F(Mxfp4Folder, IsReadOnAnyMesh) {
  int64_t all = 0;
  for (const RawTensor& raw : tensors_) all += static_cast<int64_t>(raw.bytes.size());
  for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "ep=2", "ep=2,tp=2", "dp=2,tp=2"}) {
    SCOPED_TRACE(mesh);
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      Transformer model(Config());
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

// bf16 has room for all of them; whatever else the scale, and NaN for the last one.
TEST_F(Mxfp4Folder, HasTheValuesOfItsFormats) {
  RawTensor& blocks = Find(name_ + "_blocks");
  for (size_t i = 0; i < blocks.bytes.size(); ++i) blocks.bytes[i] = static_cast<char>(i);
  RawTensor& scales = Find(name_ + "_scales");
  for (size_t i = 0; i < scales.bytes.size(); ++i) scales.bytes[i] = static_cast<char>(i);
  WriteRaw(folder_, tensors_);
  const int64_t in = 96, columns = 64;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Transformer model(Config());
    model.SetDType(DType::kBF16);
    DT_RETURN_IF_ERROR(Place(model, context, "tp=1", 0));
    DT_RETURN_IF_ERROR(LoadHuggingFace(model, folder_).status());
    DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
    DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<double>(*Cast(state.at(name_), DType::kF64)));
    for (size_t at = 0; at < got.size(); ++at) {
      const int64_t c = at % columns, i = at / columns % in, e = at / columns / in;
      const int64_t element = (e * columns + c) * in + i;
      const int byte = element / 2 % 256, scale = element / 32 % 256;
      const double want = E2m1(i % 2 == 0 ? byte % 16 : byte / 16) * std::pow(2, scale - 127);
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(got[at])) << at;
      } else if (std::abs(want) < std::pow(2, 128)) {
        EXPECT_EQ(got[at], want) << at;
      } else {
        EXPECT_TRUE(std::isinf(got[at])) << at << ' ' << want;
      }
    }
    return absl::OkStatus();
  }));
}

TEST_F(Mxfp4Folder, ThatCannotBeReadIsRefused) {
  const std::vector<RawTensor> good = tensors_;
  const auto refuses = [&](const std::string& what) {
    WriteRaw(folder_, tensors_);
    EXPECT_THAT(LoadStatus(Config(), folder_), Refuses(HasSubstr(what)));
    tensors_ = good;
  };
  const std::string blocks = name_ + "_blocks", scales = name_ + "_scales";
  Find(scales).name = "other";
  refuses("down_proj_blocks is U8 [4, 64, 3, 16], and has no scales: ");
  Find(scales).shape = {4, 3, 64};
  refuses("its scales are U8 [4, 3, 64]; in MXFP4 they are U8 [4, 64, 3]");
  Find(blocks).type = "I8";
  refuses("is I8 [4, 64, 3, 16], and in MXFP4 it is U8 [experts, out, in / 32, 16]");
  Find(blocks).type = "F8_E4M3";
  refuses("is F8_E4M3 [4, 64, 3, 16], and in MXFP4 it is U8 [experts, out, in / 32, 16]");
  Find(blocks).shape = {4, 64, 6, 8};
  refuses("is U8 [4, 64, 6, 8], and in MXFP4");
  Find(blocks).shape = {4, 32, 6, 16};
  Find(scales).shape = {4, 32, 6};
  refuses("down_proj is [4, 192, 32], and the model's is [4, 96, 64]");
  Find(blocks).name = "other";
  refuses("has no tensor model.layers.0.mlp.experts.down_proj, which the model has");
  // Scales beside a weight that is not quantized.
  Find(blocks) = {name_, "F32", {4, 96, 64}, BytesOf(values_.at(name_))};
  refuses("has a tensor model.layers.0.mlp.experts.down_proj_scales, which the model lacks");
}

}  // namespace
}  // namespace dtensor
