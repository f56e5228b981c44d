#include "dtensor/nn/resnet.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/batch_norm.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/conv.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;

constexpr int64_t kReduction = 4;  // of a bottleneck's features

struct ConvSizes {
  int64_t in, out, kernel, stride = 1;
  bool has_relu = true;
};

// A convolution that keeps the size divided by its stride, its norm, and ReLU or not.
class ConvNorm : public Module {
 public:
  explicit ConvNorm(const ConvSizes& sizes)
      : has_relu_(sizes.has_relu),
        convolution_(
            {sizes.in, sizes.out, {sizes.kernel, sizes.kernel}}, Stddev(sizes),
            {.stride = {sizes.stride}, .before = {sizes.kernel / 2}, .after = {sizes.kernel / 2}},
            /*has_bias=*/false),
        normalization_(sizes.out) {
    AddChild("convolution", &convolution_);
    AddChild("normalization", &normalization_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr y = normalization_(convolution_(x));
    return has_relu_ ? Relu(y) : y;
  }

 private:
  // He et al. 2015, of what leaves the convolution.
  static double Stddev(const ConvSizes& sizes) {
    return std::sqrt(2.0 / static_cast<double>(sizes.out * sizes.kernel * sizes.kernel));
  }
  const bool has_relu_;
  ConvLayer convolution_;
  BatchNormLayer normalization_;
};

// relu(layer(x) + shortcut(x)); the shortcut is x itself where sizes stay.
class ResidualLayer : public Module {
 public:
  ResidualLayer(const ResNetConfig& config, int64_t in, int64_t out, int64_t stride) {
    for (const ConvSizes& sizes : SizesOf(config, in, out, stride)) {
      layer_.Append(std::make_unique<ConvNorm>(sizes));
    }
    if (in != out || stride != 1) {
      shortcut_ = std::make_unique<ConvNorm>(ConvSizes{in, out, 1, stride, false});
      AddChild("shortcut", shortcut_.get());
    }
    AddChild("layer", &layer_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr beside = shortcut_ == nullptr ? TensorOr(x) : (*shortcut_)(x);
    return Relu(Add(layer_(x), beside));
  }

 private:
  static std::vector<ConvSizes> SizesOf(const ResNetConfig& config, int64_t in, int64_t out,
                                        int64_t stride) {
    if (config.layer == ResNetConfig::Layer::kBasic) {
      return {{in, out, 3, stride}, {out, out, 3, 1, false}};
    }
    const int64_t inner = out / kReduction;
    const int64_t first = config.downsample_in_bottleneck ? stride : 1;
    return {{in, inner, 1, first}, {inner, inner, 3, stride / first}, {inner, out, 1, 1, false}};
  }
  Sequential layer_;
  std::unique_ptr<ConvNorm> shortcut_;
};

class Stage : public Module {
 public:
  Stage(const ResNetConfig& config, int64_t in, size_t stage) {
    const bool halves = stage > 0 || config.downsample_in_first_stage;
    const int64_t out = config.features[stage];
    for (int64_t i = 0; i < config.depths[stage]; ++i) {
      layers_.Append(std::make_unique<ResidualLayer>(config, i == 0 ? in : out, out,
                                                     i == 0 && halves ? 2 : 1));
    }
    AddChild("layers", &layers_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return layers_(x); }

 private:
  Sequential layers_;
};

class Encoder : public Module {
 public:
  explicit Encoder(const ResNetConfig& config) {
    int64_t in = config.embedding;
    for (size_t i = 0; i < config.features.size(); in = config.features[i++]) {
      stages_.Append(std::make_unique<Stage>(config, in, i));
    }
    AddChild("stages", &stages_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return stages_(x); }

 private:
  Sequential stages_;
};

class Embedder : public Module {
 public:
  explicit Embedder(const ResNetConfig& config)
      : embedder_({config.channels, config.embedding, 7, 2}) {
    AddChild("embedder", &embedder_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return MaxPool(embedder_(x), {.size = {3, 3}, .stride = {2}, .before = {1}, .after = {1}});
  }

 private:
  ConvNorm embedder_;
};

// [batch, height, width, channels] -> the average over height and width.
class Backbone : public Module {
 public:
  explicit Backbone(const ResNetConfig& config) : embedder_(config), encoder_(config) {
    AddChild("embedder", &embedder_);
    AddChild("encoder", &encoder_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return Mean(encoder_(embedder_(x)), {1, 2});
  }

 private:
  Embedder embedder_;
  Encoder encoder_;
};

// Hugging Face's is a list, whose first module has no parameters.
class Classifier : public Module {
 public:
  Classifier(int64_t features, int64_t classes)
      : linear_(features, classes, 1 / std::sqrt(3 * static_cast<double>(features)), {},
                LinearLayer::Bias::kAdded) {
    AddChild("1", &linear_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return linear_(x); }

 private:
  LinearLayer linear_;
};

}  // namespace

absl::StatusOr<ResNetConfig> ResNetConfig::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("ResNetConfig", text));
  json.OnlyModel("resnet");
  ResNetConfig config;
  config.channels = json.Size("num_channels", config.channels);
  config.embedding = json.Size("embedding_size", config.embedding);
  if (json.Has("hidden_sizes")) {
    config.features = json.Indices("hidden_sizes", ConfigReader::kMaxSize + 1);
  }
  if (json.Has("depths")) config.depths = json.Indices("depths", ConfigReader::kMaxLayers + 1);
  json.OnlyOneOf("layer_type", {"bottleneck", "basic"}, "layers are bottleneck or basic");
  if (json.Text("layer_type", "bottleneck") == "basic") config.layer = Layer::kBasic;
  json.OnlyText("hidden_act", "relu", "layers end in ReLU");
  config.downsample_in_first_stage = json.Flag("downsample_in_first_stage", false);
  config.downsample_in_bottleneck = json.Flag("downsample_in_bottleneck", false);
  config.classes = json.Members("id2label", /*if_missing=*/2);
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  return config;
}

absl::Status ResNetConfig::Validate() const {
  DT_RETURN_IF_ERROR(internal::CheckSizes(
      "ResNet", {{"channels", channels}, {"classes", classes}, {"embedding", embedding}}));
  if (features.empty() || features.size() != depths.size()) {
    return InvalidArgument({"ResNet: there are features of ", absl::StrCat(features.size()),
                            " stages and depths of ", absl::StrCat(depths.size()),
                            "; give both for each stage, of one or more"});
  }
  int64_t layers = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    DT_RETURN_IF_ERROR(internal::CheckSizes(
        "ResNet", {{"features of a stage", features[i]}, {"depth of a stage", depths[i]}}));
    layers += depths[i];
    if (depths[i] > ConfigReader::kMaxLayers || layers > ConfigReader::kMaxLayers) {
      return InvalidArgument({"ResNet: there are more than ",
                              absl::StrCat(ConfigReader::kMaxLayers), " layers in all"});
    }
    if (layer == Layer::kBasic) continue;
    DT_RETURN_IF_ERROR(internal::CheckDivides("ResNet", {"reduction of a bottleneck", kReduction},
                                              {"features of a stage", features[i]}));
  }
  return absl::OkStatus();
}

struct ResNet::Parts {
  explicit Parts(const ResNetConfig& config)
      : resnet(config), classifier(config.features.back(), config.classes) {}
  Backbone resnet;
  Classifier classifier;
};

ResNet::ResNet(const ResNetConfig& config)
    : config_(config), parts_(std::make_unique<Parts>(config)) {
  SetOperands({"pixel_values"});
  SetResults({"logits"});
  AddChild("resnet", &parts_->resnet);
  AddChild("classifier", &parts_->classifier);
}

ResNet::~ResNet() = default;

TensorOr ResNet::Forward(const DistributedTensor& pixel_values) {
  const Dims& shape = pixel_values.shape();
  if (shape.size() != 4 || shape.back() != config_.channels) {
    return InvalidArgument({"ResNet: pixel_values are ", pixel_values.ToString(),
                            "; give [batch, height, width, ", absl::StrCat(config_.channels),
                            "], channels last"});
  }
  return parts_->classifier(parts_->resnet(pixel_values));
}

}  // namespace dtensor
