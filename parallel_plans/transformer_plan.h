// The usual plans for the models of dtensor/nn, by the names of their modules.
#ifndef DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_

#include <cstdint>
#include <string>

#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Where keys and values go, if not as queries over all of the axis: their heads are split on one
// part of it, and replicated on the other.
struct KeyValueAxes {
  std::string split, replicated;  // empty: the whole axis splits them
};

// Of a Transformer: Megatron's tensor parallelism over `axis`; with `sequence_parallel` activations
// between blocks are split along the sequence: forward, a block then has 2 all-gathers and 2
// reduce-scatters, else 2 all-reduces. The embedding's rows and the head's classes are split,
// evenly or not; logits stay split (CrossEntropy takes them so).
ParallelPlan TensorParallelPlan(std::string axis, bool sequence_parallel,
                                const KeyValueAxes& key_value = {});

// The same of a Gpt2: queries, keys and values of a rank's heads come from its part of c_attn.
ParallelPlan Gpt2TensorParallelPlan(std::string axis, bool sequence_parallel);

// And of a BertModel. The pooler needs the first token alone: with `sequence_parallel` the last
// hidden state is gathered for it.
ParallelPlan BertTensorParallelPlan(std::string axis, bool sequence_parallel);

// Paths of a model's attentions.
inline constexpr char kTransformerAttention[] = "model.layers.*.self_attn";
inline constexpr char kGpt2Attention[] = "transformer.h.*.attn";
inline constexpr char kBertAttention[] = "encoder.layer.*.attention.self";

// Splits tokens, and so all activations, along the sequence over `axis` by a pattern of
// context_pattern.h, and pins `attention`, the modules of that path, to the pattern's plan. Its
// lines go with those above, on another axis.
ParallelPlan ContextParallelPlan(std::string axis, std::string pattern,
                                 std::string attention = kTransformerAttention);

// Paths of modules that are units when a model is fully sharded: of each block, and of what comes
// before and after them.
struct ShardUnits {
  const char *blocks, *ends;
};
inline constexpr ShardUnits kTransformerUnits = {"model.layers.*", "{model.embed_tokens,lm_head}"};
inline constexpr ShardUnits kGpt2Units = {"transformer.h.*", "{transformer.wte,lm_head}"};
inline constexpr ShardUnits kBertUnits = {"encoder.layer.*", "{embeddings,pooler}"};

// Splits the batch over `axis`, and shards by the level of ZeRO (fully_shard.h): each of `units` is
// one, and the rest of the model. Its lines go with those above, on another axis.
ParallelPlan FullyShardPlan(const std::string& axis, int64_t level = 3,
                            const ShardUnits& units = kTransformerUnits);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
