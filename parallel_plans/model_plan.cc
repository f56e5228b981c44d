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
ParallelPlan WithoutGroups(std::string axis, bool sequence_parallel, const KeyValueAxes&) {
  return kPlan(std::move(axis), sequence_parallel);
}

template <bool kIsLatent>
ParallelPlan DensePlan(std::string axis, bool sequence_parallel, const KeyValueAxes& key_value) {
  return TensorParallelPlan(std::move(axis), sequence_parallel, key_value, kIsLatent);
}

template <bool kSharedExpert, bool kDenseLayers, bool kIsLatent>
ParallelPlan MixturePlan(std::string axis, bool sequence_parallel, const KeyValueAxes& key_value) {
  return MixtureTensorParallelPlan(std::move(axis), sequence_parallel, key_value,
                                   {kSharedExpert, kDenseLayers, kIsLatent});
}
template <bool kSharedExpert, bool kDenseLayers, bool kIsLatent = false>
constexpr ModelPaths kMixturePaths = {MixturePlan<kSharedExpert, kDenseLayers, kIsLatent>,
                                      kTransformerAttention, kTransformerUnits, kTransformerStages,
                                      kTransformerExperts};

// Of a Transformer with mixtures.
template <bool kIsLatent>
const ModelPaths& MixturePathsOf(const TransformerConfig& config) {
  const bool dense_layers = !config.dense_layers.empty();
  if (config.shared_hidden > 0) {
    return dense_layers ? kMixturePaths<true, true, kIsLatent>
                        : kMixturePaths<true, false, kIsLatent>;
  }
  return dense_layers ? kMixturePaths<false, true, kIsLatent>
                      : kMixturePaths<false, false, kIsLatent>;
}

template <typename Config>
absl::StatusOr<ModelConfig> Read(absl::string_view text) {
  return Config::FromJson(text);
}

}  // namespace

constexpr ModelPaths kTransformerPaths = {DensePlan<false>, kTransformerAttention,
                                          kTransformerUnits, kTransformerStages};
constexpr ModelPaths kLatentPaths = {DensePlan<true>, kTransformerAttention, kTransformerUnits,
                                     kTransformerStages};
constexpr ModelPaths kGpt2Paths = {WithoutGroups<Gpt2TensorParallelPlan>, kGpt2Attention,
                                   kGpt2Units, kGpt2Stages};
constexpr ModelPaths kBertPaths = {WithoutGroups<BertTensorParallelPlan>, kBertAttention,
                                   kBertUnits, kBertStages};

const ModelPaths& PathsOf(const TransformerConfig& config) {
  const bool is_latent = config.kv_rank > 0;
  if (config.experts == 0) return is_latent ? kLatentPaths : kTransformerPaths;
  return is_latent ? MixturePathsOf<true>(config) : MixturePathsOf<false>(config);
}

absl::Span<const PlannedModel> PlannedModels() {
  static constexpr PlannedModel kModels[] = {
      {"bert", &kBertPaths, Read<BertConfig>},
      {"gpt2", &kGpt2Paths, Read<Gpt2Config>},
      {"deepseek_v3", &kMixturePaths<true, true, true>, Read<TransformerConfig>},
      {"glm4_moe", &kMixturePaths<true, true>, Read<TransformerConfig>},
      {"llama", &kTransformerPaths, Read<TransformerConfig>},
      {"mistral", &kTransformerPaths, Read<TransformerConfig>},
      {"mixtral", &kMixturePaths<false, false>, Read<TransformerConfig>},
      {"qwen2", &kTransformerPaths, Read<TransformerConfig>},
      {"qwen2_moe", &kMixturePaths<true, false>, Read<TransformerConfig>},
      {"qwen3", &kTransformerPaths, Read<TransformerConfig>},
      {"qwen3_moe", &kMixturePaths<false, false>, Read<TransformerConfig>},
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
  plan.Add({model.experts, ExpertParallel(axes.expert, Shard(0))});
  plan.Add({model.experts, FullyShard(axes.fully_shard, axes.level)});
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
    plan.Add(model.tensor_parallel(axes.tensor, axes.sequence_parallel, axes.key_value));
  }
  if (!axes.data.empty()) plan.Add({"", DataParallel(axes.data)});
  if (!axes.expert.empty()) {
    if (model.experts == nullptr) {
      return InvalidArgument({"the axis \"", axes.expert, "\" shards experts, and the model has ",
                              "none; call an axis that shards the batch dp"});
    }
    if (axes.fully_shard.empty()) plan.Add(ExpertParallelPlan(axes.expert, model.experts));
  }
  if (!axes.fully_shard.empty()) AddFullyShard(model, axes, plan);
  if (!axes.context.empty()) {
    plan.Add(ContextParallelPlan(axes.context, axes.context_pattern, model.attention));
  }
  return plan;
}

}  // namespace dtensor::internal
