// AdamW: Adam with decoupled weight decay (Loshchilov, Hutter: arXiv:1711.05101), as
// torch.optim.AdamW but with other defaults. Step t of a parameter p with gradient g:
//
//   exp_avg    = beta1 exp_avg + (1 - beta1) g
//   exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
//   p -= lr (weight_decay p
//            + exp_avg / (1 - beta1^t) / (sqrt(exp_avg_sq / (1 - beta2^t)) + eps))
#ifndef DTENSOR_NN_OPTIM_ADAMW_H_
#define DTENSOR_NN_OPTIM_ADAMW_H_

#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  // Steps of bf16 and f16 parameters are made on f32 masters, which the optimizer keeps; the
  // parameter is the rounded master. Code that writes to such a parameter must set "master" as
  // well.
  bool master_weights = false;
};
using AdamWGroup = ParameterGroup<AdamWOptions>;

// States: "exp_avg" and "exp_avg_sq" (optimizer.h).
class AdamW : public Optimizer {
 public:
  // Errors: optimizer.h. Betas are in [0, 1), eps and weight_decay finite and >= 0.
  static absl::StatusOr<AdamW> Create(std::vector<AdamWGroup> groups);
  // One group, in which weight decay applies to parameters with two or more dimensions.
  static absl::StatusOr<AdamW> Create(std::vector<DistributedTensor> parameters,
                                      const AdamWOptions& options);

 protected:
  absl::Status Apply(const Update& update) override;

 private:
  AdamW() : Optimizer("AdamW") {}
  std::vector<AdamWOptions> options_;  // of each parameter
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_ADAMW_H_
