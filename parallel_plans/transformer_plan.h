// The usual plans for the models of dtensor/nn, by the names of their modules.
#ifndef DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_

#include <cstdint>
#include <string>

#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Where the heads of keys and values go, if they are not sharded over the whole axis as the queries
// are: they are sharded over one part of it and replicated over the other.
struct KeyValueAxes {
  std::string split, replicated;  // empty: the whole axis shards them
};

// What the blocks of a Transformer consist of.
struct TransformerParts {
  bool experts = false;           // mixtures of experts, in some blocks or in all
  bool shared_expert = false;     // in each mixture
  bool dense_layers = true;       // MLPs, in some blocks or in all
  bool latent_attention = false;  // in place of grouped-query attention
  bool post_norms = false;        // norms behind attention and MLP, too
  bool attention_sinks = false;   // which are sharded as the heads
};

// For a Transformer: Megatron's tensor parallelism over `axis`. With `sequence_parallel`,
// activations between blocks are sharded along the sequence, and forward has 2 all-gathers and 2
// reduce-scatters per block; without it, 2 all-reduces. The embedding's rows and the head's classes
// are sharded, evenly or not. Logits stay sharded (CrossEntropy takes them so).
//
// Of mixtures of experts the hidden features of each expert are sharded, and so are those of shared
// experts. The router's weight is replicated; it works on each rank's tokens. With
// `sequence_parallel` forward has 3 all-gathers per mixture: what the router has picked, ids and
// weights, is gathered as well as the tokens.
//
// Of latent attention (latent_attention.h) the heads are sharded. Its products that have no heads
// are replicated and work, with `sequence_parallel`, on each rank's part of the sequence; in place
// of its input, two all-gathers bring its latent vectors. (If queries have none, q_lora_rank is 0,
// its input is gathered for them.)
ParallelPlan TensorParallelPlan(std::string axis, bool sequence_parallel,
                                const KeyValueAxes& key_value = {},
                                const TransformerParts& parts = {});

// The same for a Gpt2. Each rank takes queries, keys and values of its heads from its part of
// c_attn.
ParallelPlan Gpt2TensorParallelPlan(std::string axis, bool sequence_parallel);

// The same for a BertModel. The pooler needs only the first token: with `sequence_parallel` the
// last hidden state is gathered for it.
ParallelPlan BertTensorParallelPlan(std::string axis, bool sequence_parallel);

// Paths of the attention modules of each model.
inline constexpr char kTransformerAttention[] = "model.layers.*.self_attn";
inline constexpr char kGpt2Attention[] = "transformer.h.*.attn";
inline constexpr char kBertAttention[] = "encoder.layer.*.attention.self";

// Path of the experts of a Transformer's mixtures.
inline constexpr char kTransformerExperts[] = "model.layers.*.{mlp,block_sparse_moe}.experts";

// Shards the batch over `axis`, and within the modules at path `experts` the experts
// (expert_parallel.h). All other parameters are replicated over it. To combine it with a plan from
// above, add its lines to that plan; `axis` must be another axis.
ParallelPlan ExpertParallelPlan(const std::string& axis,
                                const std::string& experts = kTransformerExperts);

// Shards the tokens, and so all activations, along the sequence over `axis` by a pattern of
// context_pattern.h, and fixes the algorithm of the modules at path `attention` to the pattern's.
// To combine it with a plan from above, add its lines to that plan; `axis` must be another axis.
ParallelPlan ContextParallelPlan(std::string axis, std::string pattern,
                                 std::string attention = kTransformerAttention);

// Paths of the modules that are units when a model is fully sharded: each block, and what comes
// before and after the blocks.
struct ShardUnits {
  const char *blocks, *ends;
};
inline constexpr ShardUnits kTransformerUnits = {"model.layers.*", "{model.embed_tokens,lm_head}"};
inline constexpr ShardUnits kGpt2Units = {"transformer.h.*", "{transformer.wte,lm_head}"};
inline constexpr ShardUnits kBertUnits = {"encoder.layer.*", "{embeddings,pooler}"};

// Shards the batch over `axis`, and parameters by the level of ZeRO (fully_shard.h). Each of
// `units` is a unit, and so is the rest of the model. To combine it with a plan from above, add its
// lines to that plan; `axis` must be another axis.
ParallelPlan FullyShardPlan(const std::string& axis, int64_t level = 3,
                            const ShardUnits& units = kTransformerUnits);

// Paths of what a pipeline is cut into: the list of blocks, and what comes before and after them.
struct StagePaths {
  const char *before, *blocks, *after;
};
inline constexpr StagePaths kTransformerStages = {"model.embed_tokens", "model.layers",
                                                  "{model.norm,lm_head}"};
inline constexpr StagePaths kGpt2Stages = {"transformer.{wte,wpe,drop}", "transformer.h",
                                           "{transformer.ln_f,lm_head}"};
inline constexpr StagePaths kBertStages = {"embeddings", "encoder.layer", "pooler"};

// Cuts a model into the stages of `axis` (stage.h), which has `stages` ranks: equal numbers of
// blocks for each stage, or one more for the first ones; what comes before the blocks in the first
// stage, and what comes after them in the last one. Requires: 1 <= stages <= blocks.
ParallelPlan PipelinePlan(const std::string& axis, int64_t stages, int64_t blocks,
                          const StagePaths& paths = kTransformerStages);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
