#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;

// The defaults of Hugging Face's classes, and what only some of them have.
struct Kind {
  absl::string_view type;
  int64_t vocab = 32000, dim = 4096, layers = 32, hidden = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t heads = 32;
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double norm_eps = 1e-6, rope_theta = 10000;
  // qkv_biased: unless the file says otherwise, by qkv_bias.
  bool always_biased = false, may_be_biased = false, may_bias_mlp = false, qkv_biased = false;
  bool qk_norm = false;
  enum class Window {
    kNone,
    kAlways,
    kIfGiven,
    kIfUsed,
    kIfUsedByAll,
    kNever
  } window = Window::kNone;
  enum class Mixture { kNone, kMixtral, kQwen2, kQwen3, kGlm4, kDeepSeek } mixture = Mixture::kNone;
  double rotary_share = 1;  // of a head's features, if the type has partial_rotary_factor
};
using Window = Kind::Window;
using Mixture = Kind::Mixture;
constexpr Kind kKinds[] = {
    {.type = "deepseek_v3",
     .vocab = 129280,
     .dim = 7168,
     .layers = 61,
     .hidden = 18432,
     .kv_heads = 128,
     .heads = 128,
     .may_be_biased = true,
     .mixture = Mixture::kDeepSeek},
    {.type = "glm4_moe",
     .vocab = 151552,
     .layers = 46,
     .hidden = 10944,
     .kv_heads = 8,
     .heads = 96,
     .norm_eps = 1e-5,
     .may_be_biased = true,
     .mixture = Mixture::kGlm4,
     .rotary_share = 0.5},
    {.type = "llama", .hidden = 11008, .may_be_biased = true, .may_bias_mlp = true},
    {.type = "mistral", .hidden = 14336, .kv_heads = 8, .window = Window::kAlways},
    {.type = "mixtral",
     .hidden = 14336,
     .kv_heads = 8,
     .norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = Window::kIfGiven,
     .mixture = Mixture::kMixtral},
    {.type = "qwen2",
     .vocab = 151936,
     .hidden = 22016,
     .kv_heads = 32,
     .always_biased = true,
     .window = Window::kIfUsed},
    {.type = "qwen2_moe",
     .vocab = 151936,
     .dim = 2048,
     .layers = 24,
     .hidden = 5632,
     .kv_heads = 16,
     .heads = 16,
     .qkv_biased = true,
     .window = Window::kNever,
     .mixture = Mixture::kQwen2},
    {.type = "qwen3",
     .vocab = 151936,
     .hidden = 22016,
     .kv_heads = 32,
     .head_dim = 128,
     .may_be_biased = true,
     .qk_norm = true,
     .window = Window::kIfUsed},
    {.type = "qwen3_moe",
     .vocab = 151936,
     .dim = 2048,
     .layers = 24,
     .hidden = 6144,
     .kv_heads = 4,
     .may_be_biased = true,
     .qk_norm = true,
     .window = Window::kIfUsedByAll,
     .mixture = Mixture::kQwen3},
};

const Kind& KindOf(ConfigReader& json) {
  const std::string type = json.Text("model_type", "llama");
  for (const Kind& kind : kKinds) {
    if (kind.type != type) continue;
    json.OnlyModel(kind.type);
    return kind;
  }
  json.Refuse(
      "model_type",
      "this reads the configuration of a deepseek_v3, glm4_moe, llama, mistral, mixtral, qwen2, "
      "qwen2_moe, qwen3 or qwen3_moe");
  return kKinds[0];
}

void ReadBiases(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  constexpr absl::string_view kAttention = "attention_bias", kMlp = "mlp_bias";
  config.qkv_bias = kind.always_biased;
  if (kind.qkv_biased) config.qkv_bias = json.Flag("qkv_bias", true);
  if (kind.may_be_biased) config.qkv_bias = json.Flag(kAttention, false);
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

// The number of experts: files of either type may have either name.
int64_t ReadExperts(ConfigReader& json, int64_t if_missing) {
  constexpr absl::string_view kNewer = "num_local_experts", kOlder = "num_experts";
  return json.Size(json.Has(kNewer) ? kNewer : kOlder, if_missing, ConfigReader::kMaxExperts);
}

bool HasSigmoids(const Kind& kind) {
  return kind.mixture == Mixture::kGlm4 || kind.mixture == Mixture::kDeepSeek;
}

// Layers without experts: the first ones; or those of a list, and all but each step-th one.
std::vector<bool> DenseLayersOf(ConfigReader& json, const Kind& kind, int64_t layers) {
  std::vector<bool> dense(layers);
  if (HasSigmoids(kind)) {
    const bool is_glm4 = kind.mixture == Mixture::kGlm4;
    const int64_t first = json.Count("first_k_dense_replace", is_glm4 ? 1 : 3);
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
  config.expert_scale = 1;
}

// Experts whose routers have sigmoid scores.
void ReadSigmoidRouter(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  const bool is_glm4 = kind.mixture == Mixture::kGlm4;
  config.router_score = RouterScore::kSigmoid;
  config.hidden = json.Size("moe_intermediate_size", is_glm4 ? 1408 : 2048);
  config.experts = json.Size("n_routed_experts", is_glm4 ? 128 : 256, ConfigReader::kMaxExperts);
  config.experts_per_token = json.Size("num_experts_per_tok", 8);
  config.normalize_experts = json.Flag("norm_topk_prob", true);
  config.expert_scale = json.Number("routed_scaling_factor", is_glm4 ? 1 : 2.5);
  config.expert_groups = json.Size("n_group", is_glm4 ? 1 : 8);
  config.picked_groups = json.Size("topk_group", is_glm4 ? 1 : 4);
  config.shared_hidden = config.hidden * json.Count("n_shared_experts", 1);
}

// The MLP, or the experts.
void ReadMlp(ConfigReader& json, const Kind& kind, TransformerConfig& config) {
  if (kind.mixture == Mixture::kNone) {
    config.hidden = json.Size("intermediate_size", kind.hidden);
    return;
  }
  if (kind.mixture == Mixture::kMixtral) {
    config.hidden = json.Size("intermediate_size", kind.hidden);
    config.experts = ReadExperts(json, 8);
    config.experts_per_token = json.Size("num_experts_per_tok", 2);
    config.mixtral_names = true;
    if (json.Number("router_jitter_noise", 0) > 0) {
      json.Refuse("router_jitter_noise", "the router has no noise; set it to 0");
    }
    return;
  }
  if (HasSigmoids(kind)) {
    ReadSigmoidRouter(json, kind, config);
    ReadDenseLayers(json, kind, config);
    return;
  }
  const bool shares = kind.mixture == Mixture::kQwen2;
  config.hidden = json.Size("moe_intermediate_size", shares ? 1408 : 768);
  config.experts = ReadExperts(json, shares ? 60 : 128);
  config.experts_per_token = json.Size("num_experts_per_tok", shares ? 4 : 8);
  config.normalize_experts = json.Flag("norm_topk_prob", false);
  if (shares) config.shared_hidden = json.Size("shared_expert_intermediate_size", 5632);
  ReadDenseLayers(json, kind, config);
}

// Refuses members that would change the result and that this model does not support.
void RefuseOthers(ConfigReader& json) {
  json.OnlyText("hidden_act", "silu", "the MLP is SwiGLU, of silu");
  if (json.Probability("attention_dropout", 0) > 0) {
    json.Refuse("attention_dropout", "attention has no dropout; set it to 0");
  }
}

// A number above 0. If it is missing, it is refused: Hugging Face has no default for it.
double Factor(ConfigReader& json, absl::string_view group, absl::string_view member) {
  const std::string name = absl::StrCat(group, member);
  const double number = json.Number(name, 0);
  if (number == 0) json.Refuse(name, "give a number above 0");
  return number;
}

// Of "llama3".
void ReadTurns(ConfigReader& json, absl::string_view group, RopeScaling& scaling) {
  scaling.low = Factor(json, group, ".low_freq_factor");
  scaling.high = Factor(json, group, ".high_freq_factor");
  scaling.trained = Factor(json, group, ".original_max_position_embeddings");
  if (scaling.low >= scaling.high) {
    json.Refuse(absl::StrCat(group, ".high_freq_factor"), "give more than low_freq_factor");
  }
}

// Hugging Face's default for attention_factor, and for quotients of which it may consist.
double YarnAmplitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void ReadYarn(ConfigReader& json, absl::string_view group, RopeScaling& scaling) {
  const auto number = [&](absl::string_view member, double if_missing) {
    const double read = json.Number(absl::StrCat(group, member), if_missing);
    return read == 0 ? if_missing : read;  // as there
  };
  scaling.trained = Factor(json, group, ".original_max_position_embeddings");
  scaling.low = number(".beta_slow", 1);
  scaling.high = number(".beta_fast", 32);
  if (scaling.low >= scaling.high) {
    json.Refuse(absl::StrCat(group, ".beta_fast"), "give more than beta_slow");
  }
  const bool whole = json.Flag(absl::StrCat(group, ".truncate"), true);
  scaling.transition = whole ? RopeTransition::kByWholePairs : RopeTransition::kByPairs;
  const double scale = number(".mscale", 0), all = number(".mscale_all_dim", 0);
  const double usual = scale > 0 && all > 0 ? YarnAmplitude(scaling.factor, scale) /
                                                  YarnAmplitude(scaling.factor, all)
                                            : YarnAmplitude(scaling.factor, 1);
  const std::string given = absl::StrCat(group, ".attention_factor");
  scaling.amplitude = json.Has(given) ? Factor(json, group, ".attention_factor") : usual;
}

RopeScaling ReadScaling(ConfigReader& json, const Kind& kind) {
  RopeScaling scaling;
  for (const absl::string_view group : {"rope_scaling", "rope_parameters"}) {
    if (!json.HasObject(group)) continue;
    if (kind.rotary_share == 1) {
      json.Never(absl::StrCat(group, ".partial_rotary_factor"), "whole heads are rotated");
    }
    const std::string newer = absl::StrCat(group, ".rope_type"),
                      older = absl::StrCat(group, ".type");
    const std::string& name = json.Has(newer) ? newer : older;
    const std::string type = json.Text(name, "default");
    if (type == "default") {
      json.Never(absl::StrCat(group, ".factor"), "say by rope_type how it scales");
      continue;
    }
    scaling.factor = Factor(json, group, ".factor");
    if (type == "linear") continue;
    if (type == "llama3") {
      ReadTurns(json, group, scaling);
    } else if (type == "yarn") {
      ReadYarn(json, group, scaling);
    } else {
      json.Refuse(name, "rotary embeddings are scaled by linear, llama3 or yarn, or not at all");
    }
  }
  return scaling;
}

// How many features of a head are rotated; 0: all. Newer files have the share inside an object.
int64_t RotarySize(ConfigReader& json, const Kind& kind, int64_t head_dim) {
  if (kind.rotary_share == 1) return 0;
  constexpr absl::string_view kInside = "rope_parameters.partial_rotary_factor";
  const absl::string_view name = json.Has(kInside) ? kInside : "partial_rotary_factor";
  const double share = json.Number(name, kind.rotary_share);
  const auto size = static_cast<int64_t>(static_cast<double>(head_dim) * std::min(share, 1.0));
  if (share > 1 || size < 2) json.Refuse(name, "give a share of a head, with two features or more");
  return size == head_dim ? 0 : size;
}

// Latent attention. With scaled positions, its softmax has a scale of its own.
void ReadLatent(ConfigReader& json, TransformerConfig& config) {
  config.kv_rank = json.Size("kv_lora_rank", 512);
  config.q_rank = json.IsNull("q_lora_rank") ? 0 : json.Size("q_lora_rank", 1536);
  config.rotary_size = json.Size("qk_rope_head_dim", 64, ConfigReader::kMaxHeadDim);
  config.head_size =
      config.rotary_size + json.Size("qk_nope_head_dim", 128, ConfigReader::kMaxHeadDim);
  config.value_size = json.Size("v_head_dim", 128, ConfigReader::kMaxHeadDim);
  config.rope_interleaved = json.Flag("rope_interleave", true);
  for (const absl::string_view group : {"rope_scaling", "rope_parameters"}) {
    if (!json.HasObject(group) || config.rope_scaling.factor == 1) continue;
    const double all = json.Number(absl::StrCat(group, ".mscale_all_dim"), 0);
    const double factor = all == 0 ? 1 : YarnAmplitude(config.rope_scaling.factor, all);
    config.attention_scale = factor * factor / std::sqrt(static_cast<double>(config.head_size));
  }
}

// The base of the rotary embeddings. Newer files have it inside an object.
double RopeTheta(ConfigReader& json, double if_missing, const RopeScaling& scaling) {
  constexpr absl::string_view kInside = "rope_parameters.rope_theta";
  const absl::string_view name = json.Has(kInside) ? kInside : "rope_theta";
  const double theta = json.Number(name, if_missing);
  if (theta == 0) json.Refuse(name, "give a number above 0");
  if (theta <= 1 && scaling.transition != RopeTransition::kByTurns) {
    json.Refuse(name, "yarn tells pairs apart by their frequencies; give a number above 1");
  }
  return theta;
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
  config.tie_embeddings = json.Flag("tie_word_embeddings", false);
  config.qk_norm = kind.mixture == Mixture::kGlm4 ? json.Flag("use_qk_norm", false) : kind.qk_norm;
  const bool is_latent = kind.mixture == Mixture::kDeepSeek;
  if (!is_latent && (kind.head_dim > 0 || json.Has("head_dim"))) {
    config.head_size = json.Size("head_dim", kind.head_dim, ConfigReader::kMaxHeadDim);
  }
  config.rotary_size = RotarySize(json, kind, config.head_dim());
  config.rope_scaling = ReadScaling(json, kind);
  config.rope_theta = RopeTheta(json, kind.rope_theta, config.rope_scaling);
  if (is_latent) ReadLatent(json, config);
  ReadBiases(json, kind, config);
  ReadWindow(json, kind, config);
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  RefuseOthers(json);
  DT_RETURN_IF_ERROR(json.status());
  return config;
}

}  // namespace dtensor
