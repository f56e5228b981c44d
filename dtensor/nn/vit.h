// ViT, the vision transformer (Dosovitskiy et al. 2020): images to classes, by an encoder of their
// patches. Names and shapes are those in folders of Hugging Face's ViTForImageClassification, so
// these can be loaded and saved by name.
//
//   vit.embeddings.cls_token                                              [1, 1, dim]
//   vit.embeddings.position_embeddings                                    [1, 1 + patches, dim]
//   vit.embeddings.patch_embeddings.projection.weight                     [dim, channels, p, p]
//   vit.embeddings.patch_embeddings.projection.bias                       [dim]
//   vit.encoder.layer.N.layernorm_{before,after}.{weight,bias}            [dim]
//   vit.encoder.layer.N.attention.attention.P.{weight,bias}               [dim, dim]; [dim]
//   vit.encoder.layer.N.attention.output.dense.{weight,bias}              [dim, dim]; [dim]
//   vit.encoder.layer.N.intermediate.dense.{weight,bias}                  [hidden, dim]; [hidden]
//   vit.encoder.layer.N.output.dense.{weight,bias}                        [dim, hidden]; [dim]
//   vit.layernorm.{weight,bias}                                           [dim]
//   classifier.{weight,bias}                                              [classes, dim]; [classes]
//
// where P is query, key or value, and p the size of a patch.
//
// It takes images, as ResNet (resnet.h) does, and plans name its modules themselves; see
// docs/convolutions.md.
#ifndef DTENSOR_NN_VIT_H_
#define DTENSOR_NN_VIT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct VitConfig {
  int64_t image = 224, patch = 16, channels = 3;  // height and width of images, and of patches
  int64_t classes = 1000;
  int64_t dim = 768, layers = 12, heads = 12;
  int64_t hidden = 3072;  // of the MLP
  double norm_eps = 1e-12;
  double init_stddev = 0.02;
  GeluForm gelu = GeluForm::kErf;
  bool qkv_bias = true;
  // Dropout during training: of the results of a layer's parts, of attention's weights.
  double hidden_dropout = 0, attention_dropout = 0;

  // Reads Hugging Face's config.json of a vit; `classes` is the number of its labels. Errors:
  // kInvalidArgument for text that is not a JSON object, for members that are not numbers in range
  // (sizes of images and patches that are not one number among them), and, by name, for what the
  // model does not implement, as an activation other than GELU.
  static absl::StatusOr<VitConfig> FromJson(absl::string_view text);

  int64_t head_dim() const { return dim / heads; }
  int64_t patches() const { return (image / patch) * (image / patch); }
  // Errors: kInvalidArgument: sizes < 1, heads that do not divide dim, patches that do not divide
  // images.
  absl::Status Validate() const;
};

// "pixel_values" [batch, image, image, channels] (PyTorch's are [batch, channels, image, image]) ->
// "logits" [batch, classes]. Images of another size are refused: positions are not interpolated.
class Vit : public Module {
 public:
  explicit Vit(const VitConfig& config);  // Requires: config.Validate().ok()
  ~Vit() override;
  const VitConfig& config() const { return config_; }

 protected:
  TensorOr Forward(const DistributedTensor& pixel_values) override;

 private:
  struct Parts;
  const VitConfig config_;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_VIT_H_
