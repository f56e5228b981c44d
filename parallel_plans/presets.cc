#include "dtensor/parallel_plans/presets.h"

#include <algorithm>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/model_plan.h"
#include "dtensor/parallel_plans/path_pattern.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"

namespace dtensor {
namespace {

// A preset has at most one part of each group.
struct Part {
  absl::string_view name, group;
  absl::string_view axis;  // empty: needs none
  int64_t level = 0;       // of ZeRO; 0: shards no parameters
};
constexpr Part kParts[] = {
    {"dp", "dp", "dp"},      {"zero1", "dp", "dp", 1}, {"zero2", "dp", "dp", 2},
    {"fsdp", "dp", "dp", 3}, {"hsdp", "dp", "dp", 3},  {"ep", "ep", "ep"},
    {"cp", "cp", "cp"},      {"pp", "pp", "pp"},       {"tp", "tp", "tp"},
    {"sp", "sp", "tp"},      {"none", "tp", ""},
};

const Part* FindPart(absl::string_view name) {
  const auto found = std::find_if(std::begin(kParts), std::end(kParts),
                                  [&](const Part& part) { return part.name == name; });
  return found == std::end(kParts) ? nullptr : found;
}

absl::Status NoSuchPart(absl::string_view preset, absl::string_view part) {
  std::vector<std::string> names;
  for (const Part& one : kParts) names.emplace_back(one.name);
  return InvalidArgument({"preset \"", preset, "\": there is no \"", part, "\"; did you mean ",
                          NearestPath(part, names), "? A preset joins some of ",
                          absl::StrJoin(names, ", "),
                          " by +, as fsdp+tp+sp does; a file of lines has a / or a . in its name"});
}

// The parts of a preset's name.
struct Preset {
  const Part *data = nullptr, *tensor = nullptr;  // the parts of these groups; null: none
  bool experts = false, context = false, pipeline = false, sequence = false;
  bool shards_layers() const { return tensor != nullptr && tensor->name == "tp"; }
};

absl::StatusOr<Preset> ReadName(absl::string_view name, const DeviceMesh& mesh) {
  Preset preset;
  std::vector<const Part*> parts;
  for (const absl::string_view text : absl::StrSplit(name, '+')) {
    const Part* const part = FindPart(text);
    if (part == nullptr) return NoSuchPart(name, text);
    for (const Part* other : parts) {
      if (other->group != part->group) continue;
      return InvalidArgument({"preset \"", name, "\": ", other->name, " and ", part->name,
                              " exclude one another; keep one of them"});
    }
    if (!part->axis.empty() && !mesh.Find(part->axis).ok()) {
      return InvalidArgument({"preset \"", name, "\": ", part->name, " wants an axis ", part->axis,
                              ", and ", mesh.ToString(), " has none; add one to the mesh, or ",
                              "leave ", part->name, " out"});
    }
    parts.push_back(part);
    if (part->group == "dp") preset.data = part;
    if (part->group == "tp") preset.tensor = part;
    preset.experts = preset.experts || part->group == "ep";
    preset.context = preset.context || part->group == "cp";
    preset.pipeline = preset.pipeline || part->group == "pp";
    preset.sequence = preset.sequence || part->group == "sp";
  }
  if (preset.sequence && !preset.shards_layers()) {
    return InvalidArgument({"preset \"", name, "\": sp goes with tp; write tp+sp"});
  }
  if (preset.data == nullptr && mesh.Find("dp").ok()) preset.data = FindPart("dp");
  preset.experts = preset.experts || mesh.Find("ep").ok();
  preset.context = preset.context || mesh.Find("cp").ok();
  preset.pipeline = preset.pipeline || mesh.Find("pp").ok();
  return preset;
}

// Checks that every axis is one of dp, ep, cp, pp and tp, or in a group with such a name.
absl::Status CheckAxes(absl::string_view name, const DeviceMesh& mesh) {
  AxisList used;
  for (const char* group : {"dp", "ep", "cp", "pp", "tp"}) {
    const absl::StatusOr<AxisList> axes = mesh.Find(group);
    if (axes.ok()) used.insert(used.end(), axes->begin(), axes->end());
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (std::find(used.begin(), used.end(), axis) != used.end()) continue;
    return InvalidArgument({"preset \"", name, "\" has no use for the axis '", mesh.axis_name(axis),
                            "'; the axes are dp, ep, cp, pp and tp, or groups of these names, as ",
                            "outer=2,inner=2;cp=outer*inner"});
  }
  return absl::OkStatus();
}

// Sets the axes that shard the batch.
absl::Status SetDataAxes(absl::string_view name, const Part& part, const DeviceMesh& mesh,
                         internal::ModelAxes& axes) {
  axes.level = part.level;
  if (part.name != "hsdp") {
    (part.level == 0 ? axes.data : axes.fully_shard) = "dp";
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const AxisList group, mesh.Find("dp"));
  if (group.size() != 2) {
    return InvalidArgument({"preset \"", name, "\": hsdp wants dp to be a group of two axes, of ",
                            "copies and of shards, as copies=2,shards=4;dp=copies*shards"});
  }
  axes.data = mesh.axis_name(group[0]);
  axes.fully_shard = mesh.axis_name(group[1]);
  return absl::OkStatus();
}

// The parts of tp, if the mesh has them.
KeyValueAxes KeyValueAxesOn(const DeviceMesh& mesh) {
  KeyValueAxes parts = internal::KeyValueAxesOf("tp");
  if (!mesh.Find(parts.split).ok() || !mesh.Find(parts.replicated).ok()) return {};
  return parts;
}

// Refuses a mesh on which ranks of tp would have to share key/value heads, unless the mesh says so.
// Cases without this remedy are left to ParallelPlan::Apply.
absl::Status CheckKeyValueHeads(absl::string_view name, const DeviceMesh& mesh,
                                const PresetOptions& options) {
  if (!options.transformer || options.allow_uneven) return absl::OkStatus();
  const absl::StatusOr<TensorParallelism> planned = PlanTensorParallel(*options.transformer, mesh);
  if (!planned.ok() || planned->mesh == mesh) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const int axis, mesh.AxisIndex("tp"));
  const int64_t ranks = mesh.axis_size(axis), heads = options.transformer->kv_heads;
  if (options.transformer->heads % ranks != 0) return absl::OkStatus();
  return InvalidArgument({"preset \"", name, "\": ", absl::StrCat(heads),
                          " key/value heads cannot be split over the ", absl::StrCat(ranks),
                          " ranks of \"tp\", which can share them: take the mesh ",
                          planned->mesh.ToString(), ", or a tp that divides ", absl::StrCat(heads),
                          ", or allow uneven shards"});
}

absl::Status SetStages(const DeviceMesh& mesh, const PresetOptions& options,
                       internal::ModelAxes& axes) {
  DT_ASSIGN_OR_RETURN(const int axis, mesh.AxisIndex("pp"));
  axes.pipeline = "pp";
  axes.stages = mesh.axis_size(axis);
  axes.blocks = options.transformer ? internal::BlocksOf(*options.transformer) : options.blocks;
  return absl::OkStatus();
}

absl::StatusOr<internal::ModelAxes> AxesOf(absl::string_view name, const Preset& preset,
                                           const DeviceMesh& mesh, const PresetOptions& options) {
  internal::ModelAxes axes;
  if (preset.shards_layers()) {
    DT_RETURN_IF_ERROR(CheckKeyValueHeads(name, mesh, options));
    axes.tensor = "tp";
    axes.sequence_parallel = preset.sequence;
    axes.key_value = KeyValueAxesOn(mesh);
  }
  if (preset.data != nullptr) DT_RETURN_IF_ERROR(SetDataAxes(name, *preset.data, mesh, axes));
  if (preset.experts) axes.expert = "ep";
  if (preset.pipeline) DT_RETURN_IF_ERROR(SetStages(mesh, options, axes));
  if (!preset.context) return axes;
  DT_ASSIGN_OR_RETURN(const auto pattern, ContextPattern::Parse(options.context_pattern));
  DT_RETURN_IF_ERROR(pattern.EdgesOn(mesh, "cp", options.allow_uneven).status());
  axes.context = "cp";
  axes.context_pattern = options.context_pattern;
  return axes;
}

}  // namespace

absl::StatusOr<PresetOptions> PresetOptionsFor(absl::string_view hugging_face_config_json) {
  PresetOptions options;
  DT_ASSIGN_OR_RETURN(options.model_type, ModelTypeOf(hugging_face_config_json));
  DT_ASSIGN_OR_RETURN(const auto model, internal::FindPlannedModel(options.model_type));
  DT_ASSIGN_OR_RETURN(const auto config, model.read_config(hugging_face_config_json));
  const auto* const transformer = std::get_if<TransformerConfig>(&config);
  if (transformer != nullptr) options.transformer = *transformer;
  options.blocks = internal::BlocksOf(config);
  return options;
}

std::vector<std::string> PresetNames(bool with_experts) {
  std::vector<std::string> names = {""};
  const auto cross = [&](std::initializer_list<const char*> parts) {
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const char* part : parts) {
        const bool joins = !name.empty() && *part != '\0';
        longer.push_back(absl::StrCat(name, joins ? "+" : "", part));
      }
    }
    names = std::move(longer);
  };
  cross({"", "dp", "zero1", "zero2", "fsdp", "hsdp"});
  if (with_experts) cross({"", "ep"});
  cross({"", "cp", "pp", "cp+pp"});
  cross({"", "tp", "tp+sp"});
  names[0] = "none";
  return names;
}

std::string DefaultPreset(const DeviceMesh& mesh) {
  std::vector<std::string> parts;
  for (const char* axis : {"dp", "ep", "cp", "pp", "tp"}) {
    if (mesh.Find(axis).ok()) parts.emplace_back(axis);
  }
  if (parts.empty()) return "none";
  if (parts.back() == "tp") parts.emplace_back("sp");
  return absl::StrJoin(parts, "+");
}

absl::StatusOr<ParallelPlan> PresetPlan(absl::string_view name, const DeviceMesh& mesh,
                                        const PresetOptions& options) {
  DT_ASSIGN_OR_RETURN(const Preset preset, ReadName(name, mesh));
  DT_RETURN_IF_ERROR(CheckAxes(name, mesh));
  DT_ASSIGN_OR_RETURN(const auto model, internal::FindPlannedModel(options.model_type));
  DT_ASSIGN_OR_RETURN(const auto axes, AxesOf(name, preset, mesh, options));
  const internal::ModelPaths paths =
      options.transformer ? internal::PathsOf(*options.transformer) : model.paths;
  absl::StatusOr<ParallelPlan> plan = internal::PlanModel(paths, axes);
  if (plan.ok()) return plan;
  return InvalidArgument({"preset \"", name, "\": ", plan.status().message()});
}

bool IsPlanFile(absl::string_view plan) {
  return absl::StrContains(plan, '/') || absl::StrContains(plan, '.');
}

absl::StatusOr<ParallelPlan> NamedPlan(absl::string_view plan, const DeviceMesh& mesh,
                                       const PresetOptions& options) {
  if (!IsPlanFile(plan)) return PresetPlan(plan, mesh, options);
  constexpr int64_t kMost = 1 << 24;
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(std::string(plan), kMost));
  absl::StatusOr<ParallelPlan> parsed = ParallelPlan::Parse(text);
  if (parsed.ok()) return parsed;
  return InvalidArgument({plan, ": ", parsed.status().message()});
}

}  // namespace dtensor
