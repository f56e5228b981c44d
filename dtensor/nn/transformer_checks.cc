// What a TransformerConfig says of itself, and what it refuses.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status CheckDenseLayers(absl::string_view model, const TransformerConfig& config) {
  int64_t with_experts = 0;
  for (int64_t l = 0; l < config.layers; ++l) with_experts += config.has_experts(l) ? 1 : 0;
  for (const int64_t layer : config.dense_layers) {
    if (0 <= layer && layer < config.layers) continue;
    return InvalidArgument({model, ": dense_layers has ", absl::StrCat(layer),
                            ", and layers are 0 to ", absl::StrCat(config.layers - 1)});
  }
  if (with_experts > 0) return absl::OkStatus();
  return InvalidArgument(
      {model, ": all layers are in dense_layers; leave one out, or set experts to 0"});
}

// Of routers with softmax scores.
absl::Status CheckNoGroups(absl::string_view model, const TransformerConfig& config) {
  const char* const has = config.expert_groups != 1           ? "expert_groups"
                          : config.picked_groups != 1         ? "picked_groups"
                          : config.routed_scaling_factor != 1 ? "routed_scaling_factor"
                                                              : nullptr;
  if (has == nullptr) return absl::OkStatus();
  return InvalidArgument({model, ": ", has, " is set, which routers with softmax scores have not; ",
                          "set router_score to kSigmoid"});
}

// What only models with mixtures have.
absl::Status CheckNoMixture(absl::string_view model, const TransformerConfig& config) {
  const bool is_sigmoid = config.router_score == RouterScore::kSigmoid;
  const char* const has = !config.dense_layers.empty() ? "dense_layers"
                          : config.dense_hidden > 0    ? "dense_hidden"
                          : config.shared_hidden > 0   ? "shared_hidden"
                          : is_sigmoid                 ? "router_score"
                          : config.router_sums         ? "router_sums"
                          : config.expert_clamp        ? "expert_clamp"
                                                       : nullptr;
  if (has == nullptr) return CheckNoGroups(model, config);
  return InvalidArgument({model, ": ", has, " is set, and there are no experts; set experts, too"});
}

// What only latent attention has, and what it has not.
absl::Status CheckLatent(absl::string_view model, const TransformerConfig& config) {
  if (config.kv_lora_rank == 0) {
    const char* const has = config.q_lora_rank > 0    ? "q_lora_rank"
                            : config.v_head_dim > 0   ? "v_head_dim"
                            : config.rope_interleaved ? "rope_interleaved"
                                                      : nullptr;
    if (has == nullptr) return absl::OkStatus();
    return InvalidArgument(
        {model, ": ", has, " is set, which only latent attention has; set ", "kv_lora_rank, too"});
  }
  DT_RETURN_IF_ERROR(internal::CheckSizes(
      model, {{"v_head_dim", config.v_head_dim}, {"rotary_dim", config.rotary_dim}}));
  const char* const has = config.fused_projections  ? "fused_projections"
                          : config.qk_norm          ? "qk_norm"
                          : config.window > 0       ? "window"
                          : config.norm_offset != 0 ? "norm_offset"
                          : config.attention_sinks  ? "attention_sinks"
                                                    : nullptr;
  if (has != nullptr) {
    return InvalidArgument({model, ": ", has, " is set, which latent attention has not; clear it, ",
                            "or set kv_lora_rank to 0"});
  }
  if (config.kv_heads != config.heads) {
    return InvalidArgument({model, ": kv_heads is ", absl::StrCat(config.kv_heads), " and heads ",
                            absl::StrCat(config.heads), "; with latent attention they are equal"});
  }
  if (config.rotary_dim < config.head_dim()) return absl::OkStatus();
  return InvalidArgument({model, ": rotary_dim is ", absl::StrCat(config.rotary_dim),
                          ", and a head has ", absl::StrCat(config.head_dim()),
                          " features; with latent attention give fewer"});
}

absl::Status CheckGroups(absl::string_view model, const TransformerConfig& config) {
  if (config.router_score == RouterScore::kSoftmax) return CheckNoGroups(model, config);
  const double factor = config.routed_scaling_factor;
  if (!std::isfinite(factor) || factor <= 0) {
    return InvalidArgument(
        {model, ": routed_scaling_factor is ", absl::StrCat(factor), "; give a number above 0"});
  }
  const int64_t groups = config.expert_groups, picked = config.picked_groups;
  DT_RETURN_IF_ERROR(
      internal::CheckSizes(model, {{"expert_groups", groups}, {"picked_groups", picked}}));
  DT_RETURN_IF_ERROR(
      internal::CheckDivides(model, {"expert_groups", groups}, {"experts", config.experts}));
  const int64_t of_group = config.experts / groups;
  if (picked > groups) {
    return InvalidArgument({model, ": picked_groups is ", absl::StrCat(picked), ", and there are ",
                            absl::StrCat(groups), " expert_groups; give no more than those"});
  }
  if (groups > 1 && of_group < 2) {
    return InvalidArgument({model, ": expert_groups is ", absl::StrCat(groups), " for ",
                            absl::StrCat(config.experts),
                            " experts; a group's score is of two, give each two or more"});
  }
  if (config.experts_per_token <= picked * of_group) return absl::OkStatus();
  return InvalidArgument({model, ": experts_per_token is ", absl::StrCat(config.experts_per_token),
                          ", and the ", absl::StrCat(picked), " picked_groups have ",
                          absl::StrCat(picked * of_group), " experts; give no more than those"});
}

absl::Status CheckClamp(absl::string_view model, const TransformerConfig& config) {
  if (!config.expert_clamp) return absl::OkStatus();
  const bool is_sigmoid = config.router_score == RouterScore::kSigmoid;
  const char* const has = is_sigmoid                 ? "router_score"
                          : config.shared_hidden > 0 ? "shared_hidden"
                          : config.mixtral_names     ? "mixtral_names"
                                                     : nullptr;
  if (has != nullptr) {
    return InvalidArgument({model, ": ", has, " is set, which mixtures with an expert_clamp have ",
                            "not; clear one of them"});
  }
  if (std::isfinite(config.expert_clamp->slope) && config.expert_clamp->limit > 0) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      {model, ": expert_clamp has slope ", absl::StrCat(config.expert_clamp->slope), " and limit ",
       absl::StrCat(config.expert_clamp->limit), "; give a finite slope, and a limit above 0"});
}

absl::Status CheckMixture(absl::string_view model, const TransformerConfig& config) {
  if (config.experts == 0) return CheckNoMixture(model, config);
  DT_RETURN_IF_ERROR(internal::CheckSizes(
      model, {{"experts", config.experts}, {"experts_per_token", config.experts_per_token}}));
  if (config.experts_per_token > config.experts) {
    return InvalidArgument({model, ": experts_per_token is ",
                            absl::StrCat(config.experts_per_token), ", and there are ",
                            absl::StrCat(config.experts), " experts; give no more than those"});
  }
  DT_RETURN_IF_ERROR(CheckDenseLayers(model, config));
  DT_RETURN_IF_ERROR(CheckGroups(model, config));
  DT_RETURN_IF_ERROR(CheckClamp(model, config));
  const char* const has = config.mlp_bias            ? "mlp_bias"
                          : config.fused_projections ? "fused_projections"
                          : config.gelu_gate         ? "gelu_gate"
                                                     : nullptr;
  if (has == nullptr) return absl::OkStatus();
  return InvalidArgument(
      {model, ": experts have no ", has, "; do not set it, or set experts to 0"});
}

absl::Status CheckWindows(absl::string_view model, const TransformerConfig& config) {
  for (const int64_t layer : config.full_layers) {
    if (0 <= layer && layer < config.layers) continue;
    return InvalidArgument({model, ": full_layers has ", absl::StrCat(layer),
                            ", and layers are 0 to ", absl::StrCat(config.layers - 1)});
  }
  const double theta = config.window_rope_theta;
  if (!std::isfinite(theta) || theta < 0) {
    return InvalidArgument({model, ": window_rope_theta is ", absl::StrCat(theta),
                            "; give a number above 0, or 0 for rope_theta"});
  }
  if (config.window > 0 || (config.full_layers.empty() && theta == 0)) return absl::OkStatus();
  return InvalidArgument({model, ": ", theta > 0 ? "window_rope_theta" : "full_layers",
                          " is set, and no layer has a window; set window, too"});
}

}  // namespace

int64_t TransformerConfig::mlp_hidden() const {
  return hidden > 0 ? hidden : std::max<int64_t>(64, dim * 8 / 3 / 64 * 64);
}

bool TransformerConfig::has_experts(int64_t layer) const {
  return experts > 0 && !absl::c_linear_search(dense_layers, layer);
}

bool TransformerConfig::has_window(int64_t layer) const {
  return window > 0 && layer >= first_window_layer && !absl::c_linear_search(full_layers, layer);
}

absl::Status TransformerConfig::Validate() const {
  constexpr absl::string_view kModel = "Transformer";
  DT_RETURN_IF_ERROR(
      internal::CheckSizes(kModel, {{"vocab", vocab},
                                    {"dim", dim},
                                    {"layers", layers},
                                    {"heads", heads},
                                    {"kv_heads", kv_heads},
                                    {"hidden", hidden == 0 ? mlp_hidden() : hidden}}));
  for (const internal::NamedSize& size : {internal::NamedSize("head_size", head_size),
                                          {"rotary_dim", rotary_dim},
                                          {"kv_lora_rank", kv_lora_rank},
                                          {"q_lora_rank", q_lora_rank},
                                          {"v_head_dim", v_head_dim},
                                          {"window", window},
                                          {"dense_hidden", dense_hidden},
                                          {"shared_hidden", shared_hidden},
                                          {"first_window_layer", first_window_layer}}) {
    if (size.second >= 0) continue;
    return InvalidArgument(
        {kModel, ": ", size.first, " is ", absl::StrCat(size.second), "; give 0 or more"});
  }
  if (head_size == 0) {
    DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"heads", heads}, {"dim", dim}));
  }
  DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"kv_heads", kv_heads}, {"heads", heads}));
  if (!std::isfinite(attention_scale) || attention_scale < 0) {
    return InvalidArgument({kModel, ": attention_scale is ", absl::StrCat(attention_scale),
                            "; give a number above 0, or 0 for 1 / sqrt(head_dim)"});
  }
  for (const auto& [name, number] :
       {std::pair("norm_offset", norm_offset), std::pair("embedding_scale", embedding_scale)}) {
    if (std::isfinite(number)) continue;
    return InvalidArgument(
        {kModel, ": ", name, " is ", absl::StrCat(number), "; give a finite number"});
  }
  DT_RETURN_IF_ERROR(CheckWindows(kModel, *this));
  DT_RETURN_IF_ERROR(CheckMixture(kModel, *this));
  DT_RETURN_IF_ERROR(CheckLatent(kModel, *this));
  if (rotary_dim > head_dim()) {
    return InvalidArgument({kModel, ": rotary_dim is ", absl::StrCat(rotary_dim), ", and a head ",
                            "has ", absl::StrCat(head_dim()), " features; give no more"});
  }
  const int64_t rotated = rotary_dim > 0 ? rotary_dim : head_dim();
  if (rotated % 2 == 0) return absl::OkStatus();
  return InvalidArgument({kModel, ": ",
                          rotary_dim > 0  ? "rotary_dim"
                          : head_size > 0 ? "head_size"
                                          : "dim / heads",
                          " must be even, and is ", absl::StrCat(rotated),
                          ": rotary embeddings turn pairs"});
}

}  // namespace dtensor
