// Mixtures of experts: a router picks a few MLPs, the experts, for each token.
//
//   p = softmax(gate(x))            over the experts, in f32 or f64
//   weights, ids = k largest of p   with `normalize`, divided by their sum
//   y = sum over j of weights[j] expert_{ids[j]}(x)
//       + sigmoid(shared_expert_gate(x)) shared_expert(x)   with an MLP that every token passes
//
// as in Shazeer et al., "Outrageously Large Neural Networks" (2017), Mixtral, Qwen2-MoE and
// Qwen3-MoE. No token is dropped, and experts need not be picked evenly: BalancingLoss, as a part
// of a model's loss, makes the router spread tokens over them. The weights of all experts are
// stacked in one parameter each; checkpoints store them by expert (Parameter::parts):
//
//   experts.gate_proj  [experts, hidden, dim]  as  experts.E.gate_proj.weight  [hidden, dim]
//   experts.up_proj    [experts, hidden, dim]  as  experts.E.up_proj.weight    [hidden, dim]
//   experts.down_proj  [experts, dim, hidden]  as  experts.E.down_proj.weight  [dim, hidden]
//   gate.weight        [experts, dim]
//   shared_expert_gate.weight  [1, dim], and those of shared_expert, where there is one
#ifndef DTENSOR_NN_MIXTURE_H_
#define DTENSOR_NN_MIXTURE_H_

#include <cstdint>
#include <memory>
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
  bool router_sums = false;                  // whether router_sums are a result, too
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

// The router and its experts: x [..., dim] -> y [..., dim]. With config.router_sums it has a second
// result, router_sums [1, 2, experts] in the type of p: how many tokens picked each expert, and the
// sum of its probabilities p over all tokens; Partial where tokens are sharded. Requires: sizes >=
// 1, experts_per_token <= experts.
class MixtureOfExperts : public Module {
 public:
  // `shared_expert`: an MLP [..., dim] -> [..., dim] for all tokens; null: none.
  explicit MixtureOfExperts(const MixtureConfig& config,
                            std::unique_ptr<Module> shared_expert = nullptr);

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  TensorOr AddShared(TensorOr y, const DistributedTensor& x);

  const MixtureConfig config_;
  LinearLayer router_;
  ExpertsLayer experts_;
  std::unique_ptr<Module> shared_expert_;
  std::unique_ptr<LinearLayer> shared_expert_gate_;
};

// How uneven routers are, a scalar in the type of the sums:
//
//   experts sum over e of (c[e] / n) (s[e] / n),   n = layers tokens
//
// for sums [layers, 2, experts], where c and s are the sums over the layers of [l, 0] and [l, 1].
// It is the loss of Fedus et al., "Switch Transformers" (2021), equations (4) to (6), as Hugging
// Face has it for several layers, and Mixtral's and Qwen's models. If all experts are picked
// equally often with equal probabilities, it is the number of picks of a token. Gradients flow
// through the probabilities alone. Programs add it to the model's loss, times a factor like 0.001
// to 0.01 (router_aux_loss_coef), and can make it for each layer alone of Slices of the sums.
//
// `tokens`: of the batch. The sums are of all ranks, so the batch that is balanced is the global
// one: all that was called at once, on whatever mesh. Errors: kInvalidArgument for another shape,
// and for tokens < 1.
TensorOr BalancingLoss(const TensorOr& router_sums, int64_t tokens);

}  // namespace dtensor

#endif  // DTENSOR_NN_MIXTURE_H_
