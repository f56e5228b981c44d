// The plan for a whole model of dtensor/nn, made from what each axis of the mesh does. Programs say
// that by a name (presets.h) or by options (tensor_parallel.h); both end in PlanModel.
#ifndef DTENSOR_PARALLEL_PLANS_MODEL_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_MODEL_PLAN_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/transformer_plan.h"

namespace dtensor::internal {

// What plans have to know of a model: see transformer_plan.h.
struct ModelPaths {
  // Only a Transformer can have key/value heads on other axes than its queries, and several parts;
  // others ignore both.
  ParallelPlan (*tensor_parallel)(std::string axis, bool sequence_parallel,
                                  const KeyValueAxes& key_value, const TransformerParts& parts);
  const char* attention;
  ShardUnits units;
  StagePaths stages;
  TransformerParts parts = {};
};
extern const ModelPaths kGpt2Paths, kBertPaths;
ModelPaths PathsOf(const TransformerConfig& config);

using ModelConfig = std::variant<TransformerConfig, Gpt2Config, BertConfig>;

// The number of blocks, which the stages of a pipeline share.
int64_t BlocksOf(const ModelConfig& config);

// A type of model that there are plans for.
struct PlannedModel {
  absl::string_view type;  // one of ModelTypes() (model_config.h)
  ModelPaths paths;        // as far as the type says
  absl::StatusOr<ModelConfig> (*read_config)(absl::string_view hugging_face_config_json);
};

// One for each of ModelTypes(), in the same order.
absl::Span<const PlannedModel> PlannedModels();

// Errors: kInvalidArgument for a type that is not planned, with those that are.
absl::StatusOr<PlannedModel> FindPlannedModel(absl::string_view type);

// What the axes of a mesh do for a model. Each name is that of an axis or a group, but `pipeline`
// is that of one axis; if a name is empty, no axis does this.
struct ModelAxes {
  std::string tensor;              // shards the layers
  bool sequence_parallel = false;  // whether `tensor` also shards the sequence between them
  KeyValueAxes key_value;          // the parts of `tensor`
  std::string data;                // shards the batch
  std::string fully_shard;         // shards the batch, and parameters by `level` of ZeRO
  int64_t level = 3;
  std::string expert;   // shards the batch, and the experts of mixtures
  std::string context;  // shards the sequence by `context_pattern`
  std::string context_pattern;
  std::string pipeline;  // cuts the model into `stages`
  int64_t stages = 1;
  int64_t blocks = 0;  // of the model; 0: not known
};

// The two axes of which `axis` consists if ranks share key/value heads: `<axis>_kv`, `<axis>_rep`.
KeyValueAxes KeyValueAxesOf(absl::string_view axis);

// Errors: kInvalidArgument if `pipeline` has more ranks than there are blocks, or their number is
// not known; for an axis of experts if the model has none.
absl::StatusOr<ParallelPlan> PlanModel(const ModelPaths& model, const ModelAxes& axes);

}  // namespace dtensor::internal

#endif  // DTENSOR_PARALLEL_PLANS_MODEL_PLAN_H_
