// DropoutLayer: noise while a model trains.
#ifndef DTENSOR_NN_DROPOUT_LAYER_H_
#define DTENSOR_NN_DROPOUT_LAYER_H_

#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Dropout(x, p, seed), with the next seed of x's Context (Context::NextSeed) at each call; x itself
// where p is 0 and while the module does not train. The mask is the same on every mesh. Set
// Context::random().seed to repeat a run. p as in Dropout: another is refused when it is called.
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
