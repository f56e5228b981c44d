// LLaMA and similar models (Mistral, Mixtral, Qwen2, Qwen3, their MoE, Gemma, Gemma 3, GLM-4.5,
// GPT-OSS, DeepSeek-V3, SmolLM2): RMSNorm, rotary positions, grouped-query attention, SwiGLU or
// GeGLU, or mixtures of experts that are SwiGLU. Names and shapes are those of Hugging Face's
// LlamaForCausalLM and similar classes, so their state dicts can be loaded and saved by name.
//
//   model.embed_tokens.weight                               [vocab, dim]
//   model.layers.N.{input,post_attention}_layernorm.weight  [dim]
//   model.layers.N.self_attn.{q,k,v,o}_proj.weight          [out, in], and .bias [out]
//   model.layers.N.self_attn.{q,k}_norm.weight              [head_dim], where there are norms
//   model.layers.N.self_attn.sinks                          [heads], with attention_sinks
//   model.layers.N.mlp.{gate,up,down}_proj.weight           [out, in], and .bias [out]
//   model.layers.N.{pre,post}_feedforward_layernorm.weight  [dim], with post_norms
//   model.norm.weight                                       [dim]
//   lm_head.weight                                          [vocab, dim], or embed_tokens.weight
//
// A block with a mixture of experts has, instead of the MLP's weights, those of mixture.h under
// model.layers.N.mlp, experts (but GPT-OSS's) one by one in checkpoints; Mixtral's have
// "block_sparse_moe" for "mlp", and w1, w3 and w2 for gate_proj, up_proj and down_proj. Latent
// attention has those of latent_attention.h under model.layers.N.self_attn.
//
// With fused_projections, one product computes q, k and v, and another gate and up. (On the CPU
// this is not faster: cutting the results into parts costs what it saves.) The weights are then
//
//   model.layers.N.self_attn.qkv_proj.weight  [kv_heads (heads/kv_heads + 2) head_dim, dim]: for
//                                             each key head: its query heads, itself, its value
//   model.layers.N.mlp.gate_up_proj.weight    [2 hidden, dim]: gate, then up
//
// and checkpoints store them under the names above (state_dict.h).
#ifndef DTENSOR_NN_TRANSFORMER_H_
#define DTENSOR_NN_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/attention_module.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/mixture.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct TransformerConfig {
  int64_t vocab = 256, dim = 128, layers = 4, heads = 8, kv_heads = 4;
  int64_t hidden = 0;  // of the MLP; 0 means 8/3 dim rounded down to a multiple of 64, at least 64
  double rope_theta = 10000, norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  double init_stddev = 0.02;    // projections back to dim: stddev / sqrt(2 layers)
  bool tie_embeddings = false;  // the head's weight is the embedding's
  bool fused_projections = false;
  int64_t head_size = 0;       // features of a head; 0 means dim / heads
  double attention_scale = 0;  // AttentionOptions::scale; 0 means 1 / sqrt(head_dim)
  // Features of a head that are rotated: its first, or the last of latent attention. 0 means all.
  int64_t rotary_dim = 0;
  // Latent attention (latent_attention.h), if kv_lora_rank is not 0: features of the latent vectors
  // of keys and values, and of queries (0: none), and of a value's head; and whether the pairs that
  // are rotated lie side by side. Its head_dim is qk_nope_head_dim + qk_rope_head_dim.
  int64_t kv_lora_rank = 0, q_lora_rank = 0, v_head_dim = 0;
  bool rope_interleaved = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // each head's query and key pass an RMSNorm before they are rotated
  // If not 0, each block has so many MLPs of `hidden` features, the experts, of which a token
  // passes `experts_per_token`. normalize_experts: their weights are divided by their sum.
  int64_t experts = 0, experts_per_token = 2;
  bool normalize_experts = true;
  // How routers score experts (mixture.h), which also says what shared experts are called. Only
  // with kSigmoid: experts lie in expert_groups (n_group), a token picks from the best
  // picked_groups of them (topk_group), and weights have a factor.
  RouterScore router_score = RouterScore::kSoftmax;
  int64_t expert_groups = 1, picked_groups = 1;
  double routed_scaling_factor = 1;
  bool mixtral_names = false;  // of a mixture: as Mixtral's, see above; else as the others'
  // Layers that have no experts but an MLP of `dense_hidden` features (0 means `hidden`).
  std::vector<int64_t> dense_layers = {};
  int64_t dense_hidden = 0;
  // If not 0, the features of an MLP beside the experts, which all tokens pass (mixture.h).
  int64_t shared_hidden = 0;
  // The model has a second result, router_sums [layers with experts, 2, experts] (mixture.h), for
  // BalancingLoss and BalanceByBias (balancing.h). For models with softmax scores it is what
  // Hugging Face's compute with output_router_logits.
  bool router_sums = false;
  // Layers from `first_window_layer` on, but for full_layers, see only the last `window` tokens; 0:
  // all.
  int64_t window = 0, first_window_layer = 0;
  std::vector<int64_t> full_layers = {};
  // Layers with a window have this rope_theta and no rope_scaling; 0: those of the others.
  double window_rope_theta = 0;
  // What Gemma has. The MLP's gate passes GELU in place of SiLU; RMSNorms, those of queries and
  // keys too, multiply by norm_offset + weight; embedded tokens are multiplied by embedding_scale,
  // rounded to their type; what attention and MLP return passes an RMSNorm before it is added.
  std::optional<GeluForm> gelu_gate = std::nullopt;
  double norm_offset = 0, embedding_scale = 1;
  bool post_norms = false;
  // What GPT-OSS has: sinks in attention (AttentionWithSinks), and experts whose SwiGLU is clamped
  // (mixture.h).
  bool attention_sinks = false;
  std::optional<SwiGluClamp> expert_clamp = std::nullopt;

  // Reads Hugging Face's config.json of a deepseek_v3, gemma, gemma3_text, glm4_moe, gpt_oss,
  // llama, mistral, mixtral, qwen2, qwen2_moe, qwen3 or qwen3_moe; without a model_type a llama's.
  // Errors: kInvalidArgument for text that is not a JSON object, for members that are not numbers
  // in range, and, by name, for what the model does not implement: another hidden_act, dropout,
  // noise in the router, softcapping, attention to later tokens, rotary embeddings with a scaling
  // other than "linear", "llama3" or "yarn", quantized weights other than those that
  // LoadHuggingFace reads. Members that do not affect results are ignored, and so is
  // output_router_logits: set router_sums. The list layer_types is ignored, too, but for a
  // gemma3_text's and a gpt_oss': which layers have windows follows from sliding_window,
  // use_sliding_window and max_window_layers, from which Hugging Face derives the list.
  static absl::StatusOr<TransformerConfig> FromJson(absl::string_view text);

  int64_t head_dim() const { return head_size > 0 ? head_size : dim / heads; }
  int64_t mlp_hidden() const;
  bool has_experts(int64_t layer) const;
  bool has_window(int64_t layer) const;
  // Errors: kInvalidArgument: sizes < 1, heads that do not divide dim if no head_size is given,
  // kv_heads that do not divide heads; a negative head_size, rotary_dim, kv_lora_rank, q_lora_rank,
  // v_head_dim, window, first_window_layer, dense_hidden or shared_hidden; an attention_scale that
  // is negative or not finite; an odd number of rotated features, or more than a head has;
  // full_layers that are no layers; these and a window_rope_theta without a window, one that is
  // negative or not finite; a norm_offset or embedding_scale that is not finite. Of mixtures: a
  // negative number of experts, more experts_per_token than experts, or none; fused_projections,
  // mlp_bias or a gelu_gate; dense_layers that are no layers, or all of them; groups that do not
  // divide the experts, of one expert, more picked_groups than there are, fewer experts in them
  // than experts_per_token, a factor that is not above 0; groups and a factor with softmax scores;
  // an expert_clamp with sigmoid scores, shared experts, Mixtral's names, a slope that is not
  // finite or a limit that is not above 0; what only mixtures have without experts. Of latent
  // attention: no v_head_dim or rotary_dim, rotary_dim of a whole head, other kv_heads than heads,
  // fused_projections, qk_norm, a window, a norm_offset, attention_sinks; what only latent
  // attention has without kv_lora_rank.
  absl::Status Validate() const;
};

// q, k, v, rotary embedding, attention (causal unless its options say otherwise), output
// projection: [b, s, dim] -> [b, s, dim]. A group of query heads with its key/value head is one
// unit. It is cut only if there are more shards than key/value heads, and then between heads.
class GroupedQueryAttention : public AttentionModule {
 public:
  explicit GroupedQueryAttention(const TransformerConfig& config, int64_t layer = 0);
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const int64_t heads_, kv_heads_, head_dim_;
  // q [b, s, heads, head_dim], k and v.
  absl::StatusOr<std::vector<DistributedTensor>> Project(const DistributedTensor& x);

  const int64_t rotary_dim_;
  const RopeOptions rope_;
  KvCacheSlot slot_;
  std::vector<std::unique_ptr<LinearLayer>> projections_;  // of q, k and v, or one of all
  std::vector<std::unique_ptr<RmsNormLayer>> norms_;       // of q and k, or none
  ParameterPtr sinks_;                                     // null: none
  LinearLayer o_;
};

// down(silu(gate(x)) * up(x)), or with config.gelu_gate of GELU.
class SwiGluMlp : public Module {
 public:
  // hidden: 0 means config.mlp_hidden().
  explicit SwiGluMlp(const TransformerConfig& config, int64_t hidden = 0);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  absl::StatusOr<std::vector<DistributedTensor>> Project(const DistributedTensor& x);

  const int64_t hidden_;
  const std::optional<GeluForm> gelu_gate_;
  std::vector<std::unique_ptr<LinearLayer>> projections_;  // of gate and up, or one of both
  LinearLayer down_;
};

// x + attention(norm(x)), then x + mlp(norm(x)); with config.post_norms a norm follows attention
// and MLP, too. The MLP is SwiGluMlp, or a MixtureOfExperts. With config.router_sums, the block
// appends those of its mixture to those of the blocks before: it has a second operand of this name
// if there is a mixture before it, and a second result if there is one up to it.
class DecoderBlock : public Module {
 public:
  explicit DecoderBlock(const TransformerConfig& config, int64_t layer = 0);

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  RmsNormLayer attention_norm_, mlp_norm_;
  std::optional<RmsNormLayer> after_attention_, after_mlp_;
  const std::unique_ptr<AttentionModule> attention_;
  const std::unique_ptr<Module> mlp_;
};

// Token ids [batch, sequence] (i32 or i64) -> logits [batch, sequence, vocab], and router_sums if
// the configuration asks for them. With a cache (kv_cache.h): logits of the last token only.
class Transformer : public Module {
 public:
  explicit Transformer(const TransformerConfig& config);  // Requires: config.Validate().ok()
  ~Transformer() override;
  const TransformerConfig& config() const { return config_; }
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& ids) final { return Module::Forward(ids); }
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  class Body;  // "model": embedding, blocks, norm
  const TransformerConfig config_;
  std::unique_ptr<Body> body_;
  LinearLayer lm_head_;
  KvCacheSlot slot_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_TRANSFORMER_H_
