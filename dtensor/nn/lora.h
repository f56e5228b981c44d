// LoRA: fine-tuning by low-rank adapters (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large
// Language Models"). The weight W [out, in] of a linear layer stays as it was loaded, and two small
// matrices beside it are trained, A [r, in] and B [out, r]:
//
//   y = x W^T + scale (x A^T) B^T + bias,    scale = alpha / r
//
//   DT_RETURN_IF_ERROR(AddLora(*model, {.rank = 16, .alpha = 32}));  // before the plan
//   DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {}));
//   DT_RETURN_IF_ERROR(LoadHuggingFace(*model, folder).status());    // all but A and B
//   ...                                       // AdamW of model->Parameters(): A and B alone
//   DT_RETURN_IF_ERROR(MergeLora(*model));    // or SaveAdapter (hugging_face/adapter.h)
//
// Plans need no lines for adapters. A and B are parameters of the layer, "lora_A" and "lora_B", and
// their dimensions have the roles of the weight's: Colwise shards B's rows and replicates A;
// Rowwise shards A's columns and replicates B. So an adapter adds no collective to forward: where
// the layer leaves a Partial sum, the adapter's product is Partial too, and one reduction at the
// edge is of both. In backward A's gradient is Partial under Colwise, and B's under Rowwise, until
// ReduceGradients.
#ifndef DTENSOR_NN_LORA_H_
#define DTENSOR_NN_LORA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;  // scale = alpha / sqrt(r), as in rsLoRA
  double dropout = 0;            // of x, on its way to A, in training
  // The layers: each name stands for the linear layers that have this path, or a path that ends
  // with '.' and the name. Layers of GPT-2 are "c_attn", "c_proj" and "c_fc".
  std::vector<std::string> layers = {"q_proj", "v_proj"};
};

// Gives adapters to the linear layers that the options name, and makes all other parameters of the
// model buffers, which are not trained (set Parameter::trained again, after the last such call, for
// those that are to be). A is normal with a variance of 1 / (3 in), and B is 0, so at first results
// are the model's own; Module::SkipFirstValues does not skip them. No communication. Errors, after
// which nothing has changed: kInvalidArgument for options out of range, a name for which there is
// no linear layer, naming those that there are, a layer that has an adapter, and one whose weight
// other modules share; kFailedPrecondition if a parameter has memory.
absl::Status AddLora(Module& model, const LoraOptions& options);

// Adds scale B A to the weight of each layer that has an adapter, in f32 (f64 for f64), and removes
// the adapters: the model computes what it did, but for rounding, and its parameters have the names
// that they had before AddLora. They all stay buffers, so there is nothing to train any more: save
// the model. Drop the optimizer, which keeps A and B. Weights stay in their layouts; A and B are
// gathered, as far as the weight is sharded otherwise. Collective. Errors, before anything is
// written: kInvalidArgument if there is no adapter; kFailedPrecondition for a parameter without
// memory; those of BeforeWrite. Failures, after which some layers are merged and others are not.
absl::Status MergeLora(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_NN_LORA_H_
