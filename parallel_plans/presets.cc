#include "dtensor/parallel_plans/presets.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/path_pattern.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"

namespace dtensor {
namespace {

// A preset has at most one part of each group.
struct Part {
  absl::string_view name, group;
  absl::string_view axis;  // empty: needs none
};
constexpr Part kParts[] = {
    {"dp", "dp", "dp"},   {"zero1", "dp", "dp"}, {"zero2", "dp", "dp"},
    {"fsdp", "dp", "dp"}, {"hsdp", "dp", "dp"},  {"cp", "cp", "cp"},
    {"tp", "tp", "tp"},   {"sp", "sp", "tp"},    {"none", "tp", ""},
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
  std::string data, tensor;  // the parts of these groups; empty: none
  bool context = false, sequence = false;
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
    if (part->group == "dp") preset.data = std::string(part->name);
    if (part->group == "tp") preset.tensor = std::string(part->name);
    preset.context = preset.context || part->group == "cp";
    preset.sequence = preset.sequence || part->group == "sp";
  }
  if (preset.sequence && preset.tensor != "tp") {
    return InvalidArgument({"preset \"", name, "\": sp goes with tp; write tp+sp"});
  }
  if (preset.data.empty() && mesh.Find("dp").ok()) preset.data = "dp";
  preset.context = preset.context || mesh.Find("cp").ok();
  return preset;
}

// Checks that every axis is one of dp, cp and tp, or in a group with such a name.
absl::Status CheckAxes(absl::string_view name, const DeviceMesh& mesh) {
  AxisList used;
  for (const char* group : {"dp", "cp", "tp"}) {
    const absl::StatusOr<AxisList> axes = mesh.Find(group);
    if (axes.ok()) used.insert(used.end(), axes->begin(), axes->end());
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (std::find(used.begin(), used.end(), axis) != used.end()) continue;
    return InvalidArgument({"preset \"", name, "\" has no use for the axis '", mesh.axis_name(axis),
                            "'; the axes are dp, cp and tp, or groups of these names, as ",
                            "outer=2,inner=2;cp=outer*inner"});
  }
  return absl::OkStatus();
}

// The paths of a model's modules that the parts apply to.
struct ModelPaths {
  absl::string_view type;
  ParallelPlan (*tensor_parallel)(std::string axis, bool sequence_parallel,
                                  const KeyValueAxes& key_value);
  const char* attention;
  ShardUnits units;
};

// For a model with as many key/value heads as query heads.
template <ParallelPlan (*kPlan)(std::string, bool)>
ParallelPlan WithoutGroups(std::string axis, bool sequence_parallel, const KeyValueAxes&) {
  return kPlan(std::move(axis), sequence_parallel);
}

constexpr ModelPaths OfTransformer(absl::string_view type) {
  return {type, TensorParallelPlan, kTransformerAttention, kTransformerUnits};
}

// One for each of ModelTypes().
constexpr ModelPaths kModels[] = {
    {"bert", WithoutGroups<BertTensorParallelPlan>, kBertAttention, kBertUnits},
    {"gpt2", WithoutGroups<Gpt2TensorParallelPlan>, kGpt2Attention, kGpt2Units},
    OfTransformer("llama"),
    OfTransformer("mistral"),
    OfTransformer("qwen2"),
    OfTransformer("qwen3"),
};

absl::StatusOr<ModelPaths> PathsOf(absl::string_view type) {
  for (const ModelPaths& paths : kModels) {
    if (paths.type == type) return paths;
  }
  const auto name = [](std::string* out, const ModelPaths& paths) {
    absl::StrAppend(out, paths.type);
  };
  return InvalidArgument({"PresetPlan: there is no plan for a model of type \"", type,
                          "\"; there are those for ", absl::StrJoin(kModels, ", ", name)});
}

absl::StatusOr<ParallelPlan> HybridPlan(absl::string_view name, const DeviceMesh& mesh,
                                        const ShardUnits& units) {
  DT_ASSIGN_OR_RETURN(const AxisList axes, mesh.Find("dp"));
  if (axes.size() != 2) {
    return InvalidArgument({"preset \"", name, "\": hsdp wants dp to be a group of two axes, of ",
                            "copies and of shards, as copies=2,shards=4;dp=copies*shards"});
  }
  ParallelPlan plan({{"", DataParallel(mesh.axis_name(axes[0]))}});
  plan.Add(FullyShardPlan(mesh.axis_name(axes[1]), 3, units));
  return plan;
}

absl::StatusOr<ParallelPlan> DataPlan(absl::string_view name, const std::string& part,
                                      const DeviceMesh& mesh, const ShardUnits& units) {
  if (part == "hsdp") return HybridPlan(name, mesh, units);
  if (part == "dp") return ParallelPlan({{"", DataParallel("dp")}});
  return FullyShardPlan("dp", part == "zero1" ? 1 : part == "zero2" ? 2 : 3, units);
}

KeyValueAxes KeyValueAxesOf(const DeviceMesh& mesh) {
  if (!mesh.Find("tp_kv").ok() || !mesh.Find("tp_rep").ok()) return {};
  return {"tp_kv", "tp_rep"};
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

}  // namespace

absl::StatusOr<PresetOptions> PresetOptionsFor(absl::string_view hugging_face_config_json) {
  PresetOptions options;
  DT_ASSIGN_OR_RETURN(options.model_type, ModelTypeOf(hugging_face_config_json));
  DT_ASSIGN_OR_RETURN(const ModelPaths paths, PathsOf(options.model_type));
  if (paths.tensor_parallel != TensorParallelPlan) return options;
  DT_ASSIGN_OR_RETURN(options.transformer, TransformerConfig::FromJson(hugging_face_config_json));
  return options;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const char* data : {"", "dp", "zero1", "zero2", "fsdp", "hsdp"}) {
    for (const char* context : {"", "cp"}) {
      for (const char* tensor : {"", "tp", "tp+sp"}) {
        std::vector<std::string> parts;
        for (const char* part : {data, context, tensor}) {
          if (*part != '\0') parts.emplace_back(part);
        }
        names.push_back(parts.empty() ? "none" : absl::StrJoin(parts, "+"));
      }
    }
  }
  return names;
}

std::string DefaultPreset(const DeviceMesh& mesh) {
  std::vector<std::string> parts;
  for (const char* axis : {"dp", "cp", "tp"}) {
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
  DT_ASSIGN_OR_RETURN(const ModelPaths paths, PathsOf(options.model_type));
  ParallelPlan plan;
  if (preset.tensor == "tp") {
    DT_RETURN_IF_ERROR(CheckKeyValueHeads(name, mesh, options));
    plan = paths.tensor_parallel("tp", preset.sequence, KeyValueAxesOf(mesh));
  }
  if (!preset.data.empty()) {
    DT_ASSIGN_OR_RETURN(const ParallelPlan data, DataPlan(name, preset.data, mesh, paths.units));
    plan.Add(data);
  }
  if (!preset.context) return plan;
  DT_ASSIGN_OR_RETURN(const auto pattern, ContextPattern::Parse(options.context_pattern));
  DT_RETURN_IF_ERROR(pattern.EdgesOn(mesh, "cp", options.allow_uneven).status());
  plan.Add(ContextParallelPlan("cp", options.context_pattern, paths.attention));
  return plan;
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
