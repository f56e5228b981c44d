// ResNet (He et al. 2015): images to classes. Names and shapes are those of Hugging Face's
// ResNetForImageClassification, so its folders can be loaded and saved by name.
//
//   resnet.embedder.embedder.C                   7x7, stride 2; then a 3x3 maximum, stride 2
//   resnet.encoder.stages.N.layers.M.layer.K.C   basic: 3x3, 3x3; bottleneck: 1x1, 3x3, 1x1
//   resnet.encoder.stages.N.layers.M.shortcut.C  1x1, where sizes change
//   classifier.1.{weight,bias}                   [classes, features]; [classes]
//
// where C is convolution.weight [out, in, k, k] and normalization.{weight,bias,running_mean,
// running_var} [out].
//
// Unlike ModelFromJson's models it takes images, and plans name its modules themselves:
// {"", DataParallel("dp")} shards the batch, {"", Edges("cp", in S(1))} cuts images into strips of
// rows; statistics of the norms are of the global batch either way. docs/convolutions.md.
#ifndef DTENSOR_NN_RESNET_H_
#define DTENSOR_NN_RESNET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct ResNetConfig {
  enum class Layer : uint8_t { kBasic, kBottleneck };
  int64_t channels = 3, classes = 1000;
  int64_t embedding = 64;  // features of the first convolution
  // Of each stage. The first layer of a stage halves height and width, but in the first stage only
  // if `downsample_in_first_stage`.
  std::vector<int64_t> features = {256, 512, 1024, 2048};
  std::vector<int64_t> depths = {3, 4, 6, 3};  // layers
  Layer layer = Layer::kBottleneck;
  bool downsample_in_first_stage = false;
  bool downsample_in_bottleneck = false;  // by its first convolution, not by its second

  // Reads Hugging Face's config.json of a resnet; `classes` is the number of its labels. Errors:
  // kInvalidArgument for text that is not a JSON object, for members that are not numbers in range,
  // and, by name, for what the model does not implement, as an activation other than ReLU.
  static absl::StatusOr<ResNetConfig> FromJson(absl::string_view text);

  // Errors: kInvalidArgument: sizes < 1, another number of depths than of stages, none of these,
  // features of a bottleneck that 4 does not divide.
  absl::Status Validate() const;
};

// "pixel_values" [batch, height, width, channels] (PyTorch's are [batch, channels, height, width])
// -> "logits" [batch, classes]. Weights of convolutions begin as normal(0, sqrt(2 / (out k k))).
class ResNet : public Module {
 public:
  explicit ResNet(const ResNetConfig& config);  // Requires: config.Validate().ok()
  ~ResNet() override;
  const ResNetConfig& config() const { return config_; }

 protected:
  TensorOr Forward(const DistributedTensor& pixel_values) override;

 private:
  struct Parts;
  const ResNetConfig config_;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_RESNET_H_
