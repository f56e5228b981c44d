// The attention and the MLP of a Transformer's blocks.
#include <utility>
#include <vector>

#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t GroupWidth(const TransformerConfig& config) {
  return config.heads / config.kv_heads * config.head_dim();
}

// The first `size` features of each head are rotated; 0: all of them.
TensorOr PartRotated(const DistributedTensor& x, const RopeOptions& rope, int64_t size) {
  const int64_t all = x.shape().back();
  if (size == 0 || size == all) return Rope(x, rope);
  return Concat({Rope(Slice(x, -1, 0, size), rope), Slice(x, -1, size, all)}, -1);
}

RopeOptions RopeOf(const TransformerConfig& config, int64_t layer) {
  if (config.has_window(layer) && config.window_rope_theta > 0) return {config.window_rope_theta};
  return {config.rope_theta, config.rope_scaling};
}

// Sets the parts of the weight, and of the bias if there is one.
void SetParts(const LinearLayer& layer, const std::vector<ParameterPart>& parts) {
  layer.weight()->parts = parts;
  if (layer.bias() != nullptr) layer.bias()->parts = parts;
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(const TransformerConfig& config, int64_t layer)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim()),
      rotary_dim_(config.rotary_dim),
      rope_(RopeOf(config, layer)),
      o_(heads_ * head_dim_, config.dim, ResidualStddev(config.init_stddev, config.layers),
         {.in = GroupWidth(config), .in_part = head_dim_}, LinearLayer::BiasIf(config.o_bias)) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units,
                                                         LinearLayer::BiasIf(config.qkv_bias)));
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
    norms_.push_back(
        std::make_unique<RmsNormLayer>(head_dim_, config.norm_eps, config.norm_offset));
    AddChild(name, norms_.back().get());
  }
  if (config.attention_sinks) {
    sinks_ = Parameter::New({heads_}, ParameterInit::Normal(config.init_stddev),
                            {heads_ / kv_heads_}, {1});
    AddParameter("sinks", sinks_, {DimRole::kOutput});
  }
  attention_options().scale = config.attention_scale;
  if (config.has_window(layer)) attention_options().mask = *AttentionMask::Window(config.window);
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
  DT_RETURN_IF_ERROR(CheckHidden("GroupedQueryAttention", x));
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> qkv, Project(x));
  const RopeOptions rope = slot_.Positioned(rope_);
  const TensorOr q = PartRotated(qkv[0], rope, rotary_dim_);
  const TensorOr k = PartRotated(qkv[1], rope, rotary_dim_);
  const TensorOr sinks = sinks_ != nullptr ? sinks_->ValueOn(x.mesh()) : DistributedTensor();
  const TensorOr mixed = slot_.Attend(q, k, qkv[2], CallOptions(x.context()), sinks);
  return o_(Reshape(mixed, {x.shape()[0], x.shape()[1], heads_ * head_dim_}));
}

SwiGluMlp::SwiGluMlp(const TransformerConfig& config, int64_t hidden)
    : hidden_(hidden > 0 ? hidden : config.mlp_hidden()),
      gelu_gate_(config.gelu_gate),
      down_(hidden_, config.dim, ResidualStddev(config.init_stddev, config.layers), {},
            LinearLayer::BiasIf(config.mlp_bias)) {
  const auto add = [&](const char* name, int64_t out, LinearLayer::Units units) {
    projections_.push_back(std::make_unique<LinearLayer>(config.dim, out, config.init_stddev, units,
                                                         LinearLayer::BiasIf(config.mlp_bias)));
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
  if (!gelu_gate_) return down_(SiluMul(parts[0], parts[1]));
  return down_(Mul(Gelu(parts[0], *gelu_gate_), parts[1]));
}

}  // namespace dtensor
