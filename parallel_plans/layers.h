// The layers that models are made of. Shapes are global; activations [batch, sequence, features].
#ifndef DTENSOR_PARALLEL_PLANS_LAYERS_H_
#define DTENSOR_PARALLEL_PLANS_LAYERS_H_

#include <cstdint>

#include "dtensor/parallel_plans/module.h"

namespace dtensor {

// y = x weight^T; x [..., in], weight [out, in], y [..., out]. Colwise splits out, Rowwise splits
// in, and neither cuts a group of out_unit (in_unit) features.
class LinearLayer : public Module {
 public:
  struct Units {
    int64_t in = 1, out = 1;
  };
  LinearLayer(int64_t in, int64_t out, double stddev, Units units = {1, 1});
  absl::StatusOr<Placement> PlaceParameter(ParameterStyle style,
                                           absl::string_view name) const override;

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  Parameter weight_;
};

// Rows of weight [rows, dim] by ids [batch, sequence]. Rowwise splits the rows (results are
// Partial), Colwise dim.
class EmbeddingLayer : public Module {
 public:
  EmbeddingLayer(int64_t rows, int64_t dim, double stddev);
  absl::StatusOr<Placement> PlaceParameter(ParameterStyle style,
                                           absl::string_view name) const override;

 protected:
  TensorOr Forward(const DistributedTensor& ids) override;

 private:
  Parameter weight_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, which must be whole.
class RmsNormLayer : public Module {
 public:
  explicit RmsNormLayer(int64_t dim, double eps = 1e-5);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  Parameter weight_;
  double eps_;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_LAYERS_H_
