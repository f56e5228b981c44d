#include "dtensor/nn/model_config.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using ModelOrStatus = absl::StatusOr<std::unique_ptr<Module>>;

template <typename Model, typename Config>
ModelOrStatus Make(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Config config, Config::FromJson(text));
  return std::make_unique<Model>(config);
}

struct ModelType {
  absl::string_view name;
  ModelOrStatus (*make)(absl::string_view text);
};
constexpr ModelType kModelTypes[] = {
    {"bert", Make<BertModel, BertConfig>},
    {"gpt2", Make<Gpt2, Gpt2Config>},
    {"deepseek_v3", Make<Transformer, TransformerConfig>},
    {"gemma", Make<Transformer, TransformerConfig>},
    {"gemma3_text", Make<Transformer, TransformerConfig>},
    {"glm4_moe", Make<Transformer, TransformerConfig>},
    {"gpt_oss", Make<Transformer, TransformerConfig>},
    {"llama", Make<Transformer, TransformerConfig>},
    {"mistral", Make<Transformer, TransformerConfig>},
    {"mixtral", Make<Transformer, TransformerConfig>},
    {"qwen2", Make<Transformer, TransformerConfig>},
    {"qwen2_moe", Make<Transformer, TransformerConfig>},
    {"qwen3", Make<Transformer, TransformerConfig>},
    {"qwen3_moe", Make<Transformer, TransformerConfig>},
};

absl::StatusOr<const ModelType*> FindType(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(internal::ConfigReader json,
                      internal::ConfigReader::Parse("ModelFromJson", text));
  const std::string wanted = json.Text("model_type", "");
  DT_RETURN_IF_ERROR(json.status());
  for (const ModelType& type : kModelTypes) {
    if (type.name == wanted) return &type;
  }
  if (wanted == "resnet" || wanted == "vit") {
    json.Refuse(
        "model_type",
        "models of images are called with images, not with ids: make a ResNet (resnet.h) or "
        "Vit (vit.h) of what FromJson of its configuration reads");
  }
  json.Refuse("model_type", absl::StrCat("give one of those that the library has: ",
                                         absl::StrJoin(ModelTypes(), ", ")));
  return json.status();
}

}  // namespace

ModelOrStatus ModelFromJson(absl::string_view hugging_face_config_json) {
  DT_ASSIGN_OR_RETURN(const ModelType* const type, FindType(hugging_face_config_json));
  return type->make(hugging_face_config_json);
}

std::vector<std::string> ModelTypes() {
  std::vector<std::string> names;
  for (const ModelType& type : kModelTypes) names.emplace_back(type.name);
  return names;
}

absl::StatusOr<std::string> ModelTypeOf(absl::string_view hugging_face_config_json) {
  DT_ASSIGN_OR_RETURN(const ModelType* const type, FindType(hugging_face_config_json));
  return std::string(type->name);
}

}  // namespace dtensor
