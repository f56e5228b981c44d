#include "dtensor/nn/transformer.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/latent_attention.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

MixtureConfig MixtureOf(const TransformerConfig& config) {
  MixtureConfig mixture;
  mixture.dim = config.dim;
  mixture.hidden = config.mlp_hidden();
  mixture.experts = config.experts;
  mixture.experts_per_token = config.experts_per_token;
  mixture.normalize = config.normalize_experts;
  mixture.score = config.router_score;
  mixture.scale = config.routed_scaling_factor;
  mixture.groups = config.expert_groups;
  mixture.picked_groups = config.picked_groups;
  mixture.clamp = config.expert_clamp;
  mixture.router_sums = config.router_sums;
  mixture.stddev = config.init_stddev;
  mixture.down_stddev = ResidualStddev(config.init_stddev, config.layers);
  if (config.mixtral_names) {
    mixture.gate_name = "w1";
    mixture.up_name = "w3";
    mixture.down_name = "w2";
  }
  return mixture;
}

std::unique_ptr<Module> MlpOf(const TransformerConfig& config, int64_t layer) {
  if (config.experts == 0) return std::make_unique<SwiGluMlp>(config);
  if (!config.has_experts(layer)) return std::make_unique<SwiGluMlp>(config, config.dense_hidden);
  std::unique_ptr<Module> shared;
  if (config.shared_hidden > 0) shared = std::make_unique<SwiGluMlp>(config, config.shared_hidden);
  return std::make_unique<MixtureOfExperts>(MixtureOf(config), std::move(shared));
}

std::unique_ptr<AttentionModule> AttentionOf(const TransformerConfig& config, int64_t layer) {
  if (config.kv_lora_rank > 0) return std::make_unique<LatentAttention>(config);
  return std::make_unique<GroupedQueryAttention>(config, layer);
}

// Whether a layer before this one has router_sums, which are brought to it.
bool HasSumsBefore(const TransformerConfig& config, int64_t layer) {
  if (!config.router_sums) return false;
  std::vector<bool> dense(layer);
  for (const int64_t one : config.dense_layers) {
    if (0 <= one && one < layer) dense[one] = true;
  }
  return absl::c_linear_search(dense, false);
}

// `sums`, Partial also where `others` are and they themselves are replicated: one rank keeps them,
// and nothing moves.
TensorOr PartialAs(const DistributedTensor& others, const DistributedTensor& sums) {
  const Layout& layout = sums.layout();
  AxisList partial(layout.partial_axes().begin(), layout.partial_axes().end());
  for (const int axis : others.layout().partial_axes()) {
    if (layout.use(axis) == Layout::AxisUse::kReplicate) partial.push_back(axis);
  }
  DT_ASSIGN_OR_RETURN(const Layout together, layout.WithPartial(partial));
  return sums.Redistribute(together);
}

// Sums of the blocks before, and of this one. The former are whole if another stage sent them.
TensorOr Append(const DistributedTensor& before, const DistributedTensor& own) {
  return Concat({PartialAs(own, before), PartialAs(before, own)}, 0);
}

double RoundedTo(DType dtype, double value) {
  if (dtype == DType::kF64) return value;
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kBF16) return static_cast<float>(BFloat16(narrow));
  return dtype == DType::kF16 ? static_cast<float>(Float16(narrow)) : narrow;
}

}  // namespace

DecoderBlock::DecoderBlock(const TransformerConfig& config, int64_t layer)
    : attention_norm_(config.dim, config.norm_eps, config.norm_offset),
      mlp_norm_(config.dim, config.norm_eps, config.norm_offset),
      attention_(AttentionOf(config, layer)),
      mlp_(MlpOf(config, layer)) {
  const bool before = HasSumsBefore(config, layer);
  if (before) SetOperands({"x", "router_sums"});
  if (before || HasSumsBefore(config, layer + 1)) SetResults({"y", "router_sums"});
  AddChild("input_layernorm", &attention_norm_);
  AddChild("self_attn", attention_.get());
  if (config.post_norms) {
    after_attention_.emplace(config.dim, config.norm_eps, config.norm_offset);
    after_mlp_.emplace(config.dim, config.norm_eps, config.norm_offset);
    AddChild("post_attention_layernorm", &*after_attention_);
    AddChild("pre_feedforward_layernorm", &mlp_norm_);
    AddChild("post_feedforward_layernorm", &*after_mlp_);
  } else {
    AddChild("post_attention_layernorm", &mlp_norm_);
  }
  AddChild(config.has_experts(layer) && config.mixtral_names ? "block_sparse_moe" : "mlp",
           mlp_.get());
}

TensorsOr DecoderBlock::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DistributedTensor& x = operands[0];
  TensorOr attended = (*attention_)(attention_norm_(x));
  if (after_attention_) attended = (*after_attention_)(attended);
  const TensorOr h = Add(x, attended);
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, mlp_->Call({mlp_norm_(h)}));
  if (after_mlp_) {
    DT_ASSIGN_OR_RETURN(results[0], (*after_mlp_)(results[0]));
  }
  DT_ASSIGN_OR_RETURN(results[0], Add(h, results[0]));
  if (operands.size() == 1) return results;
  if (results.size() == 1) {
    results.push_back(operands[1]);
  } else {
    DT_ASSIGN_OR_RETURN(results[1], Append(operands[1], results[1]));
  }
  return results;
}

class Transformer::Body : public Module {
 public:
  explicit Body(const TransformerConfig& config)
      : embedding_(config.vocab, config.dim, config.init_stddev),
        scale_(config.embedding_scale),
        layers_(config),
        norm_(config.dim, config.norm_eps, config.norm_offset) {
    AddChild("embed_tokens", &embedding_);
    AddChild("layers", &layers_);
    AddChild("norm", &norm_);
    if (config.router_sums) SetResults({"y", "router_sums"});
  }
  const ParameterPtr& embedding_weight() const { return embedding_.weight(); }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override {
    DT_ASSIGN_OR_RETURN(DistributedTensor x, embedding_(operands[0]));
    if (scale_ != 1) {
      DT_ASSIGN_OR_RETURN(x, Scale(x, RoundedTo(x.dtype(), scale_)));
    }
    DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, layers_.Call({x}));
    DT_ASSIGN_OR_RETURN(results[0], norm_(results[0]));
    return results;
  }

 private:
  class Blocks : public Sequential {
   public:
    explicit Blocks(const TransformerConfig& config) {
      for (int64_t i = 0; i < config.layers; ++i) {
        Append(std::make_unique<DecoderBlock>(config, i));
      }
      if (config.router_sums) SetResults({"y", "router_sums"});
    }
  };

  EmbeddingLayer embedding_;
  const double scale_;
  Blocks layers_;
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
  if (config.router_sums) SetResults({"logits", "router_sums"});
}

Transformer::~Transformer() = default;

TensorsOr Transformer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DistributedTensor& ids = operands[0];
  if (ids.ndim() != 2) {
    return InvalidArgument({"Transformer: the ids are ", ids.ToString(),
                            "; give them as [batch, sequence], a text alone as [1, sequence]"});
  }
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, body_->Call({ids}));
  DistributedTensor& x = results[0];
  if (slot_.cache != nullptr) {
    DT_ASSIGN_OR_RETURN(x, slot_.cache->LastTokens(x));
  }
  DT_ASSIGN_OR_RETURN(x, lm_head_(x));
  if (results.size() == 1) return results;
  if (results[1].mesh() != x.mesh()) {  // the head is a stage of its own
    DT_ASSIGN_OR_RETURN(const Layout there, results[1].layout().OnMesh(x.mesh()));
    DT_ASSIGN_OR_RETURN(results[1], results[1].Redistribute(there));
  }
  return results;
}

}  // namespace dtensor
