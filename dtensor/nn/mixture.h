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
//   s = sigmoid(gate(x))            in f32 or f64, and the product, too
//   ids = k largest of s + b        b: gate.e_score_correction_bias, which has no gradient
//   weights = s[ids] scale          with `normalize`, s[ids] is divided by its sum + 1e-20 first
//   y = sum over j of weights[j] expert_{ids[j]}(x) + shared_experts(x)
//
// or, as GPT-OSS, with `clamp`,
//
//   p and weights as with softmax   of router(x) + its bias
//   y = sum over j of weights[j] (h down + its bias),  h of x gate_up + its bias: ClampedExpertMlp
//
// In the second form experts may lie in groups: then only those of a few groups are picked, the
// ones with the largest sums of their two largest s + b (as Hugging Face's DeepseekV3TopkRouter;
// groups that tie with the last of these, or have a NaN, are picked, too). No token is dropped, and
// experts need not be picked evenly: BalancingLoss, as a part of a model's loss, makes the router
// spread tokens over them, and so does BalanceByBias, which moves b. The weights of all experts are
// stacked in one parameter each; checkpoints store them by expert (Parameter::parts):
//
//   experts.gate_proj  [experts, hidden, dim]  as  experts.E.gate_proj.weight  [hidden, dim]
//   experts.up_proj    [experts, hidden, dim]  as  experts.E.up_proj.weight    [hidden, dim]
//   experts.down_proj  [experts, dim, hidden]  as  experts.E.down_proj.weight  [dim, hidden]
//   gate.weight        [experts, dim]
//   gate.e_score_correction_bias  [experts], a buffer in f32, with sigmoid scores
//   shared_expert_gate.weight  [1, dim], and those of shared_expert, where there is one; with
//                              sigmoid scores those of shared_experts alone
//
// With `clamp` checkpoints store the stacks as they are, gates and ups in turn:
//
//   experts.gate_up_proj  [experts, dim, 2 hidden],  experts.gate_up_proj_bias  [experts, 2 hidden]
//   experts.down_proj     [experts, hidden, dim],    experts.down_proj_bias     [experts, dim]
//   router.weight         [experts, dim],            router.bias                [experts]
#ifndef DTENSOR_NN_MIXTURE_H_
#define DTENSOR_NN_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/swiglu_clamp.h"

namespace DTENSOR_EXPORT dtensor {

// How a router scores experts: one of the two above.
enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

struct MixtureConfig {
  int64_t dim = 0;                             // features of a token
  int64_t hidden = 0;                          // features of each expert between its products
  int64_t experts = 0, experts_per_token = 0;  // experts_per_token <= experts
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = true;
  // Only with kSigmoid: a factor of the weights; and the experts lie in `groups` groups of equal
  // size, of which a token picks from the best `picked_groups`.
  double scale = 1;
  int64_t groups = 1, picked_groups = 1;
  // Experts of GPT-OSS. Requires: softmax scores, and no shared expert.
  std::optional<SwiGluClamp> clamp = std::nullopt;
  bool router_sums = false;                  // whether router_sums are a result, too
  double stddev = 0.02, down_stddev = 0.02;  // of first values; down_stddev: of down_proj
  // The names that an expert's weights have; not used with `clamp`.
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

// The same with ClampedExpertMlp.
class ClampedExpertsLayer : public Module {
 public:
  explicit ClampedExpertsLayer(const MixtureConfig& config);  // Requires: config.clamp

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  const SwiGluClamp clamp_;
  ParameterPtr gate_up_, gate_up_bias_, down_, down_bias_;
};

// The router's product, x [..., dim] -> logits [..., experts]. With sigmoid scores, 16-bit x and
// weights are cast to f32 first. With `clamp` it has a bias.
class RouterLayer : public LinearLayer {
 public:
  explicit RouterLayer(const MixtureConfig& config);
  const ParameterPtr& expert_bias() const { return expert_bias_; }  // b; null with softmax

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  ParameterPtr expert_bias_;
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
  const std::unique_ptr<Module> experts_;
  std::unique_ptr<Module> shared_expert_;
  std::unique_ptr<LinearLayer> shared_expert_gate_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_MIXTURE_H_
