#include "dtensor/nn/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/containers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t GroupWidth(const TransformerConfig& config) {
  return config.heads / config.kv_heads * config.head_dim();
}

}  // namespace

int64_t TransformerConfig::mlp_hidden() const {
  return hidden > 0 ? hidden : std::max<int64_t>(64, dim * 8 / 3 / 64 * 64);
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
  DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"heads", heads}, {"dim", dim}));
  DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"kv_heads", kv_heads}, {"heads", heads}));
  if (head_dim() % 2 == 0) return absl::OkStatus();
  return InvalidArgument({kModel, ": dim / heads must be even, and is ", absl::StrCat(head_dim()),
                          ": rotary embeddings turn pairs"});
}

GroupedQueryAttention::GroupedQueryAttention(const TransformerConfig& config)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim()),
      rope_theta_(config.rope_theta),
      o_(heads_ * head_dim_, config.dim, ResidualStddev(config.init_stddev, config.layers),
         {.in = GroupWidth(config), .in_part = head_dim_}) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(
        std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units));
    AddChild(name, projections_.back().get());
  };
  if (config.fused_projections) {
    const int64_t group = GroupWidth(config) + 2 * head_dim_;
    add("qkv_proj", kv_heads_ * group, {.out = group});
    projections_[0]->weight()->parts = {
        {"q_proj", GroupWidth(config)}, {"k_proj", head_dim_}, {"v_proj", head_dim_}};
  } else {
    add("q_proj", heads_ * head_dim_, {.out = GroupWidth(config), .out_part = head_dim_});
    add("k_proj", kv_heads_ * head_dim_, {.out = head_dim_});
    add("v_proj", kv_heads_ * head_dim_, {.out = head_dim_});
  }
  AddChild("o_proj", &o_);
}

absl::StatusOr<std::vector<DistributedTensor>> GroupedQueryAttention::Project(
    const DistributedTensor& x) {
  const int64_t batch = x.shape()[0], sequence = x.shape()[1], shared = heads_ / kv_heads_;
  std::vector<TensorOr> qkv;
  if (projections_.size() == 1) {
    const Dims grouped = {batch, sequence, kv_heads_, shared + 2, head_dim_};
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> parts,
                        SplitTensor(Reshape((*projections_[0])(x), grouped), 3, {shared, 1, 1}));
    qkv.assign(parts.begin(), parts.end());
  } else {
    for (const auto& projection : projections_) qkv.push_back((*projection)(x));
  }
  std::vector<DistributedTensor> out;
  for (const TensorOr& one : qkv) {
    const int64_t heads = out.empty() ? heads_ : kv_heads_;
    DT_ASSIGN_OR_RETURN(out.emplace_back(), Reshape(one, {batch, sequence, heads, head_dim_}));
  }
  return out;
}

TensorOr GroupedQueryAttention::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> qkv, Project(x));
  const TensorOr mixed =
      Attention(Rope(qkv[0], rope_theta_), Rope(qkv[1], rope_theta_), qkv[2], attention_options());
  return o_(Reshape(mixed, {x.shape()[0], x.shape()[1], heads_ * head_dim_}));
}

SwiGluMlp::SwiGluMlp(const TransformerConfig& config)
    : hidden_(config.mlp_hidden()),
      down_(hidden_, config.dim, ResidualStddev(config.init_stddev, config.layers)) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(
        std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units));
    AddChild(name, projections_.back().get());
  };
  if (config.fused_projections) {
    add("gate_up_proj", 2 * hidden_, {.out_pieces = 2});
    projections_[0]->weight()->parts = {{"gate_proj", hidden_}, {"up_proj", hidden_}};
  } else {
    add("gate_proj", hidden_, {});
    add("up_proj", hidden_, {});
  }
  AddChild("down_proj", &down_);
}

absl::StatusOr<std::vector<DistributedTensor>> SwiGluMlp::Project(const DistributedTensor& x) {
  if (projections_.size() == 1) {
    return SplitTensor((*projections_[0])(x), -1, {hidden_, hidden_});
  }
  DT_ASSIGN_OR_RETURN(DistributedTensor gate, (*projections_[0])(x));
  DT_ASSIGN_OR_RETURN(DistributedTensor up, (*projections_[1])(x));
  return std::vector<DistributedTensor>{std::move(gate), std::move(up)};
}

TensorOr SwiGluMlp::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> parts, Project(x));
  return down_(SiluMul(parts[0], parts[1]));
}

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

class Transformer::Body : public Module {
 public:
  explicit Body(const TransformerConfig& config)
      : embedding_(config.vocab, config.dim, config.init_stddev),
        norm_(config.dim, config.norm_eps) {
    for (int64_t i = 0; i < config.layers; ++i) {
      layers_.Append(std::make_unique<DecoderBlock>(config));
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
  EmbeddingLayer embedding_;
  Sequential layers_;
  RmsNormLayer norm_;
};

Transformer::Transformer(const TransformerConfig& config)
    : config_(config),
      body_(std::make_unique<Body>(config)),
      lm_head_(config.tie_embeddings ? body_->embedding_weight()
                                     : Parameter::New({config.vocab, config.dim},
                                                      ParameterInit::Normal(config.init_stddev))) {
  AddChild("model", body_.get());
  AddChild("lm_head", &lm_head_);
}

Transformer::~Transformer() = default;

TensorOr Transformer::Forward(const DistributedTensor& ids) { return lm_head_((*body_)(ids)); }

}  // namespace dtensor
