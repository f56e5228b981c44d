#include "dtensor/nn/vit.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/conv.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/encoder_layers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;
using internal::EncoderAttention;
using internal::EncoderMlpHalf;

constexpr auto kBias = LinearLayer::Bias::kAdded;

internal::EncoderSizes SizesOf(const VitConfig& config) {
  return {.dim = config.dim,
          .heads = config.heads,
          .hidden = config.hidden,
          .stddev = config.init_stddev,
          .attention_dropout = config.attention_dropout,
          .qkv_bias = config.qkv_bias};
}

// Each patch's pixels by one matrix: [b, height, width, channels] -> [b, patches, dim].
class PatchEmbeddings : public Module {
 public:
  explicit PatchEmbeddings(const VitConfig& config)
      : projection_({config.channels, config.dim, {config.patch, config.patch}}, config.init_stddev,
                    {.stride = {config.patch}}) {
    AddChild("projection", &projection_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, projection_(x));
    return Reshape(y, {y.shape()[0], y.shape()[1] * y.shape()[2], y.shape()[3]});
  }

 private:
  ConvLayer projection_;
};

// The class's token before the patches, and each token's position: -> [b, 1 + patches, dim].
class Embeddings : public Module {
 public:
  explicit Embeddings(const VitConfig& config)
      : class_token_(Parameter::New({1, 1, config.dim}, ParameterInit::Normal(config.init_stddev))),
        positions_(Parameter::New({1, 1 + config.patches(), config.dim},
                                  ParameterInit::Normal(config.init_stddev))),
        patches_(config),
        dropout_(config.hidden_dropout) {
    AddParameter("cls_token", class_token_);
    AddParameter("position_embeddings", positions_);
    AddChild("patch_embeddings", &patches_);
    AddChild("dropout", &dropout_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    DT_ASSIGN_OR_RETURN(const DistributedTensor patches, patches_(x));
    const DeviceMesh& mesh = patches.mesh();
    const TensorOr first =
        Expand(class_token_->ValueOn(mesh), {patches.shape()[0], 1, patches.shape()[2]});
    return dropout_(Add(Concat({first, patches}, 1), positions_->ValueOn(mesh)));
  }

 private:
  const ParameterPtr class_token_, positions_;
  PatchEmbeddings patches_;
  DropoutLayer dropout_;
};

// dense, and dropout of what it returns.
class Output : public Module {
 public:
  Output(const VitConfig& config, int64_t in, int64_t unit)
      : dense_(in, config.dim, config.init_stddev, {.in = unit}, kBias),
        dropout_(config.hidden_dropout) {
    AddChild("dense", &dense_);
    AddChild("dropout", &dropout_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return dropout_(dense_(x)); }

 private:
  LinearLayer dense_;
  DropoutLayer dropout_;
};

class AttentionHalf : public Module {
 public:
  explicit AttentionHalf(const VitConfig& config)
      : attention_(SizesOf(config)), output_(config, config.dim, config.head_dim()) {
    AddChild("attention", &attention_);
    AddChild("output", &output_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return output_(attention_(x)); }

 private:
  EncoderAttention attention_;
  Output output_;
};

class Layer : public Module {
 public:
  explicit Layer(const VitConfig& config)
      : before_(config.dim, config.norm_eps),
        attention_(config),
        after_(config.dim, config.norm_eps),
        intermediate_(SizesOf(config), config.gelu),
        output_(config, config.hidden, 1) {
    AddChild("layernorm_before", &before_);
    AddChild("attention", &attention_);
    AddChild("layernorm_after", &after_);
    AddChild("intermediate", &intermediate_);
    AddChild("output", &output_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr attended = Add(attention_(before_(x)), x);
    return Add(output_(intermediate_(after_(attended))), attended);
  }

 private:
  LayerNormLayer before_;
  AttentionHalf attention_;
  LayerNormLayer after_;
  EncoderMlpHalf intermediate_;
  Output output_;
};

// -> the class's token, [b, dim].
class Backbone : public Module {
 public:
  explicit Backbone(const VitConfig& config)
      : embeddings_(config), encoder_(config), norm_(config.dim, config.norm_eps) {
    AddChild("embeddings", &embeddings_);
    AddChild("encoder", &encoder_);
    AddChild("layernorm", &norm_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    DT_ASSIGN_OR_RETURN(const DistributedTensor tokens, encoder_(embeddings_(x)));
    const Dims shape = {tokens.shape()[0], tokens.shape()[2]};
    return Reshape(norm_(Slice(tokens, 1, 0, 1)), shape);
  }

 private:
  Embeddings embeddings_;
  internal::Encoder<Layer, VitConfig> encoder_;
  LayerNormLayer norm_;
};

}  // namespace

absl::StatusOr<VitConfig> VitConfig::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("VitConfig", text));
  json.OnlyModel("vit");
  VitConfig config;
  config.image = json.Size("image_size", config.image);
  config.patch = json.Size("patch_size", config.patch);
  config.channels = json.Size("num_channels", config.channels);
  config.dim = json.Size("hidden_size", config.dim);
  config.layers = json.Size("num_hidden_layers", config.layers, ConfigReader::kMaxLayers);
  config.heads = json.Size("num_attention_heads", config.heads);
  config.hidden = json.Size("intermediate_size", config.hidden);
  config.norm_eps = json.Number("layer_norm_eps", config.norm_eps);
  config.init_stddev = json.Number("initializer_range", config.init_stddev);
  config.gelu = json.Gelu("hidden_act", "gelu");
  config.qkv_bias = json.Flag("qkv_bias", true);
  config.hidden_dropout = json.Probability("hidden_dropout_prob", config.hidden_dropout);
  config.attention_dropout =
      json.Probability("attention_probs_dropout_prob", config.attention_dropout);
  config.classes = json.Members("id2label", /*if_missing=*/2);
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  return config;
}

absl::Status VitConfig::Validate() const {
  DT_RETURN_IF_ERROR(internal::CheckSizes("Vit", {{"image", image},
                                                  {"patch", patch},
                                                  {"channels", channels},
                                                  {"classes", classes},
                                                  {"dim", dim},
                                                  {"layers", layers},
                                                  {"heads", heads},
                                                  {"hidden", hidden}}));
  DT_RETURN_IF_ERROR(internal::CheckDivides("Vit", {"patch", patch}, {"image", image}));
  return internal::CheckDivides("Vit", {"heads", heads}, {"dim", dim});
}

struct Vit::Parts {
  explicit Parts(const VitConfig& config)
      : vit(config), classifier(config.dim, config.classes, config.init_stddev, {}, kBias) {}
  Backbone vit;
  LinearLayer classifier;
};

Vit::Vit(const VitConfig& config) : config_(config), parts_(std::make_unique<Parts>(config)) {
  SetOperands({"pixel_values"});
  SetResults({"logits"});
  AddChild("vit", &parts_->vit);
  AddChild("classifier", &parts_->classifier);
}

Vit::~Vit() = default;

TensorOr Vit::Forward(const DistributedTensor& pixel_values) {
  const Dims& shape = pixel_values.shape();
  const Dims image = {config_.image, config_.image, config_.channels};
  if (shape.size() != 4 || Dims(shape.begin() + 1, shape.end()) != image) {
    return InvalidArgument({"Vit: pixel_values are ", pixel_values.ToString(),
                            "; give [batch, height, width, channels], with images of ",
                            DimsToString(image)});
  }
  return parts_->classifier(parts_->vit(pixel_values));
}

}  // namespace dtensor
