// Convolutions as layers. Plans place them as they place linear layers, by the roles of the
// weight's dimensions: Colwise shards output features, Rowwise input features. A style that shards
// dimension 1 of activations, as SequenceParallel and ContextParallel do, cuts images into strips
// of rows and sequences into parts, and the layer brings the halos (ops/windows.h).
#ifndef DTENSOR_NN_CONV_H_
#define DTENSOR_NN_CONV_H_

#include <cstdint>
#include <vector>

#include "dtensor/nn/module.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/ops/windows.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// y = Conv(x, weight, options) + bias; x [batch, n..., in], weight [out, in / groups, kernel...] as
// PyTorch's, bias [out], y [batch, o..., out]. (Conv1dLayer, in layers.h, is what Hugging Face
// calls so: a linear layer.)
//
// As in LinearLayer, a bias is added to the reduced sum if input features are sharded. With several
// groups the weight's second dimension has no role: then Rowwise is refused, for there is no input
// feature that all of the output needs.
class ConvLayer : public Module {
 public:
  struct Sizes {
    int64_t in = 1, out = 1;
    std::vector<int64_t> kernel;  // one number for each dimension that windows move along
  };
  // The weight begins as normal(0, stddev), the bias as 0. Requires: at least one number in
  // `kernel`, sizes of at least 1, groups that divide `in` and `out`, and options with no number,
  // one, or one for each of the kernel's.
  ConvLayer(Sizes sizes, double stddev, ConvOptions options = {}, bool has_bias = true);
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }  // null: none

 protected:
  TensorOr Forward(const DistributedTensor& x) override;
  TensorOr Finish(const DistributedTensor& y, const Spec& computed) override;

 private:
  const ConvOptions options_;
  const ParameterPtr weight_, bias_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_CONV_H_
