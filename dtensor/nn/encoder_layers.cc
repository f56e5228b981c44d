#include "dtensor/nn/encoder_layers.h"

#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {

EncoderAttention::EncoderAttention(const EncoderSizes& sizes)
    : heads_(sizes.heads),
      dropout_(sizes.attention_dropout),
      query_(sizes.dim, sizes.dim, sizes.stddev, {.out = sizes.head_dim()},
             LinearLayer::BiasIf(sizes.qkv_bias)),
      key_(sizes.dim, sizes.dim, sizes.stddev, {.out = sizes.head_dim()},
           LinearLayer::BiasIf(sizes.qkv_bias)),
      value_(sizes.dim, sizes.dim, sizes.stddev, {.out = sizes.head_dim()},
             LinearLayer::BiasIf(sizes.qkv_bias)) {
  attention_options().mask = AttentionMask::Full();
  AddChild("query", &query_);
  AddChild("key", &key_);
  AddChild("value", &value_);
}

TensorOr EncoderAttention::Forward(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(CheckHidden("EncoderAttention", x));
  const int64_t batch = x.shape()[0], sequence = x.shape()[1], dim = x.shape()[2];
  const auto heads = [&](const TensorOr& projected) {
    return Reshape(projected, {batch, sequence, heads_, dim / heads_});
  };
  const TensorOr mixed = Attention(heads(query_(x)), heads(key_(x)), heads(value_(x)),
                                   CallOptions(x.context(), dropout_));
  return Reshape(mixed, x.shape());
}

EncoderMlpHalf::EncoderMlpHalf(const EncoderSizes& sizes, GeluForm gelu)
    : gelu_(gelu), dense_(sizes.dim, sizes.hidden, sizes.stddev, {}, LinearLayer::Bias::kAdded) {
  AddChild("dense", &dense_);
}

TensorOr EncoderMlpHalf::Forward(const DistributedTensor& x) { return Gelu(dense_(x), gelu_); }

}  // namespace dtensor::internal
