#include "dtensor/nn/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr double kLatentNormEps = 1e-6;  // whatever the model's others have

// Rotates x [b, s, h, d]. If pairs are `interleaved`, they are elements 2i and 2i + 1, and come out
// as i and i + d/2: alike for queries and keys, so their products do not see it.
TensorOr Rotated(const TensorOr& x, const RopeOptions& rope, bool interleaved) {
  DT_RETURN_IF_ERROR(x.status());
  if (!interleaved) return Rope(x, rope);
  Dims pairs = x->shape();
  pairs.back() /= 2;
  pairs.push_back(2);
  return Rope(Reshape(Transpose(Reshape(x, pairs), -1, -2), x->shape()), rope);
}

// With zeros behind each head's features.
TensorOr FilledUp(const TensorOr& x, int64_t width) {
  DT_RETURN_IF_ERROR(x.status());
  const int64_t missing = width - x->shape().back();
  return missing == 0 ? x : Pad(x, -1, 0, missing);
}

}  // namespace

LatentAttention::LatentAttention(const TransformerConfig& config)
    : heads_(config.heads),
      head_size_(config.head_dim()),
      rotary_dim_(config.rotary_dim),
      v_head_dim_(config.v_head_dim),
      kv_lora_rank_(config.kv_lora_rank),
      width_(std::max(head_size_, v_head_dim_)),
      interleaved_(config.rope_interleaved),
      rope_{config.rope_theta, config.rope_scaling},
      kv_a_(config.dim, kv_lora_rank_ + rotary_dim_, config.init_stddev, {},
            LinearLayer::BiasIf(config.qkv_bias)),
      kv_norm_(kv_lora_rank_, kLatentNormEps),
      kv_b_(kv_lora_rank_, heads_ * (head_size_ - rotary_dim_ + v_head_dim_), config.init_stddev,
            {.out = head_size_ - rotary_dim_ + v_head_dim_}),
      o_(heads_ * v_head_dim_, config.dim, ResidualStddev(config.init_stddev, config.layers),
         {.in = v_head_dim_}, LinearLayer::BiasIf(config.o_bias)) {
  const int64_t from = config.q_lora_rank > 0 ? config.q_lora_rank : config.dim;
  q_ = std::make_unique<LinearLayer>(from, heads_ * head_size_, config.init_stddev,
                                     LinearLayer::Units{.out = head_size_});
  if (config.q_lora_rank > 0) {
    q_a_ =
        std::make_unique<LinearLayer>(config.dim, config.q_lora_rank, config.init_stddev,
                                      LinearLayer::Units(), LinearLayer::BiasIf(config.qkv_bias));
    q_norm_ = std::make_unique<RmsNormLayer>(config.q_lora_rank, kLatentNormEps);
    AddChild("q_a_proj", q_a_.get());
    AddChild("q_a_layernorm", q_norm_.get());
  }
  AddChild(config.q_lora_rank > 0 ? "q_b_proj" : "q_proj", q_.get());
  AddChild("kv_a_proj_with_mqa", &kv_a_);
  AddChild("kv_a_layernorm", &kv_norm_);
  AddChild("kv_b_proj", &kv_b_);
  AddChild("o_proj", &o_);
  const double usual = 1 / std::sqrt(static_cast<double>(head_size_));
  attention_options().scale = config.attention_scale > 0 ? config.attention_scale : usual;
}

TensorOr LatentAttention::Queries(const DistributedTensor& x) {
  const TensorOr q = q_a_ == nullptr ? (*q_)(x) : (*q_)((*q_norm_)((*q_a_)(x)));
  return Reshape(q, {x.shape()[0], x.shape()[1], heads_, head_size_});
}

absl::StatusOr<LatentAttention::Heads> LatentAttention::HeadsOf(const DistributedTensor& x,
                                                                const RopeOptions& rope) {
  const int64_t batch = x.shape()[0], sequence = x.shape()[1], plain = head_size_ - rotary_dim_;
  DT_ASSIGN_OR_RETURN(const auto q, SplitTensor(Queries(x), -1, {plain, rotary_dim_}));
  DT_ASSIGN_OR_RETURN(const auto latent, SplitTensor(kv_a_(x), -1, {kv_lora_rank_, rotary_dim_}));
  const TensorOr made =
      Reshape(kv_b_(kv_norm_(latent[0])), {batch, sequence, heads_, plain + v_head_dim_});
  DT_ASSIGN_OR_RETURN(const auto kv, SplitTensor(made, -1, {plain, v_head_dim_}));
  const TensorOr one_key = Reshape(latent[1], {batch, sequence, 1, rotary_dim_});
  const TensorOr key =
      Expand(Rotated(one_key, rope, interleaved_), {batch, sequence, heads_, rotary_dim_});
  Heads heads;
  DT_ASSIGN_OR_RETURN(heads.q,
                      FilledUp(Concat({q[0], Rotated(q[1], rope, interleaved_)}, -1), width_));
  DT_ASSIGN_OR_RETURN(heads.k, FilledUp(Concat({kv[0], key}, -1), width_));
  DT_ASSIGN_OR_RETURN(heads.v, FilledUp(kv[1], width_));
  return heads;
}

TensorOr LatentAttention::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const Heads heads, HeadsOf(x, slot_.Positioned(rope_)));
  const TensorOr mixed = slot_.Attend(heads.q, heads.k, heads.v, attention_options());
  const TensorOr values = Slice(mixed, -1, 0, v_head_dim_);
  return o_(Reshape(values, {x.shape()[0], x.shape()[1], heads_ * v_head_dim_}));
}

}  // namespace dtensor
