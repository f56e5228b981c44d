// Multi-head latent attention, of DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, and the models
// after it: keys and values of all heads are made of one latent vector for each token, and what is
// rotated of a key is one vector for all heads.
//
//   q = q_b_proj(q_a_layernorm(q_a_proj(x)))   [b, s, heads, head_size], or q_proj(x)
//   c, r = kv_a_proj_with_mqa(x)               [b, s, kv_rank], [b, s, rotary_size]
//   k, v = kv_b_proj(kv_a_layernorm(c))        [b, s, heads, head_size - rotary_size | value_size]
//   y = o_proj(Attention([q, rotated], [k, rotated r], v))
//
// The last rotary_size features of a query's head are rotated. Weights are stored as in Hugging
// Face's DeepseekV3Attention. Values are filled up with zeros to head_size for Attention, or
// queries and keys to value_size, so a cache holds as many numbers for each head.
#ifndef DTENSOR_NN_LATENT_ATTENTION_H_
#define DTENSOR_NN_LATENT_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/nn/attention_module.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// [b, s, dim] -> [b, s, dim]; causal unless its options say otherwise. Heads may be sharded; the
// latent vectors have no heads, and are whole on each rank that has some. Requires: config.kv_rank
// > 0, config.Validate().ok().
class LatentAttention : public AttentionModule {
 public:
  explicit LatentAttention(const TransformerConfig& config);
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  struct Heads {  // each [b, s, heads, width_]
    DistributedTensor q, k, v;
  };
  TensorOr Queries(const DistributedTensor& x);
  absl::StatusOr<Heads> HeadsOf(const DistributedTensor& x, const RopeOptions& rope);

  const int64_t heads_, head_size_, rotary_size_, value_size_, kv_rank_;
  const int64_t width_;  // of what Attention gets: the larger of head_size_ and value_size_
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
