#include "dtensor/nn/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/string_view.h"
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
      plain_(head_size_ - rotary_dim_),
      width_(std::max(head_size_, v_head_dim_)),
      interleaved_(config.rope_interleaved),
      rope_{config.rope_theta, config.rope_scaling},
      kv_a_(config.dim, kv_lora_rank_ + rotary_dim_, config.init_stddev, {},
            LinearLayer::BiasIf(config.qkv_bias)),
      kv_norm_(kv_lora_rank_, kLatentNormEps),
      kv_b_(kv_lora_rank_, heads_ * (plain_ + v_head_dim_), config.init_stddev,
            {.out = plain_ + v_head_dim_}),
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

absl::StatusOr<LatentAttention::Projected> LatentAttention::Project(const DistributedTensor& x) {
  const RopeOptions rope = slot_.Positioned(rope_);
  DT_ASSIGN_OR_RETURN(const auto q, SplitTensor(Queries(x), -1, {plain_, rotary_dim_}));
  DT_ASSIGN_OR_RETURN(const auto latent, SplitTensor(kv_a_(x), -1, {kv_lora_rank_, rotary_dim_}));
  const TensorOr one_key = Reshape(latent[1], {x.shape()[0], x.shape()[1], 1, rotary_dim_});
  Projected projected{.q = q[0]};
  DT_ASSIGN_OR_RETURN(projected.q_rotated, Rotated(q[1], rope, interleaved_));
  DT_ASSIGN_OR_RETURN(projected.c, kv_norm_(latent[0]));
  DT_ASSIGN_OR_RETURN(projected.r, Rotated(one_key, rope, interleaved_));
  return projected;
}

TensorOr LatentAttention::AttendByHeads(const Projected& x) {
  const int64_t batch = x.c.shape()[0], sequence = x.c.shape()[1];
  const TensorOr made = Reshape(kv_b_(x.c), {batch, sequence, heads_, plain_ + v_head_dim_});
  DT_ASSIGN_OR_RETURN(const auto kv, SplitTensor(made, -1, {plain_, v_head_dim_}));
  const TensorOr key = Expand(x.r, {batch, sequence, heads_, rotary_dim_});
  const TensorOr mixed = Attention(FilledUp(Concat({x.q, x.q_rotated}, -1), width_),
                                   FilledUp(Concat({kv[0], key}, -1), width_),
                                   FilledUp(kv[1], width_), CallOptions(x.c.context()));
  return Slice(mixed, -1, 0, v_head_dim_);
}

absl::StatusOr<LatentAttention::Rows> LatentAttention::RowsOfHeads(
    const Parameter& matrix, const DistributedTensor& beside) const {
  const TensorOr rows = Cast(matrix.ValueOn(beside.mesh()), beside.dtype());
  return SplitTensor(Reshape(rows, {heads_, plain_ + v_head_dim_, matrix.shape[1]}), 1,
                     {plain_, v_head_dim_});
}

TensorOr LatentAttention::ThroughKeys(const DistributedTensor& q) const {
  constexpr absl::string_view kRule = "b s h p, h p r -> b s h r";
  DT_ASSIGN_OR_RETURN(const Rows rows, RowsOfHeads(*kv_b_.weight(), q));
  const TensorOr y = Einsum(kRule, q, rows[0]);
  if (!kv_b_.adapter()) return y;
  const auto& [a, b, scale, dropout] = *kv_b_.adapter();
  DT_ASSIGN_OR_RETURN(const Rows of_b, RowsOfHeads(*b, q));
  const TensorOr low = Scale(Einsum(kRule, q, of_b[0]), scale);
  return Add(y, MatMul(low, Cast(a->ValueOn(q.mesh()), q.dtype())));
}

TensorOr LatentAttention::ThroughValues(const DistributedTensor& sums) const {
  constexpr absl::string_view kRule = "b s h r, h v r -> b s h v";
  DT_ASSIGN_OR_RETURN(const Rows rows, RowsOfHeads(*kv_b_.weight(), sums));
  const TensorOr y = Einsum(kRule, sums, rows[1]);
  if (!kv_b_.adapter()) return y;
  const auto& [a, b, scale, dropout] = *kv_b_.adapter();
  DT_ASSIGN_OR_RETURN(const Rows of_b, RowsOfHeads(*b, sums));
  const TensorOr low = Linear(sums, Cast(a->ValueOn(sums.mesh()), sums.dtype()));
  return Add(y, Einsum(kRule, Scale(low, scale), of_b[1]));
}

TensorOr LatentAttention::AttendByLatents(const Projected& x) {
  const int64_t batch = x.c.shape()[0], sequence = x.c.shape()[1];
  const TensorOr queries = Concat({ThroughKeys(x.q), x.q_rotated}, -1);
  const TensorOr c = Reshape(x.c, {batch, sequence, 1, kv_lora_rank_});
  const TensorOr mixed =
      slot_.cache->AttendToOne(slot_, queries, Concat({c, x.r}, -1), CallOptions(x.c.context()));
  DT_ASSIGN_OR_RETURN(const DistributedTensor sums, Slice(mixed, -1, 0, kv_lora_rank_));
  return ThroughValues(sums);
}

TensorOr LatentAttention::Forward(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(CheckHidden("LatentAttention", x));
  DT_ASSIGN_OR_RETURN(const Projected projected, Project(x));
  const TensorOr values =
      slot_.cache == nullptr ? AttendByHeads(projected) : AttendByLatents(projected);
  return o_(Reshape(values, {x.shape()[0], x.shape()[1], heads_ * v_head_dim_}));
}

}  // namespace dtensor
