#include "dtensor/nn/transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/latent_attention.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t GroupWidth(const TransformerConfig& config) {
  return config.heads / config.kv_heads * config.head_dim();
}

LinearLayer::Bias BiasIf(bool has) {
  return has ? LinearLayer::Bias::kAdded : LinearLayer::Bias::kNone;
}

MixtureConfig MixtureOf(const TransformerConfig& config) {
  MixtureConfig mixture;
  mixture.dim = config.dim;
  mixture.hidden = config.mlp_hidden();
  mixture.experts = config.experts;
  mixture.experts_per_token = config.experts_per_token;
  mixture.normalize = config.normalize_experts;
  mixture.score = config.router_score;
  mixture.scale = config.expert_scale;
  mixture.groups = config.expert_groups;
  mixture.picked_groups = config.picked_groups;
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
  if (config.kv_rank > 0) return std::make_unique<LatentAttention>(config);
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

absl::Status CheckDenseLayers(absl::string_view model, const TransformerConfig& config) {
  int64_t with_experts = 0;
  for (int64_t l = 0; l < config.layers; ++l) with_experts += config.has_experts(l) ? 1 : 0;
  for (const int64_t layer : config.dense_layers) {
    if (0 <= layer && layer < config.layers) continue;
    return InvalidArgument({model, ": dense_layers has ", absl::StrCat(layer),
                            ", and layers are 0 to ", absl::StrCat(config.layers - 1)});
  }
  if (with_experts > 0) return absl::OkStatus();
  return InvalidArgument(
      {model, ": all layers are in dense_layers; leave one out, or set experts to 0"});
}

// What only models with mixtures have.
absl::Status CheckNoMixture(absl::string_view model, const TransformerConfig& config) {
  const bool is_sigmoid = config.router_score == RouterScore::kSigmoid;
  const char* const has = !config.dense_layers.empty() ? "dense_layers"
                          : config.dense_hidden > 0    ? "dense_hidden"
                          : config.shared_hidden > 0   ? "shared_hidden"
                          : is_sigmoid                 ? "router_score"
                          : config.router_sums         ? "router_sums"
                                                       : nullptr;
  if (has == nullptr) return absl::OkStatus();
  return InvalidArgument({model, ": ", has, " is set, and there are no experts; set experts, too"});
}

absl::Status CheckLatent(absl::string_view model, const TransformerConfig& config) {
  if (config.kv_rank == 0) {
    const char* const has = config.q_rank > 0         ? "q_rank"
                            : config.value_size > 0   ? "value_size"
                            : config.rope_interleaved ? "rope_interleaved"
                                                      : nullptr;
    if (has == nullptr) return absl::OkStatus();
    return InvalidArgument(
        {model, ": ", has, " is set, which only latent attention has; set ", "kv_rank, too"});
  }
  DT_RETURN_IF_ERROR(internal::CheckSizes(
      model, {{"value_size", config.value_size}, {"rotary_size", config.rotary_size}}));
  const char* const has = config.fused_projections          ? "fused_projections"
                          : config.qk_norm                  ? "qk_norm"
                          : config.window > 0               ? "window"
                          : config.kv_heads != config.heads ? "kv_heads other than heads"
                                                            : nullptr;
  if (has != nullptr) {
    return InvalidArgument({model, ": latent attention has no ", has, "; set it otherwise"});
  }
  if (config.rotary_size < config.head_dim()) return absl::OkStatus();
  return InvalidArgument({model, ": rotary_size is ", absl::StrCat(config.rotary_size),
                          ", and a head has ", absl::StrCat(config.head_dim()),
                          " features; with latent attention give fewer"});
}

absl::Status CheckGroups(absl::string_view model, const TransformerConfig& config) {
  const int64_t groups = config.expert_groups, picked = config.picked_groups;
  const bool has_groups = groups != 1 || picked != 1;
  if (config.router_score == RouterScore::kSoftmax && (has_groups || config.expert_scale != 1)) {
    return InvalidArgument({model, ": ", has_groups ? "expert_groups" : "expert_scale",
                            " is set, which routers with softmax scores have not; set ",
                            "router_score to kSigmoid"});
  }
  if (!std::isfinite(config.expert_scale) || config.expert_scale <= 0) {
    return InvalidArgument({model, ": expert_scale is ", absl::StrCat(config.expert_scale),
                            "; give a number above 0"});
  }
  DT_RETURN_IF_ERROR(
      internal::CheckSizes(model, {{"expert_groups", groups}, {"picked_groups", picked}}));
  DT_RETURN_IF_ERROR(
      internal::CheckDivides(model, {"expert_groups", groups}, {"experts", config.experts}));
  const int64_t of_group = config.experts / groups;
  if (picked <= groups && (groups == 1 || of_group > 1) &&
      config.experts_per_token <= picked * of_group) {
    return absl::OkStatus();
  }
  return InvalidArgument({model, ": ", absl::StrCat(config.experts_per_token), " experts of ",
                          absl::StrCat(picked), " of ", absl::StrCat(groups), " groups of ",
                          absl::StrCat(of_group), " are picked; give groups of 2 or more, and no ",
                          "more picked_groups than there are, with experts_per_token in them"});
}

absl::Status CheckMixture(absl::string_view model, const TransformerConfig& config) {
  if (config.experts == 0) return CheckNoMixture(model, config);
  DT_RETURN_IF_ERROR(internal::CheckSizes(
      model, {{"experts", config.experts}, {"experts_per_token", config.experts_per_token}}));
  if (config.experts_per_token > config.experts) {
    return InvalidArgument({model, ": experts_per_token is ",
                            absl::StrCat(config.experts_per_token), ", and there are ",
                            absl::StrCat(config.experts), " experts; give no more than those"});
  }
  DT_RETURN_IF_ERROR(CheckDenseLayers(model, config));
  DT_RETURN_IF_ERROR(CheckGroups(model, config));
  if (!config.fused_projections && !config.mlp_bias) return absl::OkStatus();
  return InvalidArgument({model, ": experts have no ",
                          config.mlp_bias ? "mlp_bias" : "fused_projections",
                          "; set it to false, or experts to 0"});
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

// The first `size` features of each head are rotated; 0: all of them.
TensorOr Rotated(const DistributedTensor& x, const RopeOptions& rope, int64_t size) {
  const int64_t all = x.shape().back();
  if (size == 0 || size == all) return Rope(x, rope);
  return Concat({Rope(Slice(x, -1, 0, size), rope), Slice(x, -1, size, all)}, -1);
}

// Sets the parts of the weight, and of the bias if there is one.
void SetParts(const LinearLayer& layer, const std::vector<ParameterPart>& parts) {
  layer.weight()->parts = parts;
  if (layer.bias() != nullptr) layer.bias()->parts = parts;
}

}  // namespace

int64_t TransformerConfig::mlp_hidden() const {
  return hidden > 0 ? hidden : std::max<int64_t>(64, dim * 8 / 3 / 64 * 64);
}

bool TransformerConfig::has_experts(int64_t layer) const {
  return experts > 0 && !absl::c_linear_search(dense_layers, layer);
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
  for (const internal::NamedSize& size : {internal::NamedSize("head_size", head_size),
                                          {"rotary_size", rotary_size},
                                          {"kv_rank", kv_rank},
                                          {"q_rank", q_rank},
                                          {"value_size", value_size},
                                          {"window", window},
                                          {"dense_hidden", dense_hidden},
                                          {"shared_hidden", shared_hidden},
                                          {"first_window_layer", first_window_layer}}) {
    if (size.second >= 0) continue;
    return InvalidArgument(
        {kModel, ": ", size.first, " is ", absl::StrCat(size.second), "; give 0 or more"});
  }
  if (head_size == 0) {
    DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"heads", heads}, {"dim", dim}));
  }
  DT_RETURN_IF_ERROR(internal::CheckDivides(kModel, {"kv_heads", kv_heads}, {"heads", heads}));
  DT_RETURN_IF_ERROR(CheckMixture(kModel, *this));
  DT_RETURN_IF_ERROR(CheckLatent(kModel, *this));
  if (rotary_size > head_dim()) {
    return InvalidArgument({kModel, ": rotary_size is ", absl::StrCat(rotary_size), ", and a head ",
                            "has ", absl::StrCat(head_dim()), " features; give no more"});
  }
  const int64_t rotated = rotary_size > 0 ? rotary_size : head_dim();
  if (rotated % 2 == 0) return absl::OkStatus();
  return InvalidArgument({kModel, ": ",
                          rotary_size > 0 ? "rotary_size"
                          : head_size > 0 ? "head_size"
                                          : "dim / heads",
                          " must be even, and is ", absl::StrCat(rotated),
                          ": rotary embeddings turn pairs"});
}

GroupedQueryAttention::GroupedQueryAttention(const TransformerConfig& config, int64_t layer)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim()),
      rotary_size_(config.rotary_size),
      rope_{config.rope_theta, config.rope_scaling},
      o_(heads_ * head_dim_, config.dim, ResidualStddev(config.init_stddev, config.layers),
         {.in = GroupWidth(config), .in_part = head_dim_}, BiasIf(config.o_bias)) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units,
                                                         BiasIf(config.qkv_bias)));
    AddChild(name, projections_.back().get());
  };
  if (config.fused_projections) {
    const int64_t group = GroupWidth(config) + 2 * head_dim_;
    add("qkv_proj", kv_heads_ * group, {.out = group});
    SetParts(*projections_[0],
             {{"q_proj", GroupWidth(config)}, {"k_proj", head_dim_}, {"v_proj", head_dim_}});
  } else {
    add("q_proj", heads_ * head_dim_, {.out = GroupWidth(config), .out_part = head_dim_});
    add("k_proj", kv_heads_ * head_dim_, {.out = head_dim_});
    add("v_proj", kv_heads_ * head_dim_, {.out = head_dim_});
  }
  AddChild("o_proj", &o_);
  for (const char* const name : {"q_norm", "k_norm"}) {
    if (!config.qk_norm) continue;
    norms_.push_back(std::make_unique<RmsNormLayer>(head_dim_, config.norm_eps));
    AddChild(name, norms_.back().get());
  }
  if (config.window > 0 && layer >= config.first_window_layer) {
    attention_options().mask = *AttentionMask::Window(config.window);
  }
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
    TensorOr in_heads = Reshape(one, {batch, sequence, heads, head_dim_});
    if (out.size() < norms_.size()) in_heads = (*norms_[out.size()])(in_heads);
    DT_ASSIGN_OR_RETURN(out.emplace_back(), std::move(in_heads));
  }
  return out;
}

TensorOr GroupedQueryAttention::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> qkv, Project(x));
  RopeOptions rope = rope_;
  if (slot_.cache != nullptr) {
    rope.offset = slot_.cache->positions().first;
    rope.row_offsets = slot_.cache->positions().rows;
  }
  const TensorOr q = Rotated(qkv[0], rope, rotary_size_), k = Rotated(qkv[1], rope, rotary_size_);
  const TensorOr mixed = slot_.cache != nullptr
                             ? slot_.cache->Attend(slot_, q, k, qkv[2], attention_options())
                             : Attention(q, k, qkv[2], attention_options());
  return o_(Reshape(mixed, {x.shape()[0], x.shape()[1], heads_ * head_dim_}));
}

SwiGluMlp::SwiGluMlp(const TransformerConfig& config, int64_t hidden)
    : hidden_(hidden > 0 ? hidden : config.mlp_hidden()),
      down_(hidden_, config.dim, ResidualStddev(config.init_stddev, config.layers), {},
            BiasIf(config.mlp_bias)) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units,
                                                         BiasIf(config.mlp_bias)));
    AddChild(name, projections_.back().get());
  };
  if (config.fused_projections) {
    add("gate_up_proj", 2 * hidden_, {.out_pieces = 2});
    SetParts(*projections_[0], {{"gate_proj", hidden_}, {"up_proj", hidden_}});
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

DecoderBlock::DecoderBlock(const TransformerConfig& config, int64_t layer)
    : attention_norm_(config.dim, config.norm_eps),
      mlp_norm_(config.dim, config.norm_eps),
      attention_(AttentionOf(config, layer)),
      mlp_(MlpOf(config, layer)) {
  const bool before = HasSumsBefore(config, layer);
  if (before) SetOperands({"x", "router_sums"});
  if (before || HasSumsBefore(config, layer + 1)) SetResults({"y", "router_sums"});
  AddChild("input_layernorm", &attention_norm_);
  AddChild("self_attn", attention_.get());
  AddChild("post_attention_layernorm", &mlp_norm_);
  AddChild(config.has_experts(layer) && config.mixtral_names ? "block_sparse_moe" : "mlp",
           mlp_.get());
}

TensorsOr DecoderBlock::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DistributedTensor& x = operands[0];
  const TensorOr h = Add(x, (*attention_)(attention_norm_(x)));
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, mlp_->Call({mlp_norm_(h)}));
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
        layers_(config),
        norm_(config.dim, config.norm_eps) {
    AddChild("embed_tokens", &embedding_);
    AddChild("layers", &layers_);
    AddChild("norm", &norm_);
    if (config.router_sums) SetResults({"y", "router_sums"});
  }
  const ParameterPtr& embedding_weight() const { return embedding_.weight(); }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override {
    DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results,
                        layers_.Call({embedding_(operands[0])}));
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
  DT_ASSIGN_OR_RETURN(const Layout by_logits, results[1].layout().OnMesh(x.mesh()));
  if (results[1].mesh() != x.mesh()) {  // the head is a stage of its own
    DT_ASSIGN_OR_RETURN(results[1], results[1].Redistribute(by_logits));
  }
  return results;
}

}  // namespace dtensor
