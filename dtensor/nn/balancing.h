// Balancing: what makes the routers of mixtures of experts (mixture.h) spread tokens over all
// experts: a part of the loss, or a bias of sigmoid routers.
#ifndef DTENSOR_NN_BALANCING_H_
#define DTENSOR_NN_BALANCING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// How uneven routers are, a scalar in the type of the sums:
//
//   experts sum over e of (c[e] / n) (p[e] / n),   n = layers tokens
//
// for sums [layers, 2, experts], where c and p are the sums over the layers of [l, 0] and [l, 1].
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
// a loss (with a rate of 0.001 there). Call it after each step, not between forward and Backward: a
// mixture that is recomputed would pick other experts. `router_sums`: the model's second result, of
// the whole step: the sum of those of all micro-batches. Collective. Errors: kInvalidArgument if
// the model has other mixtures than the sums have rows, or none with sigmoid scores, and for a rate
// that is negative or not finite; kFailedPrecondition for a model that is not materialized;
// failures.
absl::Status BalanceByBias(Module& model, const DistributedTensor& router_sums, double rate);

}  // namespace dtensor

#endif  // DTENSOR_NN_BALANCING_H_
