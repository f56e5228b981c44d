// Hugging Face's model types that a Transformer implements, for transformer_config.cc.
#ifndef DTENSOR_NN_TRANSFORMER_KINDS_H_
#define DTENSOR_NN_TRANSFORMER_KINDS_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace dtensor::internal {

// The defaults of Hugging Face's classes, and what only some of them have.
struct TransformerKind {
  absl::string_view type;
  int64_t vocab = 32000, dim = 4096, layers = 32, hidden = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t heads = 32;
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double norm_eps = 1e-6, rope_theta = 10000;
  // qkv_biased, usually_biased: unless the file says otherwise, by qkv_bias or attention_bias.
  bool always_biased = false, may_be_biased = false, may_bias_mlp = false, qkv_biased = false;
  bool usually_biased = false;
  bool qk_norm = false;
  enum class Window {
    kNone,
    kAlways,
    kIfGiven,
    kIfUsed,
    kIfUsedByAll,
    kNever
  } window = Window::kNone;
  enum class Mixture {
    kNone,
    kMixtral,
    kQwen2,
    kQwen3,
    kGlm4,
    kDeepSeek,
    kGptOss
  } mixture = Mixture::kNone;
  struct Experts {
    int64_t number = 0, of_token = 0, hidden = 0, shared_hidden = 0;
    int64_t first_dense = 0, groups = 1, picked_groups = 1;  // of sigmoid routers
    double scaling = 1;                                      // likewise
  } experts = {};
  double rotary_share = 1;  // of a head's features, if the type has partial_rotary_factor
  enum class Gemma { kNo, kFirst, kThird } gemma = Gemma::kNo;
};

inline constexpr TransformerKind kTransformerKinds[] = {
    {.type = "deepseek_v3",
     .vocab = 129280,
     .dim = 7168,
     .layers = 61,
     .hidden = 18432,
     .heads = 128,
     .may_be_biased = true,
     .mixture = TransformerKind::Mixture::kDeepSeek,
     .experts = {.number = 256,
                 .of_token = 8,
                 .hidden = 2048,
                 .first_dense = 3,
                 .groups = 8,
                 .picked_groups = 4,
                 .scaling = 2.5}},
    {.type = "gemma",
     .vocab = 256000,
     .dim = 3072,
     .layers = 28,
     .hidden = 24576,
     .kv_heads = 16,
     .heads = 16,
     .head_dim = 256,
     .may_be_biased = true,
     .gemma = TransformerKind::Gemma::kFirst},
    {.type = "gemma3_text",
     .vocab = 262208,
     .dim = 2304,
     .layers = 26,
     .hidden = 9216,
     .kv_heads = 4,
     .heads = 8,
     .head_dim = 256,
     .rope_theta = 1e6,
     .may_be_biased = true,
     .qk_norm = true,
     .gemma = TransformerKind::Gemma::kThird},
    {.type = "glm4_moe",
     .vocab = 151552,
     .layers = 46,
     .hidden = 10944,
     .kv_heads = 8,
     .heads = 96,
     .norm_eps = 1e-5,
     .may_be_biased = true,
     .mixture = TransformerKind::Mixture::kGlm4,
     .experts = {.number = 128, .of_token = 8, .hidden = 1408, .first_dense = 1},
     .rotary_share = 0.5},
    {.type = "gpt_oss",
     .vocab = 201088,
     .dim = 2880,
     .layers = 36,
     .hidden = 2880,
     .kv_heads = 8,
     .heads = 64,
     .head_dim = 64,
     .norm_eps = 1e-5,
     .rope_theta = 150000,
     .may_be_biased = true,
     .usually_biased = true,
     .mixture = TransformerKind::Mixture::kGptOss,
     .experts = {.number = 128, .of_token = 4}},
    {.type = "llama", .hidden = 11008, .may_be_biased = true, .may_bias_mlp = true},
    {.type = "mistral", .hidden = 14336, .kv_heads = 8, .window = TransformerKind::Window::kAlways},
    {.type = "mixtral",
     .hidden = 14336,
     .kv_heads = 8,
     .norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = TransformerKind::Window::kIfGiven,
     .mixture = TransformerKind::Mixture::kMixtral,
     .experts = {.number = 8, .of_token = 2}},
    {.type = "qwen2",
     .vocab = 151936,
     .hidden = 22016,
     .kv_heads = 32,
     .always_biased = true,
     .window = TransformerKind::Window::kIfUsed},
    {.type = "qwen2_moe",
     .vocab = 151936,
     .dim = 2048,
     .layers = 24,
     .hidden = 5632,
     .kv_heads = 16,
     .heads = 16,
     .qkv_biased = true,
     .window = TransformerKind::Window::kNever,
     .mixture = TransformerKind::Mixture::kQwen2,
     .experts = {.number = 60, .of_token = 4, .hidden = 1408, .shared_hidden = 5632}},
    {.type = "qwen3",
     .vocab = 151936,
     .hidden = 22016,
     .kv_heads = 32,
     .head_dim = 128,
     .may_be_biased = true,
     .qk_norm = true,
     .window = TransformerKind::Window::kIfUsed},
    {.type = "qwen3_moe",
     .vocab = 151936,
     .dim = 2048,
     .layers = 24,
     .hidden = 6144,
     .kv_heads = 4,
     .may_be_biased = true,
     .qk_norm = true,
     .window = TransformerKind::Window::kIfUsedByAll,
     .mixture = TransformerKind::Mixture::kQwen3,
     .experts = {.number = 128, .of_token = 8, .hidden = 768}},
};

}  // namespace dtensor::internal

#endif  // DTENSOR_NN_TRANSFORMER_KINDS_H_
