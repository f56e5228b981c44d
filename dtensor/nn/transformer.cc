#include "dtensor/nn/transformer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The stddev of projections back to the residual stream (Radford et al. 2019): their sum over
// layers stays bounded.
double OutputStddev(const TransformerConfig& config) {
  return config.init_stddev / std::sqrt(2.0 * static_cast<double>(config.layers));
}

int64_t GroupWidth(const TransformerConfig& config) {
  return config.heads / config.kv_heads * config.head_dim();
}

}  // namespace

int64_t TransformerConfig::mlp_hidden() const {
  return hidden > 0 ? hidden : std::max<int64_t>(64, dim * 8 / 3 / 64 * 64);
}

absl::Status TransformerConfig::Validate() const {
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"Transformer: ", why, " (vocab ", absl::StrCat(vocab), ", dim ",
                            absl::StrCat(dim), ", layers ", absl::StrCat(layers), ", heads ",
                            absl::StrCat(heads), ", kv_heads ", absl::StrCat(kv_heads), ")"});
  };
  if (vocab < 1 || dim < 1 || layers < 1 || heads < 1 || kv_heads < 1 || hidden < 0) {
    return refuse("every size must be at least 1");
  }
  if (dim % heads != 0) return refuse("heads must divide dim");
  if (heads % kv_heads != 0) return refuse("kv_heads must divide heads");
  if (head_dim() % 2 != 0) return refuse("dim / heads must be even: rotary embeddings turn pairs");
  return absl::OkStatus();
}

GroupedQueryAttention::GroupedQueryAttention(const TransformerConfig& config)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim()),
      rope_theta_(config.rope_theta),
      q_(config.dim, heads_ * head_dim_, config.init_stddev,
         {.out = GroupWidth(config), .out_part = head_dim_}),
      k_(config.dim, kv_heads_ * head_dim_, config.init_stddev, {.out = head_dim_}),
      v_(config.dim, kv_heads_ * head_dim_, config.init_stddev, {.out = head_dim_}),
      o_(heads_ * head_dim_, config.dim, OutputStddev(config),
         {.in = GroupWidth(config), .in_part = head_dim_}) {
  AddChild("q_proj", &q_);
  AddChild("k_proj", &k_);
  AddChild("v_proj", &v_);
  AddChild("o_proj", &o_);
}

TensorOr GroupedQueryAttention::Forward(const DistributedTensor& x) {
  const int64_t batch = x.shape()[0], sequence = x.shape()[1];
  const auto heads = [&](const TensorOr& projected, int64_t count) {
    return Reshape(projected, {batch, sequence, count, head_dim_});
  };
  const TensorOr q = Rope(heads(q_(x), heads_), rope_theta_);
  const TensorOr k = Rope(heads(k_(x), kv_heads_), rope_theta_);
  const TensorOr v = heads(v_(x), kv_heads_);
  const TensorOr mixed = Attention(q, k, v, attention_options());
  return o_(Reshape(mixed, {batch, sequence, heads_ * head_dim_}));
}

SwiGluMlp::SwiGluMlp(const TransformerConfig& config)
    : gate_(config.dim, config.mlp_hidden(), config.init_stddev),
      up_(config.dim, config.mlp_hidden(), config.init_stddev),
      down_(config.mlp_hidden(), config.dim, OutputStddev(config)) {
  AddChild("gate_proj", &gate_);
  AddChild("up_proj", &up_);
  AddChild("down_proj", &down_);
}

TensorOr SwiGluMlp::Forward(const DistributedTensor& x) { return down_(SiluMul(gate_(x), up_(x))); }

DecoderBlock::DecoderBlock(const TransformerConfig& config)
    : attention_norm_(config.dim, config.norm_eps),
      mlp_norm_(config.dim, config.norm_eps),
      attention_(config),
      mlp_(config) {
  AddChild("input_layernorm", &attention_norm_);
  AddChild("self_attn", &attention_);
  AddChild("post_attention_layernorm", &mlp_norm_);
  AddChild("mlp", &mlp_);
}

TensorOr DecoderBlock::Forward(const DistributedTensor& x) {
  const TensorOr h = Add(x, attention_(attention_norm_(x)));
  return Add(h, mlp_(mlp_norm_(h)));
}

// "layers": a list, so that paths read model.layers.0.
class Transformer::Body : public Module {
 public:
  explicit Body(const TransformerConfig& config)
      : embedding_(config.vocab, config.dim, config.init_stddev),
        norm_(config.dim, config.norm_eps) {
    for (int64_t i = 0; i < config.layers; ++i) {
      layers_.blocks.push_back(std::make_unique<DecoderBlock>(config));
      layers_.Register(absl::StrCat(i), layers_.blocks.back().get());
    }
    AddChild("embed_tokens", &embedding_);
    AddChild("layers", &layers_);
    AddChild("norm", &norm_);
  }
  const ParameterPtr& embedding_weight() const { return embedding_.weight(); }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override {
    return norm_(layers_(embedding_(ids)));
  }

 private:
  struct Layers : Module {
    std::vector<std::unique_ptr<DecoderBlock>> blocks;
    void Register(std::string name, Module* block) { AddChild(std::move(name), block); }
    TensorOr Forward(const DistributedTensor& x) override {
      TensorOr h = x;
      for (auto& block : blocks) h = (*block)(h);
      return h;
    }
  };
  EmbeddingLayer embedding_;
  Layers layers_;
  RmsNormLayer norm_;
};

Transformer::Transformer(const TransformerConfig& config)
    : config_(config),
      body_(std::make_unique<Body>(config)),
      lm_head_(config.tie_embeddings ? static_cast<const Body&>(*body_).embedding_weight()
                                     : Parameter::New({config.vocab, config.dim},
                                                      ParameterInit::Normal(config.init_stddev))) {
  AddChild("model", body_.get());
  AddChild("lm_head", &lm_head_);
}

TensorOr Transformer::Forward(const DistributedTensor& ids) { return lm_head_((*body_)(ids)); }

}  // namespace dtensor
