#include "dtensor/parallel_plans/transformer_plan.h"

#include <utility>

#include "dtensor/parallel_plans/context_parallel.h"

namespace dtensor {

ParallelPlan TensorParallelPlan(std::string axis, bool sequence_parallel,
                                const KeyValueAxes& key_value) {
  const Placement residual = sequence_parallel ? Shard(1) : Replicate();
  ParallelPlan plan({
      {"model.embed_tokens", VocabParallel(axis, residual)},
      {"model.layers.*.self_attn.o_proj", Rowwise(axis, residual)},
      {"model.layers.*.mlp.{gate,up}_proj", Colwise(axis)},
      {"model.layers.*.mlp.down_proj", Rowwise(axis, residual)},
      {"lm_head", VocabParallel(axis)},
  });
  if (key_value.split.empty()) {
    plan.Add({"model.layers.*.self_attn.{q,k,v}_proj", Colwise(axis)});
  } else {
    plan.Add({"model.layers.*.self_attn.q_proj", Colwise(axis)});
    plan.Add({"model.layers.*.self_attn.{k,v}_proj", Colwise(key_value.split)});
    plan.Add({"model.layers.*.self_attn.{k,v}_proj", Replicated(key_value.replicated)});
  }
  if (sequence_parallel) {
    plan.Add({"model.layers.*.{input,post_attention}_layernorm", SequenceParallel(axis)});
    plan.Add({"model.norm", SequenceParallel(axis)});
  }
  return plan;
}

ParallelPlan ContextParallelPlan(std::string axis, std::string pattern) {
  const ContextParallel style(std::move(axis), std::move(pattern));
  return ParallelPlan({{"", style}, {"model.layers.*.self_attn", style}});
}

}  // namespace dtensor
