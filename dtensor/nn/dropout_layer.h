// DropoutLayer: dropout during training.
#ifndef DTENSOR_NN_DROPOUT_LAYER_H_
#define DTENSOR_NN_DROPOUT_LAYER_H_

#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Dropout(x, p, seed), with the next seed of x's Context (Context::NextSeed) at each call. Returns
// x itself if p is 0 or the module does not train. The mask is the same on every mesh. Set
// Context::random().seed to repeat a run. The range of p is that of Dropout; other values are
// refused when the module is called.
class DropoutLayer : public Module {
 public:
  explicit DropoutLayer(double p) : p_(p) {}

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const double p_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_DROPOUT_LAYER_H_
