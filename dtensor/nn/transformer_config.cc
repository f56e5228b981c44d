#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;

// What changes the result, and is not there.
void RefuseOthers(ConfigReader& json, const TransformerConfig& config) {
  json.OnlyText("hidden_act", "silu", "the MLP is SwiGLU, of silu");
  json.OnlyFlag("attention_bias", false, "projections of attention have no bias");
  json.OnlyFlag("mlp_bias", false, "projections of the MLP have no bias");
  if (json.Probability("attention_dropout", 0) > 0) {
    json.Refuse("attention_dropout", "attention has no dropout; set it to 0");
  }
  const int64_t head_dim = json.Size("head_dim", config.head_dim());
  if (head_dim != config.head_dim()) {
    json.Refuse("head_dim", absl::StrCat("heads have hidden_size / num_attention_heads = ",
                                         config.head_dim(), " features"));
  }
}

// The base of rotary embeddings, which newer files have in an object of its own.
double RopeTheta(ConfigReader& json) {
  for (const absl::string_view group : {"rope_scaling", "rope_parameters"}) {
    if (!json.HasObject(group)) continue;
    for (const absl::string_view member : {".rope_type", ".type"}) {
      json.OnlyText(absl::StrCat(group, member), "default",
                    "rotary embeddings are not scaled; positions beyond those that the model was "
                    "trained on have other angles");
    }
    // Of the older form, which has no default.
    json.Never(absl::StrCat(group, ".factor"), "rotary embeddings are not scaled");
    json.Never(absl::StrCat(group, ".partial_rotary_factor"), "whole heads are rotated");
  }
  constexpr absl::string_view kInside = "rope_parameters.rope_theta";
  const absl::string_view name = json.Has(kInside) ? kInside : "rope_theta";
  const double theta = json.Number(name, 10000);
  if (theta == 0) json.Refuse(name, "give a number above 0");
  return theta;
}

}  // namespace

absl::StatusOr<TransformerConfig> TransformerConfig::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("TransformerConfig", text));
  json.OnlyModel("llama");
  TransformerConfig config;
  config.vocab = json.Size("vocab_size", 32000);
  config.dim = json.Size("hidden_size", 4096);
  config.layers = json.Size("num_hidden_layers", 32, ConfigReader::kMaxLayers);
  config.heads = json.Size("num_attention_heads", 32);
  config.kv_heads = json.Size("num_key_value_heads", config.heads);
  config.hidden = json.Size("intermediate_size", 11008);
  config.norm_eps = json.Number("rms_norm_eps", 1e-6);
  config.init_stddev = json.Number("initializer_range", 0.02);
  config.tie_embeddings = json.Flag("tie_word_embeddings", false);
  config.rope_theta = RopeTheta(json);
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  RefuseOthers(json, config);
  DT_RETURN_IF_ERROR(json.status());
  return config;
}

}  // namespace dtensor
