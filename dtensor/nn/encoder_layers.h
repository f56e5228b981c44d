// What the layers of encoders share: BERT's (bert.h) and ViT's (vit.h).
#ifndef DTENSOR_NN_ENCODER_LAYERS_H_
#define DTENSOR_NN_ENCODER_LAYERS_H_

#include <cstdint>
#include <memory>

#include "dtensor/nn/attention_module.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"

namespace dtensor::internal {

struct EncoderSizes {
  int64_t dim = 0, heads = 0, hidden = 0;
  double stddev = 0, attention_dropout = 0;
  bool qkv_bias = true;
  int64_t head_dim() const { return dim / heads; }
};

// query, key, value, attention (without a mask unless its options have one): [b, s, dim] -> the
// same.
class EncoderAttention : public AttentionModule {
 public:
  explicit EncoderAttention(const EncoderSizes& sizes);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const int64_t heads_;
  const double dropout_;
  LinearLayer query_, key_, value_;
};

// Gelu(dense(x)): [b, s, dim] -> [b, s, hidden].
class EncoderMlpHalf : public Module {
 public:
  EncoderMlpHalf(const EncoderSizes& sizes, GeluForm gelu);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const GeluForm gelu_;
  LinearLayer dense_;
};

// "layer": config.layers of them, one after the other, in a list, so that paths read
// encoder.layer.0.
template <typename Layer, typename Config>
class Encoder : public Module {
 public:
  explicit Encoder(const Config& config) {
    for (int64_t i = 0; i < config.layers; ++i) layer_.Append(std::make_unique<Layer>(config));
    AddChild("layer", &layer_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return layer_(x); }

 private:
  Sequential layer_;
};

}  // namespace dtensor::internal

#endif  // DTENSOR_NN_ENCODER_LAYERS_H_
