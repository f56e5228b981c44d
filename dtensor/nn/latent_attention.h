// Multi-head latent attention, of DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, and the models
// after it: keys and values of all heads are made of one latent vector for each token, and what is
// rotated of a key is one vector for all heads.
//
//   qn, qr = q_b_proj(q_a_layernorm(q_a_proj(x))), or q_proj(x) if q_lora_rank is 0
//   c, r = kv_a_proj_with_mqa(x)
//   k, v = kv_b_proj(kv_a_layernorm(c))
//   y = o_proj(Attention([qn, Rope(qr)], [k, Rope(r) for each head], v))
//
//   c [b, s, kv_lora_rank], r [b, s, rotary_dim], v [b, s, heads, v_head_dim]
//   qn, k [b, s, heads, head_dim - rotary_dim], qr [b, s, heads, rotary_dim]
//
// as in Hugging Face's DeepseekV3Attention, whose names and shapes the weights have. With qkv_bias,
// q_a_proj and kv_a_proj_with_mqa have biases; with o_bias, o_proj has. The eps of both norms is
// 1e-6. Attention wants heads of one size: values are filled up with zeros to head_dim, or queries
// and keys to v_head_dim.
//
// A cache (kv_cache.h) has [kv_a_layernorm(c), Rope(r)] of each token, kv_lora_rank + rotary_dim
// numbers, however many heads there are. Queries and results then go through kv_b_proj in place of
// keys and values (section 2.1.2 there), with K and V the rows that make a head's k and v:
//
//   qn . (K c) = (K^T qn) . c,     sum over tokens of p (V c) = V (sum of p c)
//
// So heads of attention have kv_lora_rank + rotary_dim features: a token costs more of it than
// without a cache (for DeepSeek-V3 576 for 192), which a long prompt notices.
#ifndef DTENSOR_NN_LATENT_ATTENTION_H_
#define DTENSOR_NN_LATENT_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/attention_module.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// [b, s, dim] -> [b, s, dim]; causal unless its options say otherwise. Heads may be sharded; the
// latent vectors have no heads, and are whole on each rank that has some. Requires:
// config.kv_lora_rank > 0, config.Validate().ok().
class LatentAttention : public AttentionModule {
 public:
  explicit LatentAttention(const TransformerConfig& config);
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  // qn and Rope(qr); kv_a_layernorm(c) and Rope(r) [b, s, 1, rotary_dim].
  struct Projected {
    DistributedTensor q, q_rotated, c, r;
  };
  TensorOr Queries(const DistributedTensor& x);
  absl::StatusOr<Projected> Project(const DistributedTensor& x);
  TensorOr AttendByHeads(const Projected& x);    // [b, s, heads, v_head_dim]
  TensorOr AttendByLatents(const Projected& x);  // the same, with the cache
  // Of kv_b_'s weight, or of the rows of its adapter: K and V, each [heads, features, columns].
  using Rows = std::vector<DistributedTensor>;
  absl::StatusOr<Rows> RowsOfHeads(const Parameter& matrix, const DistributedTensor& beside) const;
  TensorOr ThroughKeys(const DistributedTensor& q) const;       // K^T q of each head
  TensorOr ThroughValues(const DistributedTensor& sums) const;  // V of each head

  const int64_t heads_, head_size_, rotary_dim_, v_head_dim_, kv_lora_rank_;
  const int64_t plain_;  // what is not rotated of a head
  const int64_t width_;  // of what Attention gets: the larger of head_size_ and v_head_dim_
  const bool interleaved_;
  const RopeOptions rope_;
  KvCacheSlot slot_;
  std::unique_ptr<LinearLayer> q_, q_a_;  // q_: of the queries, from x or the latent ones
  std::unique_ptr<RmsNormLayer> q_norm_;
  LinearLayer kv_a_;
  RmsNormLayer kv_norm_;
  LinearLayer kv_b_, o_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_LATENT_ATTENTION_H_
