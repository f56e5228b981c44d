#include "dtensor/parallel_plans/model_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/expert_parallel.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {
namespace {

// For a model with as many key/value heads as query heads.
template <ParallelPlan (*kPlan)(std::string, bool)>
ParallelPlan WithoutGroups(std::string axis, bool sequence_parallel, const KeyValueAxes&,
                           const TransformerParts&) {
  return kPlan(std::move(axis), sequence_parallel);
}

constexpr ModelPaths TransformerPaths(const TransformerParts& parts) {
  return {TensorParallelPlan, kTransformerAttention, kTransformerUnits, kTransformerStages, parts};
}

template <typename Config>
absl::StatusOr<ModelConfig> Read(absl::string_view text) {
  return Config::FromJson(text);
}

}  // namespace

constexpr ModelPaths kGpt2Paths = {WithoutGroups<Gpt2TensorParallelPlan>, kGpt2Attention,
                                   kGpt2Units, kGpt2Stages};
constexpr ModelPaths kBertPaths = {WithoutGroups<BertTensorParallelPlan>, kBertAttention,
                                   kBertUnits, kBertStages};

ModelPaths PathsOf(const TransformerConfig& config) {
  const bool experts = config.experts > 0;
  return TransformerPaths({.experts = experts,
                           .shared_expert = experts && config.shared_hidden > 0,
                           .dense_layers = !experts || !config.dense_layers.empty(),
                           .latent_attention = config.kv_lora_rank > 0,
                           .post_norms = config.post_norms,
                           .attention_sinks = config.attention_sinks});
}

absl::Span<const PlannedModel> PlannedModels() {
  constexpr ModelPaths kDense = TransformerPaths({});
  constexpr ModelPaths kExperts = TransformerPaths({.experts = true, .dense_layers = false});
  static constexpr PlannedModel kModels[] = {
      {"bert", kBertPaths, Read<BertConfig>},
      {"gpt2", kGpt2Paths, Read<Gpt2Config>},
      {"deepseek_v3",
       TransformerPaths({.experts = true, .shared_expert = true, .latent_attention = true}),
       Read<TransformerConfig>},
      {"gemma", kDense, Read<TransformerConfig>},
      {"gemma3_text", TransformerPaths({.post_norms = true}), Read<TransformerConfig>},
      {"glm4_moe", TransformerPaths({.experts = true, .shared_expert = true}),
       Read<TransformerConfig>},
      {"gpt_oss",
       TransformerPaths({.experts = true, .dense_layers = false, .attention_sinks = true}),
       Read<TransformerConfig>},
      {"llama", kDense, Read<TransformerConfig>},
      {"mistral", kDense, Read<TransformerConfig>},
      {"mixtral", kExperts, Read<TransformerConfig>},
      {"qwen2", kDense, Read<TransformerConfig>},
      {"qwen2_moe",
       TransformerPaths({.experts = true, .shared_expert = true, .dense_layers = false}),
       Read<TransformerConfig>},
      {"qwen3", kDense, Read<TransformerConfig>},
      {"qwen3_moe", kExperts, Read<TransformerConfig>},
  };
  return kModels;
}

absl::StatusOr<PlannedModel> FindPlannedModel(absl::string_view type) {
  for (const PlannedModel& model : PlannedModels()) {
    if (model.type == type) return model;
  }
  const auto name = [](std::string* out, const PlannedModel& model) {
    absl::StrAppend(out, model.type);
  };
  return InvalidArgument({"there is no plan for a model of type \"", type,
                          "\"; there are those for ", absl::StrJoin(PlannedModels(), ", ", name)});
}

KeyValueAxes KeyValueAxesOf(absl::string_view axis) {
  return {absl::StrCat(axis, "_kv"), absl::StrCat(axis, "_rep")};
}

namespace {

absl::Status CheckStages(const ModelAxes& axes) {
  const std::string axis =
      absl::StrCat("the axis \"", axes.pipeline, "\" cuts the model into ", axes.stages, " stages");
  if (axes.blocks == 0) {
    return InvalidArgument({axis,
                            ", and its number of blocks is not known; give its "
                            "configuration (PresetOptionsFor)"});
  }
  if (axes.stages <= axes.blocks) return absl::OkStatus();
  return InvalidArgument({axis, ", and the model has ", absl::StrCat(axes.blocks),
                          " blocks; take at most as many stages"});
}

// All but the experts are sharded over the axis of experts as well, which shards those anyway.
void AddFullyShard(const ModelPaths& model, const ModelAxes& axes, ParallelPlan& plan) {
  if (axes.expert.empty()) {
    plan.Add(FullyShardPlan(axes.fully_shard, axes.level, model.units));
    return;
  }
  const std::string both = absl::StrCat(axes.fully_shard, "*", axes.expert);
  plan.Add(FullyShardPlan(both, axes.level, model.units));
  plan.Add({kTransformerExperts, ExpertParallel(axes.expert, Shard(0))});
  plan.Add({kTransformerExperts, FullyShard(axes.fully_shard, axes.level)});
}

}  // namespace

int64_t BlocksOf(const ModelConfig& config) {
  return std::visit([](const auto& of_model) { return of_model.layers; }, config);
}

absl::StatusOr<ParallelPlan> PlanModel(const ModelPaths& model, const ModelAxes& axes) {
  ParallelPlan plan;
  if (!axes.pipeline.empty()) {
    DT_RETURN_IF_ERROR(CheckStages(axes));
    plan.Add(PipelinePlan(axes.pipeline, axes.stages, axes.blocks, model.stages));
  }
  if (!axes.tensor.empty()) {
    plan.Add(
        model.tensor_parallel(axes.tensor, axes.sequence_parallel, axes.key_value, model.parts));
  }
  if (!axes.data.empty()) plan.Add({"", DataParallel(axes.data)});
  if (!axes.expert.empty()) {
    if (!model.parts.experts) {
      return InvalidArgument({"the axis \"", axes.expert, "\" shards experts, and the model has ",
                              "none; call an axis that shards the batch dp"});
    }
    if (axes.fully_shard.empty()) plan.Add(ExpertParallelPlan(axes.expert));
  }
  if (!axes.fully_shard.empty()) AddFullyShard(model, axes, plan);
  if (!axes.context.empty()) {
    plan.Add(ContextParallelPlan(axes.context, axes.context_pattern, model.attention));
  }
  return plan;
}

}  // namespace dtensor::internal
