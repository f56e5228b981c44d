#include "dtensor/parallel_plans/transformer_plan.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/expert_parallel.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/parallel_plans/styles.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

namespace {

Placement ResidualOf(bool sequence_parallel) { return sequence_parallel ? Shard(1) : Replicate(); }

// MLPs at path `mlp`.
void AddMlps(const std::string& mlp, const std::string& axis, bool sequence_parallel,
             ParallelPlan& plan) {
  plan.Add({absl::StrCat(mlp, ".{gate,up,gate_up}_proj"), Colwise(axis)});
  plan.Add({absl::StrCat(mlp, ".down_proj"), Rowwise(axis, ResidualOf(sequence_parallel))});
}

void AddProjections(const std::string& axis, bool sequence_parallel, const KeyValueAxes& key_value,
                    bool is_latent, ParallelPlan& plan) {
  if (is_latent) {
    plan.Add({"model.layers.*.self_attn.{q,q_b,kv_b}_proj", Colwise(axis)});
    if (!sequence_parallel) return;
    plan.Add(
        {"model.layers.*.self_attn.kv_a_proj_with_mqa", Edges(axis, std::nullopt, Replicate())});
  } else if (key_value.split.empty()) {
    plan.Add({"model.layers.*.self_attn.{q,k,v,qkv}_proj", Colwise(axis)});
  } else {
    plan.Add({"model.layers.*.self_attn.q_proj", Colwise(axis)});
    plan.Add({"model.layers.*.self_attn.{k,v}_proj", Colwise(key_value.split)});
    plan.Add({"model.layers.*.self_attn.{k,v}_proj", Replicated(key_value.replicated)});
  }
}

// All but the MLPs.
ParallelPlan PlanAroundMlps(const std::string& axis, bool sequence_parallel,
                            const KeyValueAxes& key_value, const TransformerParts& parts) {
  const Placement residual = ResidualOf(sequence_parallel);
  ParallelPlan plan({
      {"model.embed_tokens", VocabParallel(axis, residual)},
      {"model.layers.*.self_attn.o_proj", Rowwise(axis, residual)},
      {"lm_head", VocabParallel(axis)},
  });
  AddProjections(axis, sequence_parallel, key_value, parts.latent_attention, plan);
  if (parts.attention_sinks) plan.Add({kTransformerAttention, ShardParameters(axis)});
  if (sequence_parallel) {
    plan.Add({"model.layers.*.{input,post_attention}_layernorm", SequenceParallel(axis)});
    if (parts.post_norms) {
      plan.Add({"model.layers.*.{pre,post}_feedforward_layernorm", SequenceParallel(axis)});
    }
    plan.Add({"model.norm", SequenceParallel(axis)});
  }
  return plan;
}

}  // namespace

ParallelPlan TensorParallelPlan(std::string axis, bool sequence_parallel,
                                const KeyValueAxes& key_value, const TransformerParts& parts) {
  ParallelPlan plan = PlanAroundMlps(axis, sequence_parallel, key_value, parts);
  if (parts.experts) {
    plan.Add({kTransformerExperts, ExpertTensorParallel(axis, ResidualOf(sequence_parallel))});
  }
  if (parts.shared_expert) {
    AddMlps("model.layers.*.{mlp,block_sparse_moe}.{shared_expert,shared_experts}", axis,
            sequence_parallel, plan);
  }
  if (parts.dense_layers) AddMlps("model.layers.*.mlp", axis, sequence_parallel, plan);
  return plan;
}

ParallelPlan Gpt2TensorParallelPlan(std::string axis, bool sequence_parallel) {
  const Placement residual = ResidualOf(sequence_parallel);
  ParallelPlan plan({
      {"transformer.wte", VocabParallel(axis, residual)},
      {"transformer.h.*.attn.c_attn", Colwise(axis)},
      {"transformer.h.*.attn.c_proj", Rowwise(axis, residual)},
      {"transformer.h.*.mlp.c_fc", Colwise(axis)},
      {"transformer.h.*.mlp.c_proj", Rowwise(axis, residual)},
      {"lm_head", VocabParallel(axis)},
  });
  if (sequence_parallel) {
    plan.Add({"transformer.{wpe,ln_f}", SequenceParallel(axis)});
    plan.Add({"transformer.h.*.ln_{1,2}", SequenceParallel(axis)});
  }
  return plan;
}

ParallelPlan BertTensorParallelPlan(std::string axis, bool sequence_parallel) {
  const Placement residual = ResidualOf(sequence_parallel);
  ParallelPlan plan({
      {"embeddings.word_embeddings", VocabParallel(axis, residual)},
      {"encoder.layer.*.attention.self.{query,key,value}", Colwise(axis)},
      {"encoder.layer.*.attention.output.dense", Rowwise(axis, residual)},
      {"encoder.layer.*.intermediate.dense", Colwise(axis)},
      {"encoder.layer.*.output.dense", Rowwise(axis, residual)},
      {"pooler.dense", Colwise(axis, Replicate())},
  });
  if (sequence_parallel) {
    plan.Add({"embeddings.{position_embeddings,token_type_embeddings,LayerNorm}",
              SequenceParallel(axis)});
    plan.Add({"encoder.layer.*.output.LayerNorm", SequenceParallel(axis)});
    plan.Add({"encoder.layer.*.attention.output.LayerNorm", SequenceParallel(axis)});
  }
  return plan;
}

ParallelPlan ExpertParallelPlan(const std::string& axis, const std::string& experts) {
  return ParallelPlan({{"", DataParallel(axis)}, {experts, ExpertParallel(axis, Shard(0))}});
}

ParallelPlan ContextParallelPlan(std::string axis, std::string pattern, std::string attention) {
  const ContextParallel style(std::move(axis), std::move(pattern));
  return ParallelPlan({{"", style}, {std::move(attention), style}});
}

ParallelPlan FullyShardPlan(const std::string& axis, int64_t level, const ShardUnits& units) {
  const FullyShard style(axis, level);
  return ParallelPlan({{units.blocks, style}, {units.ends, style}, {"", style}});
}

ParallelPlan PipelinePlan(const std::string& axis, int64_t stages, int64_t blocks,
                          const StagePaths& paths) {
  DT_REQUIRE(1 <= stages && stages <= blocks,
             "PipelinePlan: there are fewer blocks than stages; give each stage a block");
  ParallelPlan plan({{paths.before, Stage(axis, 0)}});
  int64_t block = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t end = block + blocks / stages + (stage < blocks % stages ? 1 : 0);
    std::vector<int64_t> mine(end - block);
    std::iota(mine.begin(), mine.end(), block);
    const std::string pattern = absl::StrCat(paths.blocks, ".{", absl::StrJoin(mine, ","), "}");
    plan.Add({pattern, Stage(axis, stage)});
    block = end;
  }
  plan.Add({paths.after, Stage(axis, stages - 1)});
  return plan;
}

}  // namespace dtensor
