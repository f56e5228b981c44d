#include "dtensor/nn/gpt2.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/attention_module.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/gelu_mlp.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;

// q, k and v by one projection, attention (causal unless its options say otherwise), output
// projection: [b, s, dim] -> [b, s, dim].
class SelfAttention : public AttentionModule {
 public:
  SelfAttention(const Gpt2Config& config, int64_t layer)
      : heads_(config.heads),
        dropout_(config.attention_dropout),
        c_attn_(config.dim, 3 * config.dim, config.init_stddev,
                {.out = config.head_dim(), .out_pieces = 3}),
        c_proj_(config.dim, config.dim, ResidualStddev(config.init_stddev, config.layers),
                {.in = config.head_dim()}),
        resid_dropout_(config.residual_dropout) {
    const double head_dim = static_cast<double>(config.head_dim());
    attention_options().scale = (config.scale_attention ? 1 / std::sqrt(head_dim) : 1) /
                                (config.scale_by_layer ? static_cast<double>(layer + 1) : 1);
    AddChild("c_attn", &c_attn_);
    AddChild("c_proj", &c_proj_);
    AddChild("resid_dropout", &resid_dropout_);
  }
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    DT_RETURN_IF_ERROR(CheckHidden("SelfAttention", x));
    const int64_t batch = x.shape()[0], sequence = x.shape()[1], dim = x.shape()[2];
    const Dims heads = {batch, sequence, heads_, dim / heads_};
    const Dims of_three = {batch, sequence, 3, heads_, dim / heads_};
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> qkv,
                        SplitTensor(Reshape(c_attn_(x), of_three), 2, {1, 1, 1}));
    const TensorOr q = Reshape(qkv[0], heads), k = Reshape(qkv[1], heads);
    const TensorOr v = Reshape(qkv[2], heads);
    const double dropout = slot_.cache != nullptr ? 0 : dropout_;
    const TensorOr mixed = slot_.Attend(q, k, v, CallOptions(x.context(), dropout));
    return resid_dropout_(c_proj_(Reshape(mixed, x.shape())));
  }

 private:
  const int64_t heads_;
  const double dropout_;
  Conv1dLayer c_attn_, c_proj_;
  DropoutLayer resid_dropout_;
  KvCacheSlot slot_;
};

class Mlp : public Module {
 public:
  explicit Mlp(const Gpt2Config& config)
      : gelu_(config.gelu),
        c_fc_(config.dim, config.mlp_hidden(), config.init_stddev),
        c_proj_(config.mlp_hidden(), config.dim, ResidualStddev(config.init_stddev, config.layers)),
        dropout_(config.residual_dropout) {
    AddChild("c_fc", &c_fc_);
    AddChild("c_proj", &c_proj_);
    AddChild("dropout", &dropout_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return dropout_(c_proj_(Gelu(c_fc_(x), gelu_)));
  }

 private:
  const GeluForm gelu_;
  Conv1dLayer c_fc_, c_proj_;
  DropoutLayer dropout_;
};

// x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class Block : public Module {
 public:
  Block(const Gpt2Config& config, int64_t layer)
      : ln_1_(config.dim, config.norm_eps),
        ln_2_(config.dim, config.norm_eps),
        attn_(config, layer),
        mlp_(config) {
    AddChild("ln_1", &ln_1_);
    AddChild("attn", &attn_);
    AddChild("ln_2", &ln_2_);
    AddChild("mlp", &mlp_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr h = Add(x, attn_(ln_1_(x)));
    return Add(h, mlp_(ln_2_(h)));
  }

 private:
  LayerNormLayer ln_1_, ln_2_;
  SelfAttention attn_;
  Mlp mlp_;
};

}  // namespace

absl::StatusOr<Gpt2Config> Gpt2Config::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("Gpt2Config", text));
  json.OnlyModel("gpt2");
  Gpt2Config config;
  config.vocab = json.Size("vocab_size", config.vocab);
  config.positions = json.Size("n_positions", config.positions);
  config.dim = json.Size("n_embd", config.dim);
  config.layers = json.Size("n_layer", config.layers, ConfigReader::kMaxLayers);
  config.heads = json.Size("n_head", config.heads);
  config.hidden = json.Size("n_inner", 4 * config.dim, 4 * ConfigReader::kMaxSize);
  config.norm_eps = json.Number("layer_norm_epsilon", config.norm_eps);
  config.init_stddev = json.Number("initializer_range", config.init_stddev);
  config.gelu = json.Gelu("activation_function", "gelu_new");
  config.tie_embeddings = json.Flag("tie_word_embeddings", config.tie_embeddings);
  config.embedding_dropout = json.Probability("embd_pdrop", config.embedding_dropout);
  config.residual_dropout = json.Probability("resid_pdrop", config.residual_dropout);
  config.attention_dropout = json.Probability("attn_pdrop", config.attention_dropout);
  config.scale_attention = json.Flag("scale_attn_weights", config.scale_attention);
  config.scale_by_layer = json.Flag("scale_attn_by_inverse_layer_idx", config.scale_by_layer);
  for (const auto& [other, name] :
       {std::pair("hidden_size", "n_embd"), std::pair("max_position_embeddings", "n_positions"),
        std::pair("num_attention_heads", "n_head"), std::pair("num_hidden_layers", "n_layer")}) {
    json.Never(other, absl::StrCat("call it ", name));
  }
  json.OnlyFlag("add_cross_attention", false, "there is no encoder that a block attends to");
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  return config;
}

absl::Status Gpt2Config::Validate() const {
  DT_RETURN_IF_ERROR(
      internal::CheckSizes("Gpt2", {{"vocab", vocab},
                                    {"positions", positions},
                                    {"dim", dim},
                                    {"layers", layers},
                                    {"heads", heads},
                                    {"hidden", hidden == 0 ? mlp_hidden() : hidden}}));
  return internal::CheckDivides("Gpt2", {"heads", heads}, {"dim", dim});
}

class Gpt2::Body : public Module {
 public:
  explicit Body(const Gpt2Config& config)
      : wte_(config.vocab, config.dim, config.init_stddev),
        wpe_(config.positions, config.dim, config.init_stddev),
        drop_(config.embedding_dropout),
        ln_f_(config.dim, config.norm_eps) {
    for (int64_t i = 0; i < config.layers; ++i) h_.Append(std::make_unique<Block>(config, i));
    AddChild("wte", &wte_);
    AddChild("wpe", &wpe_);
    AddChild("drop", &drop_);
    AddChild("h", &h_);
    AddChild("ln_f", &ln_f_);
  }
  const ParameterPtr& embedding_weight() const { return wte_.weight(); }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override {
    return ln_f_(h_(drop_(wpe_(wte_(ids)))));
  }

 private:
  EmbeddingLayer wte_;
  PositionEmbeddingLayer wpe_;
  DropoutLayer drop_;
  Sequential h_;
  LayerNormLayer ln_f_;
};

Gpt2::Gpt2(const Gpt2Config& config)
    : config_(config),
      body_(std::make_unique<Body>(config)),
      lm_head_(config.tie_embeddings ? body_->embedding_weight()
                                     : Parameter::New({config.vocab, config.dim},
                                                      ParameterInit::Normal(config.init_stddev))) {
  AddChild("transformer", body_.get());
  AddChild("lm_head", &lm_head_);
}

Gpt2::~Gpt2() = default;

TensorOr Gpt2::Forward(const DistributedTensor& ids) {
  DT_ASSIGN_OR_RETURN(DistributedTensor x, (*body_)(ids));
  if (slot_.cache != nullptr) {
    DT_ASSIGN_OR_RETURN(x, slot_.cache->LastTokens(x));
  }
  return lm_head_(x);
}

}  // namespace dtensor
