#include "dtensor/hugging_face/adapter.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "dtensor/hugging_face/model_files.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

constexpr absl::string_view kConfigFile = "adapter_config.json";
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

// PEFT's modules lora_A and lora_B, which have a weight each, in the wrapped model.
constexpr internal::ModelFiles kAdapterFiles = {
    .adapters = true,
    .weights = "adapter_model.safetensors",
    .config = kConfigFile,
    .name =
        [](absl::string_view path) { return absl::StrCat("base_model.model.", path, ".weight"); },
    .others_remedy = "give AddLora the layers of the adapter's configuration (ReadLoraOptions)",
};

}  // namespace

absl::StatusOr<LoraOptions> LoraFromJson(absl::string_view adapter_config_json) {
  DT_ASSIGN_OR_RETURN(internal::ConfigReader json,
                      internal::ConfigReader::Parse("LoraOptions", adapter_config_json));
  LoraOptions options;
  json.OnlyText("peft_type", "LORA", "there are no other adapters");
  options.rank = json.Size("r", 8);
  options.alpha = json.Number("lora_alpha", 8);
  options.rank_stabilized = json.Flag("use_rslora", false);
  options.dropout = json.Probability("lora_dropout", 0);
  options.layers = json.Texts("target_modules");
  json.OnlyText("bias", "none", "biases are not trained beside adapters");
  for (const absl::string_view flag : {"use_dora", "use_qalora", "lora_bias"}) {
    json.OnlyFlag(flag, false, "an adapter is two matrices and a scale");
  }
  for (const absl::string_view variant :
       {"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"}) {
    json.Never(variant, "an adapter is two matrices and a scale");
  }
  // The others change the weights that the adapter stands beside.
  json.OnlyOneOf("init_lora_weights", {"true", "false", "gaussian", "eva", "orthogonal"},
                 "such adapters are beside other weights than the model's; have PEFT convert it "
                 "(path_initial_model_for_weight_conversion)");
  for (const absl::string_view pattern : {"rank_pattern", "alpha_pattern"}) {
    json.NoMembers(pattern, "all adapters have one rank and one scale");
  }
  for (const absl::string_view list :
       {"modules_to_save", "layers_to_transform", "layer_replication", "target_parameters",
        "exclude_modules", "trainable_token_indices", "alora_invocation_tokens"}) {
    json.Never(list, "adapters are those of the layers in target_modules, and nothing else");
  }
  DT_RETURN_IF_ERROR(json.status());
  return options;
}

absl::StatusOr<LoraOptions> ReadLoraOptions(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kConfigFile);
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  absl::StatusOr<LoraOptions> options = LoraFromJson(text);
  if (options.ok()) return options;
  return absl::Status(options.status().code(),
                      absl::StrCat("'", path, "': ", options.status().message()));
}

std::string LoraToJson(const LoraOptions& options, absl::string_view base_model) {
  nlohmann::json json = {
      {"peft_type", "LORA"},
      {"task_type", nullptr},
      {"r", options.rank},
      {"use_rslora", options.rank_stabilized},
      {"lora_dropout", options.dropout},
      {"target_modules", options.layers},
      {"bias", "none"},
      {"inference_mode", true},
      {"base_model_name_or_path", nullptr},
  };
  json["lora_alpha"] = options.alpha;
  if (options.alpha == std::trunc(options.alpha) && std::fabs(options.alpha) < 1e15) {
    json["lora_alpha"] = static_cast<int64_t>(options.alpha);  // as PEFT's are
  }
  if (!base_model.empty()) json["base_model_name_or_path"] = std::string(base_model);
  return absl::StrCat(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
}

absl::StatusOr<int64_t> LoadAdapter(Module& model, const std::string& folder) {
  return internal::LoadFiles("LoadAdapter", model, folder, kAdapterFiles, {});
}

absl::Status SaveAdapter(Module& model, const std::string& folder,
                         const SaveHuggingFaceOptions& options) {
  return internal::SaveFiles("SaveAdapter", model, folder, kAdapterFiles, options);
}

}  // namespace dtensor
