// Named plans for the models of dtensor/nn: what programs take as --plan.
//
//   DT_ASSIGN_OR_RETURN(const ParallelPlan plan, NamedPlan("fsdp+tp+sp", mesh));
//
// A name consists of parts joined by '+'. Each part says what one axis, or group of axes, of the
// mesh does; pp is one axis, no group. The axis has a fixed name:
//
//   part    axis  what it does
//   dp      dp    shards the batch
//   zero1   dp    and optimizer states          (FullyShard of level 1)
//   zero2   dp    and gradients                 (2)
//   fsdp    dp    and parameters                (3)
//   hsdp    dp    two axes: replicas over the outer, FullyShard over the inner
//   ep      ep    shards the batch, and the experts of mixtures (expert_parallel.h)
//   cp      cp    shards the sequence; attention is a ring, or what the pattern says
//   pp      pp    cuts the model into stages    (stage.h)
//   tp      tp    shards layers
//   sp      tp    with tp: also the sequence between them
//   none    tp    nothing
//
// At most one of dp, zero1, zero2, fsdp and hsdp may be given. An axis that the name does not
// mention still shards the batch if it is called dp, batch and experts if it is called ep, the
// sequence if it is called cp, or cuts the model if it is called pp; so "tp+sp" and "dp+tp+sp" are
// the same plan on a mesh that has both axes. Over ep, which may be a group as in "a=2,b=2;ep=a*b",
// all parameters but the experts are replicated; with zero1, zero2 and fsdp they are sharded over
// both axes together (FullyShard("dp*ep")), and the experts over dp; with hsdp over the inner axis
// of dp and ep, and the experts over that inner axis. If tp is a group of tp_kv and tp_rep, as
// PlanTensorParallel makes it for a Transformer, key and value heads are sharded over the first and
// replicated over the second: "tp_kv=4,tp_rep=2;tp=tp_kv*tp_rep" for 4 key/value heads on 8 ranks.
#ifndef DTENSOR_PARALLEL_PLANS_PRESETS_H_
#define DTENSOR_PARALLEL_PLANS_PRESETS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct PresetOptions {
  std::string context_pattern = "zigzag";  // of cp (context_pattern.h)
  bool allow_uneven = false;               // as ParallelPlanOptions
  std::string model_type = "llama";        // whose module paths are used: one of model_config.h
  // The configuration, if the model is a Transformer and it is known. Then more tp ranks than
  // key/value heads are refused if the heads can be shared, and the error gives the mesh on which
  // they are. Without it, models are taken to have the parts that the defaults of their type have:
  // a deepseek_v3 and a glm4_moe layers without experts and shared experts, a qwen2_moe only the
  // latter, a gpt_oss, a mixtral and a qwen3_moe neither. What else they have is replicated over
  // tp.
  std::optional<TransformerConfig> transformer = std::nullopt;
  // The number of blocks of a model of which `transformer` is not given, which pp needs. 0: not
  // known.
  int64_t blocks = 0;
};

// The options for the model that ModelFromJson makes of this configuration. Errors: those of
// ModelTypeOf and of the configuration's FromJson.
absl::StatusOr<PresetOptions> PresetOptionsFor(absl::string_view hugging_face_config_json);

// All names: "none", "tp", ..., "hsdp+cp+pp+tp+sp"; with those that models with experts have as
// well: "ep", ..., "hsdp+ep+cp+pp+tp+sp". Of names with the same meaning there is only one.
std::vector<std::string> PresetNames(bool with_experts = false);

// The name that mentions each of the axes dp, ep, cp, pp and tp that the mesh has, such as
// "dp+tp+sp"; "none" if it has none of them.
std::string DefaultPreset(const DeviceMesh& mesh);

// Returns the plan of this name. Errors: kInvalidArgument for a part that does not exist, with the
// nearest that does and the list; parts that exclude one another; a part whose axis the mesh lacks;
// an axis that is not dp, ep, cp, pp or tp and not in a group of such a name; ep for a model
// without experts; with pp, a group of this name, more stages than blocks, or a number of blocks
// that is not known; a context pattern that is unknown or does not fit the axes; an unknown model
// type, with the list; fewer key/value heads than tp ranks if these can share them, with the mesh
// on which they do.
absl::StatusOr<ParallelPlan> PresetPlan(absl::string_view name, const DeviceMesh& mesh,
                                        const PresetOptions& options = {});

// Whether the text is a path: it contains a '/' or a '.', which no name does.
bool IsPlanFile(absl::string_view plan);

// For a name, PresetPlan; for a path, the plan that the file contains (ParallelPlan::Parse).
// Errors: those of PresetPlan; kNotFound if the file cannot be read; kInvalidArgument for a folder,
// a device or a file of more than 16 MiB, and for text that cannot be parsed, naming the file, line
// and column.
absl::StatusOr<ParallelPlan> NamedPlan(absl::string_view plan, const DeviceMesh& mesh,
                                       const PresetOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PRESETS_H_
