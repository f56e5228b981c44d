// The layers that models are made of. Shapes are global; activations [batch, sequence, features].
#ifndef DTENSOR_NN_LAYERS_H_
#define DTENSOR_NN_LAYERS_H_

#include <cstdint>

#include "dtensor/nn/module.h"

namespace dtensor {

// y = x weight^T; x [..., in], weight [out, in], y [..., out]. Groups of Units::in (out) features
// are never cut. Add a bias to what the module returns: where `in` is split, y is a sum over ranks,
// which a bias inside would need whole.
class LinearLayer : public Module {
 public:
  struct Units {
    int64_t in = 1, out = 1;
  };
  LinearLayer(int64_t in, int64_t out, double stddev, Units units = {1, 1});
  // With the weight of another layer: a head tied to an embedding [out, in]. Requires: two
  // dimensions.
  explicit LinearLayer(ParameterPtr weight);
  const ParameterPtr& weight() const { return weight_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const ParameterPtr weight_;
};

// Rows of weight [rows, dim] by ids [batch, sequence]: [batch, sequence, dim].
class EmbeddingLayer : public Module {
 public:
  EmbeddingLayer(int64_t rows, int64_t dim, double stddev);
  explicit EmbeddingLayer(ParameterPtr weight);  // of another layer. Requires: two dimensions.
  const ParameterPtr& weight() const { return weight_; }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override;

 private:
  const ParameterPtr weight_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, which must be whole.
class RmsNormLayer : public Module {
 public:
  explicit RmsNormLayer(int64_t dim, double eps = 1e-5);
  const ParameterPtr& weight() const { return weight_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const ParameterPtr weight_;
  double eps_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_LAYERS_H_
