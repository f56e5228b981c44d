// Sgd: stochastic gradient descent with momentum, as torch.optim.SGD. One step of a parameter p
// with gradient g:
//
//   g += weight_decay p
//   if momentum != 0:
//     momentum_buffer = g in the parameter's first step, later
//                       momentum momentum_buffer + (1 - dampening) g
//     g = nesterov ? g + momentum momentum_buffer : momentum_buffer
//   p -= lr g
#ifndef DTENSOR_NN_OPTIM_SGD_H_
#define DTENSOR_NN_OPTIM_SGD_H_

#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;        // requires momentum, and no dampening
  bool master_weights = false;  // as AdamWOptions
};
using SgdGroup = ParameterGroup<SgdOptions>;

// States: "momentum_buffer", if there is momentum (optimizer.h).
class Sgd : public Optimizer {
 public:
  // Errors: optimizer.h. All numbers must be finite and >= 0.
  static absl::StatusOr<Sgd> Create(std::vector<SgdGroup> groups);
  // One group: weight decay applies to all parameters.
  static absl::StatusOr<Sgd> Create(std::vector<DistributedTensor> parameters,
                                    const SgdOptions& options);

 protected:
  absl::Status Apply(const Update& update) override;

 private:
  Sgd() : Optimizer("Sgd") {}
  std::vector<SgdOptions> options_;  // of each parameter
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_SGD_H_
