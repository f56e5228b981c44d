// Mixtures of experts: a router picks a few MLPs, the experts, for each token.
//
//   p = softmax(gate(x))            over the experts, in f32 or f64
//   weights, ids = k largest of p   with `normalize`, divided by their sum
//   y = sum over j of weights[j] expert_{ids[j]}(x)
//
// as in Shazeer et al., "Outrageously Large Neural Networks" (2017), Mixtral and Qwen3-MoE. No
// token is dropped, and experts need not be picked evenly. The weights of all experts are stacked
// in one parameter each; checkpoints store them by expert (Parameter::parts):
//
//   experts.gate_proj  [experts, hidden, dim]  as  experts.E.gate_proj.weight  [hidden, dim]
//   experts.up_proj    [experts, hidden, dim]  as  experts.E.up_proj.weight    [hidden, dim]
//   experts.down_proj  [experts, dim, hidden]  as  experts.E.down_proj.weight  [dim, hidden]
//   gate.weight        [experts, dim]
#ifndef DTENSOR_NN_MIXTURE_H_
#define DTENSOR_NN_MIXTURE_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct MixtureConfig {
  int64_t dim = 0;                             // features of a token
  int64_t hidden = 0;                          // features of each expert between its products
  int64_t experts = 0, experts_per_token = 0;  // experts_per_token <= experts
  bool normalize = true;
  double stddev = 0.02, down_stddev = 0.02;  // of first values; down_stddev: of down_proj
  // The names that an expert's weights have.
  std::string gate_name = "gate_proj", up_name = "up_proj", down_name = "down_proj";
};

// The experts: operands x [..., dim], experts (ids) and weights [..., experts_per_token]; result
// [..., dim], ExpertMlp (ops.h) of them.
class ExpertsLayer : public Module {
 public:
  explicit ExpertsLayer(const MixtureConfig& config);

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  ParameterPtr gate_, up_, down_;
};

// The router and its experts: x [..., dim] -> [..., dim]. Requires: sizes >= 1, experts_per_token
// <= experts.
class MixtureOfExperts : public Module {
 public:
  explicit MixtureOfExperts(const MixtureConfig& config);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const int64_t experts_per_token_;
  const bool normalize_;
  LinearLayer router_;
  ExpertsLayer experts_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_MIXTURE_H_
