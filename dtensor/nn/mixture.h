// Mixtures of experts: a router picks a few MLPs, the experts, for each token.
//
//   p = softmax(gate(x))            over the experts, in f32 or f64
//   weights, ids = k largest of p   with `normalize`, divided by their sum
//   y = sum over j of weights[j] expert_{ids[j]}(x)
//       + sigmoid(shared_expert_gate(x)) shared_expert(x)   with an MLP that every token passes
//
// as in Shazeer et al., "Outrageously Large Neural Networks" (2017), Mixtral, Qwen2-MoE and
// Qwen3-MoE; or, as in DeepSeek-AI, "DeepSeek-V3" (2024), equations (12) to (16),
//
//   s = sigmoid(gate(x))
//   ids = k largest of s + b        b: gate.e_score_correction_bias, which has no gradient
//   weights = s[ids] scale          with `normalize`, s[ids] is divided by its sum first
//   y = sum over j of weights[j] expert_{ids[j]}(x) + shared_experts(x)
//
// where experts may lie in groups: then those of a few groups are picked, whose two largest s + b
// have the largest sums. No token is dropped, and experts need not be picked evenly: BalancingLoss,
// as a part of a model's loss, makes the router spread tokens over them, and so does BalanceByBias,
// which moves b. The weights of all experts are stacked in one parameter each; checkpoints store
// them by expert (Parameter::parts):
//
//   experts.gate_proj  [experts, hidden, dim]  as  experts.E.gate_proj.weight  [hidden, dim]
//   experts.up_proj    [experts, hidden, dim]  as  experts.E.up_proj.weight    [hidden, dim]
//   experts.down_proj  [experts, dim, hidden]  as  experts.E.down_proj.weight  [dim, hidden]
//   gate.weight        [experts, dim]
//   gate.e_score_correction_bias  [experts], a buffer in f32, with sigmoid scores
//   shared_expert_gate.weight  [1, dim], and those of shared_expert, where there is one; with
//                              sigmoid scores those of shared_experts alone
#ifndef DTENSOR_NN_MIXTURE_H_
#define DTENSOR_NN_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// How a router scores experts: one of the two above.
enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

struct MixtureConfig {
  int64_t dim = 0;                             // features of a token
  int64_t hidden = 0;                          // features of each expert between its products
  int64_t experts = 0, experts_per_token = 0;  // experts_per_token <= experts
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = true;
  // With kSigmoid: of the weights; and of how many groups of equal sizes experts of how many are
  // picked. Groups that tie with the last of these are picked, too.
  double scale = 1;
  int64_t groups = 1, picked_groups = 1;
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

// The router's product, x [..., dim] -> logits [..., experts]. With sigmoid scores they are f32 or
// f64, of operands in that type.
class RouterLayer : public LinearLayer {
 public:
  explicit RouterLayer(const MixtureConfig& config);
  const ParameterPtr& pick_bias() const { return pick_bias_; }  // b; null with softmax scores

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  ParameterPtr pick_bias_;
};

// The router and its experts: x [..., dim] -> y [..., dim]. With config.router_sums it has a second
// result, router_sums [1, 2, experts] in the type of p: how many tokens picked each expert, and the
// sum of its probabilities p over all tokens; Partial where tokens are sharded. With sigmoid scores
// p is s divided by its sum. Requires: sizes >= 1, experts_per_token <= experts; groups that divide
// the experts and have two or more each, if there are several, and experts_per_token of them in
// the picked groups.
class MixtureOfExperts : public Module {
 public:
  // `shared_expert`: an MLP [..., dim] -> [..., dim] for all tokens; null: none.
  explicit MixtureOfExperts(const MixtureConfig& config,
                            std::unique_ptr<Module> shared_expert = nullptr);
  const RouterLayer& router() const { return router_; }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  TensorOr AddShared(TensorOr y, const DistributedTensor& x);

  const MixtureConfig config_;
  RouterLayer router_;
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

// Makes experts that fewer tokens picked than the mean more likely to be picked, and those that
// more picked less: adds `rate`, or -rate, to their element of the router's b, in each mixture of
// the model with sigmoid scores. It is the balancing of DeepSeek-V3 (2024), section 2.1.2, without
// a loss (with a rate of 0.001 there); call it after each step. `router_sums`: the model's second
// result, of the whole step: the sum of those of all micro-batches. Collective. Errors:
// kInvalidArgument if the model has other mixtures than the sums have rows, or none with sigmoid
// scores, and for a rate that is negative or not finite; failures.
absl::Status BalanceByBias(Module& model, const DistributedTensor& router_sums, double rate);

}  // namespace dtensor

#endif  // DTENSOR_NN_MIXTURE_H_
