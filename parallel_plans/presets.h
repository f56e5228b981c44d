// Plans for the models of dtensor/nn by name: what programs take as --plan.
//
//   DT_ASSIGN_OR_RETURN(const ParallelPlan plan, NamedPlan("fsdp+tp+sp", mesh));
//
// A name joins parts by '+'. Each says what the axis, or group of axes, of a mesh that is called so
// does:
//
//   part    axis  what it does
//   dp      dp    splits the batch
//   zero1   dp    and shards optimizer states    (FullyShard of level 1)
//   zero2   dp    and gradients                  (2)
//   fsdp    dp    and parameters                 (3)
//   hsdp    dp    two axes: copies over the outer, FullyShard over the inner
//   cp      cp    splits the sequence, and attention is a ring, or what the pattern says
//   tp      tp    splits layers
//   sp      tp    with tp: and the sequence between them
//   none    tp    nothing
//
// Of dp and its like there is one at most. What a name does not mention splits the batch, if it is
// called dp, or the sequence, if it is called cp; so "tp+sp" and "dp+tp+sp" are one plan on a mesh
// that has both axes. Where tp is a group of tp_kv and tp_rep, as PlanTensorParallel makes it of a
// Transformer's, key and value heads are split by the first and copied over the second:
// "tp_kv=4,tp_rep=2;tp=tp_kv*tp_rep" for 4 of them on 8 ranks.
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
  std::string model_type = "llama";        // whose modules it names: one of model_config.h
  // Of a Transformer, where it is known: more ranks of tp than key/value heads, which can share
  // them, are refused with the mesh on which they do.
  std::optional<TransformerConfig> transformer = std::nullopt;
};

// Of the model that ModelFromJson makes of this configuration. Errors: those of ModelTypeOf, and of
// TransformerConfig::FromJson where it is one.
absl::StatusOr<PresetOptions> PresetOptionsFor(absl::string_view hugging_face_config_json);

// All names, of each meaning one: "none", "tp", ..., "hsdp+cp+tp+sp".
std::vector<std::string> PresetNames();

// The name that mentions each axis dp, cp and tp that the mesh has: "dp+tp+sp". "none": it has
// none.
std::string DefaultPreset(const DeviceMesh& mesh);

// The plan of this name. Errors: kInvalidArgument for a part that does not exist, with the nearest
// that does and the list; parts that exclude one another; a part whose axis the mesh lacks; an axis
// that is neither dp, cp or tp nor in a group of such a name; a pattern that is unknown or does not
// fit the axes; a model type that is none, with the list; fewer key/value heads than ranks of tp
// that can share them, with the mesh on which they do.
absl::StatusOr<ParallelPlan> PresetPlan(absl::string_view name, const DeviceMesh& mesh,
                                        const PresetOptions& options = {});

// Whether the text is a path: it has a '/' or a '.', which no name has.
bool IsPlanFile(absl::string_view plan);

// PresetPlan of a name; of a path, the plan that the file's text says (ParallelPlan::Parse).
// Errors: those of PresetPlan; kNotFound where the file cannot be read; kInvalidArgument for a
// folder, a device or more than 16 MiB, and for other text, naming the file, line and column.
absl::StatusOr<ParallelPlan> NamedPlan(absl::string_view plan, const DeviceMesh& mesh,
                                       const PresetOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PRESETS_H_
