// Small models of each kind, on a mesh, for tests of generation.
#ifndef DTENSOR_TESTS_GENERATION_SMALL_MODELS_H_
#define DTENSOR_TESTS_GENERATION_SMALL_MODELS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

inline constexpr int64_t kVocab = 31;

// 9 heads of 3 keys, as SmolLM2 has.
inline TransformerConfig Llama() {
  TransformerConfig config;
  config.vocab = kVocab, config.dim = 36, config.layers = 2, config.heads = 9, config.kv_heads = 3;
  config.hidden = 40, config.tie_embeddings = true, config.init_stddev = 0.3;
  return config;
}
inline TransformerConfig Qwen() {
  TransformerConfig config = Llama();
  config.qkv_bias = config.qk_norm = true;
  config.window = 4, config.first_window_layer = 1;
  config.rope_scaling = {.factor = 2};
  return config;
}
// Layer 0 has a window, and positions of its own; layer 1 sees all.
inline TransformerConfig Gemma() {
  TransformerConfig config = Llama();
  config.qk_norm = config.post_norms = true;
  config.norm_offset = 1, config.embedding_scale = 6, config.gelu_gate = GeluForm::kTanh;
  config.window = 3, config.full_layers = {1}, config.window_rope_theta = 50;
  config.rope_scaling = {.factor = 4};
  return config;
}
inline TransformerConfig Mixture() {
  TransformerConfig config = Llama();
  config.experts = 4, config.experts_per_token = 2, config.hidden = 24;
  config.shared_hidden = 12;
  config.router_sums = true;  // a second result, which no cache wants
  return config;
}
// Sinks in attention; layer 0 has a window.
inline TransformerConfig GptOss() {
  TransformerConfig config = Llama();
  config.tie_embeddings = false;
  config.qkv_bias = config.o_bias = config.attention_sinks = true;
  config.window = 3, config.full_layers = {1};
  config.experts = 4, config.experts_per_token = 2, config.hidden = 24;
  config.expert_clamp = {.limit = 0.7};
  return config;
}
// Of each head a part is rotated; sigmoid scores, of two groups of experts.
inline TransformerConfig Glm() {
  TransformerConfig config = Mixture();
  config.rotary_dim = 2;
  config.router_score = RouterScore::kSigmoid;
  config.expert_groups = 2, config.routed_scaling_factor = 1.5;
  return config;
}
inline TransformerConfig DeepSeek() {
  TransformerConfig config = Glm();
  config.kv_heads = config.heads;
  config.kv_lora_rank = 7, config.q_lora_rank = 8, config.head_size = 6, config.v_head_dim = 5;
  config.rope_interleaved = true;
  return config;
}
inline Gpt2Config Gpt() {
  Gpt2Config config;
  config.vocab = kVocab, config.positions = 14, config.dim = 18, config.layers = 2;
  config.heads = 3, config.init_stddev = 0.3;
  return config;
}

template <typename Config>
struct ModelOf {
  using Type = Transformer;
};
template <>
struct ModelOf<Gpt2Config> {
  using Type = Gpt2;
};

// A model on its mesh.
template <typename Config>
struct Placed {
  typename ModelOf<Config>::Type model;
  DeviceMesh mesh;
  explicit Placed(const Config& config) : model(config) {}

  absl::Status Place(Context& context, absl::string_view text) {
    DT_ASSIGN_OR_RETURN(mesh, DeviceMesh::Parse(text));
    TensorParallelOptions options;
    options.seed = 3;
    options.sequence_parallel = false;
    options.allow_uneven = true;
    // The sequence of a cache may be split by an axis that the plan does not know.
    options.context_axis = "none";
    DT_ASSIGN_OR_RETURN(mesh, ApplyTensorParallel(model, context, mesh, options));
    model.SetTraining(false);
    return absl::OkStatus();
  }
  TensorOr Ids(Context& context, int64_t rows, const std::vector<int64_t>& ids) const {
    return Distribute<int64_t>(context, Layout::Replicated(mesh, 2),
                               {rows, static_cast<int64_t>(ids.size()) / rows}, ids);
  }
};

using Rows = std::vector<std::vector<int64_t>>;
using Logits = std::vector<float>;

inline absl::StatusOr<Logits> Values(const TensorOr& logits) {
  DT_RETURN_IF_ERROR(logits.status());
  return ToGlobal<float>(logits->Detach());
}

// RMS of the difference over that of `wanted`, of one token.
inline double ErrorOf(absl::Span<const float> got, absl::Span<const float> wanted) {
  double difference = 0, squares = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(got[i] - wanted[i], 2);
    squares += std::pow(wanted[i], 2);
  }
  return std::sqrt(difference / squares);
}

}  // namespace dtensor

#endif  // DTENSOR_TESTS_GENERATION_SMALL_MODELS_H_
