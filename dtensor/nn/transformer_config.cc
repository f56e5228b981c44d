#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/rope_config.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/nn/transformer_kinds.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;

// Layers of a gemma3_text and a gpt_oss, and where the former's newer files have their rotary
// embeddings.
constexpr absl::string_view kFullAttention = "full_attention",
                            kSlidingAttention = "sliding_attention",
                            kFullRope = "rope_parameters.full_attention",
                            kWindowRope = "rope_parameters.sliding_attention";

using Kind = internal::TransformerKind;
using Gemma = Kind::Gemma;
using Window = Kind::Window;
using Mixture = Kind::Mixture;

const Kind& KindOf(ConfigReader& json) {
  const std::string type = json.Text("model_type", "llama");
  for (const Kind& kind : internal::kTransformerKinds) {
    if (kind.type != type) continue;
    json.OnlyModel(kind.type);
    return kind;
  }
  const auto name = [](std::string* out, const Kind& kind) { absl::StrAppend(out, kind.type); };
  json.Refuse("model_type", absl::StrCat("this reads the configuration of one of ",
                                         absl::StrJoin(internal::kTransformerKinds, ", ", name)));
  return internal::kTransformerKinds[0];
}

void ReadBiases(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  constexpr absl::string_view kAttention = "attention_bias", kMlp = "mlp_bias";
  config.qkv_bias = kind.always_biased;
  if (kind.qkv_biased) config.qkv_bias = json.Flag("qkv_bias", true);
  if (kind.may_be_biased) config.qkv_bias = json.Flag(kAttention, kind.usually_biased);
  config.o_bias = config.qkv_bias && kind.may_be_biased && kind.mixture != Mixture::kGlm4;
  if (kind.may_bias_mlp) config.mlp_bias = json.Flag(kMlp, false);
}

void ReadWindow(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  if (kind.window == Window::kNever) {
    json.OnlyFlag("use_sliding_window", false, "every other layer would have a window");
    return;
  }
  if (kind.window == Window::kNone || json.IsNull("sliding_window")) return;
  if (kind.window == Window::kIfGiven && !json.Has("sliding_window")) return;
  if (kind.window == Window::kAlways || kind.window == Window::kIfGiven) {
    config.window = json.Size("sliding_window", 4096, int64_t{1} << 40);
    return;
  }
  if (!json.Flag("use_sliding_window", false)) return;
  config.window = json.Size("sliding_window", 4096, int64_t{1} << 40);
  if (kind.window == Window::kIfUsed) {
    config.first_window_layer = json.Count("max_window_layers", 28);
  }
}

bool HasSigmoids(const Kind& kind) {
  return kind.mixture == Mixture::kGlm4 || kind.mixture == Mixture::kDeepSeek;
}

// Layers without experts: the first ones; or those of a list, and all but each step-th one.
std::vector<bool> DenseLayersOf(ConfigReader& json, const Kind& kind, int64_t layers) {
  std::vector<bool> dense(layers);
  if (HasSigmoids(kind)) {
    const int64_t first = json.Count("first_k_dense_replace", kind.experts.first_dense);
    std::fill_n(dense.begin(), std::min(first, layers), true);
    return dense;
  }
  const int64_t step = json.Size("decoder_sparse_step", 1, ConfigReader::kMaxLayers);
  const std::vector<int64_t> listed = json.Indices("mlp_only_layers", layers);
  if (!json.status().ok()) return dense;  // step may be anything
  for (const int64_t layer : listed) dense[layer] = true;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if ((layer + 1) % step != 0) dense[layer] = true;
  }
  return dense;
}

void ReadDenseLayers(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  if (!json.status().ok()) return;  // layers may be anything
  const std::vector<bool> dense = DenseLayersOf(json, kind, config.layers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (dense[layer]) config.dense_layers.push_back(layer);
  }
  if (config.dense_layers.empty()) return;
  config.dense_hidden = json.Size("intermediate_size", kind.hidden);
  if (static_cast<int64_t>(config.dense_layers.size()) < config.layers) return;
  config.hidden = config.dense_hidden;  // a model without experts
  config.dense_layers.clear();
  config.experts = config.dense_hidden = config.shared_hidden = 0;
  config.router_score = RouterScore::kSoftmax;
  config.expert_groups = config.picked_groups = 1;
  config.routed_scaling_factor = 1;
}

// Experts whose routers have sigmoid scores.
void ReadSigmoidRouter(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  config.router_score = RouterScore::kSigmoid;
  config.normalize_experts = json.Flag("norm_topk_prob", true);
  config.routed_scaling_factor = json.Number("routed_scaling_factor", kind.experts.scaling);
  config.expert_groups = json.Size("n_group", kind.experts.groups);
  config.picked_groups = json.Size("topk_group", kind.experts.picked_groups);
  const int64_t shared = json.Count("n_shared_experts", 1);
  if (shared > ConfigReader::kMaxExperts) json.Refuse("n_shared_experts", "give 0 to 4096");
  if (json.status().ok()) config.shared_hidden = config.hidden * shared;
}

void ReadExperts(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  // Files of any type may have a newer name for the number.
  constexpr absl::string_view kNewer = "num_local_experts";
  const absl::string_view older = HasSigmoids(kind) ? "n_routed_experts" : "num_experts";
  config.experts =
      json.Size(json.Has(kNewer) ? kNewer : older, kind.experts.number, ConfigReader::kMaxExperts);
  config.experts_per_token = json.Size("num_experts_per_tok", kind.experts.of_token);
  if (kind.mixture == Mixture::kMixtral) {
    config.hidden = json.Size("intermediate_size", kind.hidden);
    config.mixtral_names = true;
    if (json.Number("router_jitter_noise", 0) > 0) {
      json.Refuse("router_jitter_noise", "the router has no noise; set it to 0");
    }
    return;
  }
  if (kind.mixture == Mixture::kGptOss) {
    config.hidden = json.Size("intermediate_size", kind.hidden);
    config.expert_clamp = {json.Number("swiglu_alpha", 1.702), json.Number("swiglu_limit", 7)};
    if (config.expert_clamp->limit == 0) json.Refuse("swiglu_limit", "give a number above 0");
    return;
  }
  config.hidden = json.Size("moe_intermediate_size", kind.experts.hidden);
  if (HasSigmoids(kind)) {
    ReadSigmoidRouter(json, kind, config);
  } else {
    config.normalize_experts = json.Flag("norm_topk_prob", false);
  }
  if (kind.experts.shared_hidden > 0) {
    config.shared_hidden = json.Size("shared_expert_intermediate_size", kind.experts.shared_hidden);
  }
  ReadDenseLayers(json, kind, config);
}

// The MLP, or the experts.
void ReadMlp(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  if (kind.mixture != Mixture::kNone) return ReadExperts(json, kind, config);
  config.hidden = json.Size("intermediate_size", kind.hidden);
}

// Refuses members that would change the result and that this model does not support.
void RefuseOthers(ConfigReader& json, const Kind& kind) {
  if (kind.gemma == Gemma::kNo) json.OnlyText("hidden_act", "silu", "the MLP is SwiGLU, of silu");
  if (json.Probability("attention_dropout", 0) > 0) {
    json.Refuse("attention_dropout", "attention has no dropout; set it to 0");
  }
}

// Latent attention. With scaled positions, its softmax has a scale of its own.
void ReadLatent(ConfigReader& json, TransformerConfig& config) {
  config.kv_lora_rank = json.Size("kv_lora_rank", 512);
  config.q_lora_rank = json.IsNull("q_lora_rank") ? 0 : json.Size("q_lora_rank", 1536);
  config.rotary_dim = json.Size("qk_rope_head_dim", 64, ConfigReader::kMaxHeadDim);
  const int64_t plain = json.Size("qk_nope_head_dim", 128, ConfigReader::kMaxHeadDim);
  config.v_head_dim = json.Size("v_head_dim", 128, ConfigReader::kMaxHeadDim);
  config.rope_interleaved = json.Flag("rope_interleave", true);
  if (!json.status().ok()) return;
  config.head_size = config.rotary_dim + plain;
  const double amplitude = internal::ReadSoftmaxAmplitude(json, config.rope_scaling);
  if (amplitude == 1) return;
  config.attention_scale = amplitude * amplitude / std::sqrt(static_cast<double>(config.head_size));
}

// Layers have windows, but for each `step`-th one, or for those that the file lists.
void ReadWindows(ConfigReader& json, int64_t window, int64_t step, TransformerConfig& config) {
  if (json.IsNull("sliding_window"))
    json.Refuse("sliding_window", "give the window of those layers that have one");
  config.window = json.Size("sliding_window", window, int64_t{1} << 40);
  constexpr absl::string_view kTypes = "layer_types";
  const std::vector<std::string> types = json.Texts(kTypes);
  if (!json.status().ok()) return;
  if (json.Has(kTypes) && static_cast<int64_t>(types.size()) != config.layers) {
    return json.Refuse(kTypes, absl::StrCat("give one for each of ", config.layers, " layers"));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool is_full = types.empty() ? (layer + 1) % step == 0 : types[layer] == kFullAttention;
    if (is_full) config.full_layers.push_back(layer);
    if (is_full || types.empty() || types[layer] == kSlidingAttention) continue;
    return json.Refuse(kTypes,
                       absl::StrCat("they are ", kSlidingAttention, " or ", kFullAttention));
  }
}

// Norms behind attention and MLP; windows, where positions have a base of their own.
void ReadGemma3(ConfigReader& json, TransformerConfig& config) {
  config.post_norms = true;
  config.attention_scale =
      1 / std::sqrt(static_cast<double>(json.Size("query_pre_attn_scalar", 256)));
  ReadWindows(json, 4096, json.Size("sliding_window_pattern", 6, ConfigReader::kMaxLayers), config);
  json.OnlyText(absl::StrCat(kWindowRope, ".rope_type"), "default",
                "the positions of layers with a window are not scaled");
  const std::string inside = absl::StrCat(kWindowRope, ".rope_theta");
  const absl::string_view name =
      json.Has(inside) ? absl::string_view(inside) : "rope_local_base_freq";
  config.window_rope_theta = json.Number(name, 10000);
  if (config.window_rope_theta == 0) json.Refuse(name, "give a number above 0");
  for (const absl::string_view member : {"rope_theta", "rope_type"}) {
    json.Never(absl::StrCat(internal::kRopeParameters, ".", member),
               "give it in full_attention and in sliding_attention");
  }
}

void ReadGemma(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  const bool is_third = kind.gemma == Gemma::kThird;
  config.norm_offset = 1;
  config.embedding_scale = std::sqrt(static_cast<double>(config.dim));
  config.gelu_gate = json.Gelu(is_third ? "hidden_activation" : "hidden_act", "gelu_pytorch_tanh");
  // Files of the first Gemma say "gelu", and mean this one.
  if (!is_third) config.gelu_gate = GeluForm::kTanh;
  json.OnlyFlag("use_bidirectional_attention", false, "attention is causal");
  for (const absl::string_view cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    json.Never(cap, "there is no softcapping");
  }
  if (is_third) ReadGemma3(json, config);
}

// How a gpt_oss scales positions, if the file does not say how.
RopeScaling GptOssScaling() {
  constexpr double kFactor = 32;
  return {.factor = kFactor,
          .low = 1,
          .high = 32,
          .trained = 4096,
          .transition = RopeTransition::kByPairs,
          .amplitude = internal::YarnAmplitude(kFactor, 1)};
}

// Sinks, and windows in every other layer.
void ReadGptOss(ConfigReader& json, TransformerConfig& config) {
  config.attention_sinks = true;
  ReadWindows(json, 128, 2, config);
}

}  // namespace

absl::StatusOr<TransformerConfig> TransformerConfig::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("TransformerConfig", text));
  const Kind& kind = KindOf(json);
  TransformerConfig config;
  config.vocab = json.Size("vocab_size", kind.vocab);
  config.dim = json.Size("hidden_size", kind.dim);
  config.layers = json.Size("num_hidden_layers", kind.layers, ConfigReader::kMaxLayers);
  config.heads = json.Size("num_attention_heads", kind.heads);
  const bool as_heads = kind.kv_heads == 0 || json.IsNull("num_key_value_heads");
  config.kv_heads = json.Size("num_key_value_heads", as_heads ? config.heads : kind.kv_heads);
  ReadMlp(json, kind, config);
  config.norm_eps = json.Number("rms_norm_eps", kind.norm_eps);
  config.init_stddev = json.Number("initializer_range", 0.02);
  config.tie_embeddings = json.Flag("tie_word_embeddings", kind.gemma != Gemma::kNo);
  config.qk_norm = kind.mixture == Mixture::kGlm4 ? json.Flag("use_qk_norm", false) : kind.qk_norm;
  const bool is_latent = kind.mixture == Mixture::kDeepSeek;
  if (!is_latent && (kind.head_dim > 0 || json.Has("head_dim"))) {
    config.head_size = json.Size("head_dim", kind.head_dim, ConfigReader::kMaxHeadDim);
  }
  DT_RETURN_IF_ERROR(json.status());  // what follows divides sizes, and adds them up
  const bool whole_heads = kind.rotary_share == 1;
  if (!whole_heads) {
    config.rotary_dim = internal::ReadRotaryDim(json, kind.rotary_share, config.head_dim());
  }
  const absl::string_view rope =
      kind.gemma == Gemma::kThird ? kFullRope : internal::kRopeParameters;
  config.rope_scaling = internal::ReadRopeScaling(json, whole_heads, rope);
  const bool says_scaling = json.HasObject("rope_scaling") || json.HasObject(rope);
  if (kind.mixture == Mixture::kGptOss && !says_scaling) config.rope_scaling = GptOssScaling();
  config.rope_theta = internal::ReadRopeTheta(json, kind.rope_theta, config.rope_scaling, rope);
  if (is_latent) ReadLatent(json, config);
  if (kind.gemma != Gemma::kNo) ReadGemma(json, kind, config);
  if (kind.mixture == Mixture::kGptOss) ReadGptOss(json, config);
  ReadBiases(json, kind, config);
  ReadWindow(json, kind, config);
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  RefuseOthers(json, kind);
  DT_RETURN_IF_ERROR(json.status());
  return config;
}

}  // namespace dtensor
