#include "dtensor/nn/dropout_layer.h"

#include "dtensor/ops/ops.h"

namespace dtensor {

TensorOr DropoutLayer::Forward(const DistributedTensor& x) {
  return training() && p_ != 0 ? Dropout(x, p_, x.context().NextSeed()) : TensorOr(x);
}

}  // namespace dtensor
