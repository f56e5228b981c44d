#include "dtensor/parallel_plans/parallel_plan.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/path_pattern.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

Style Colwise(std::string axis) {
  return {"Colwise", std::move(axis), ParameterStyle::kColwise, Replicate(), std::nullopt};
}
Style Rowwise(std::string axis, Placement output) {
  return {"Rowwise", std::move(axis), ParameterStyle::kRowwise, std::nullopt, output};
}
Style SequenceParallel(std::string axis) {
  return {"SequenceParallel", std::move(axis), ParameterStyle::kReplicate, Shard(1), Shard(1)};
}
Style DataParallel(std::string axis) {
  return {"DataParallel", std::move(axis), std::nullopt, Shard(0), std::nullopt};
}
Style Edges(std::string axis, std::optional<Placement> input, std::optional<Placement> output) {
  return {"Edges", std::move(axis), std::nullopt, input, output};
}

namespace {

// What a plan would do, before it does it: everything is worked out first, so that an error changes
// nothing.
class PlanBuilder {
 public:
  PlanBuilder(const ParallelPlan& plan, Module& model, const DeviceMesh& mesh,
              const PlanOptions& options)
      : plan_(plan), mesh_(mesh), options_(options) {
    model.VisitModules([&](const std::string& path, Module& module) {
      paths_.push_back(path);
      modules_.push_back({&module, {}, {}});
    });
  }

  absl::Status MatchLines() {
    for (const ParallelPlan::Line& line : plan_.lines()) {
      auto axes = mesh_.Find(line.style.axis);
      if (!axes.ok()) return Error(line, axes.status().message());
      DT_RETURN_IF_ERROR(CheckPattern(line));
      DT_RETURN_IF_ERROR(CheckEdge(line, line.style.input));
      DT_RETURN_IF_ERROR(CheckEdge(line, line.style.output));
      bool matched = false;
      for (size_t i = 0; i < modules_.size(); ++i) {
        if (!PathMatches(line.pattern, paths_[i])) continue;
        matched = true;
        DT_RETURN_IF_ERROR(Claim(i, line, *axes));
      }
      if (!matched) {
        return Error(line, absl::StrCat("matches no module; the nearest is \"",
                                        NearestPath(line.pattern, paths_), "\""));
      }
    }
    return absl::OkStatus();
  }

  // The layout of the parameter `name` of module i, from all lines that name the module.
  absl::StatusOr<Layout> PlaceParameter(size_t i, const std::string& name,
                                        const Parameter& parameter) const {
    Layout layout = Layout::Replicated(mesh_, static_cast<int>(parameter.shape.size()));
    for (const Claimed& claimed : modules_[i].claims) {
      const ParallelPlan::Line& line = *claimed.line;
      if (!line.style.parameters) continue;
      auto placement = modules_[i].module->PlaceParameter(*line.style.parameters, name);
      if (!placement.ok())
        return Error(line, absl::StrCat("at \"", paths_[i], "\": ", placement.status().message()));
      const int dim = placement->dim() + (placement->dim() < 0 ? layout.rank() : 0);
      if (placement->is_shard() && dim >= 0 && dim < layout.rank()) {  // else: WithAxes refuses
        DT_RETURN_IF_ERROR(CheckDivides(line, absl::StrCat(paths_[i], ".", name), parameter, dim,
                                        ShardsOf(claimed.axes), ShardsOf(AxesOf(layout.dim(dim)))));
        const int64_t unit = parameter.unit(dim);
        if (unit > 1) *placement = Shard(dim, Order::Unit(unit));
      }
      auto placed = layout.WithAxes(claimed.axes, *placement);
      if (!placed.ok()) return Error(line, placed.status().message());
      layout = *std::move(placed);
    }
    return layout;
  }

  // Attention modules run by the pattern of the line that names them.
  void PinAttention(size_t i) const {
    for (const Claimed& claimed : modules_[i].claims) {
      const Style& style = claimed.line->style;
      AttentionOptions* attention = modules_[i].module->attention();
      if (!HasPattern(style) || attention == nullptr) continue;
      ContextPattern::Parse(style.pattern)->Pin(mesh_, style.axis, *attention);
    }
  }

  size_t size() const { return modules_.size(); }
  Module& module(size_t i) const { return *modules_[i].module; }
  const std::string& path(size_t i) const { return paths_[i]; }
  std::vector<ModuleEdge> EdgesOf(size_t i) const {
    std::vector<ModuleEdge> edges;
    for (const Claimed& claimed : modules_[i].claims) {
      const Style& style = claimed.line->style;
      if (HasPattern(style)) {
        const std::vector<ModuleEdge> splits = *PatternEdges(style);  // checked by MatchLines
        edges.insert(edges.end(), splits.begin(), splits.end());
      }
      if (!style.input && !style.output) continue;
      edges.push_back({mesh_, claimed.axes, style.input, style.output, options_.allow_uneven});
    }
    return edges;
  }

 private:
  struct Claimed {
    const ParallelPlan::Line* line;
    AxisList axes;
  };
  struct Entry {
    Module* module;
    std::vector<Claimed> claims;
    std::map<int, const ParallelPlan::Line*> by_axis;
  };

  static absl::Status Error(const ParallelPlan::Line& line, absl::string_view why) {
    return InvalidArgument({"plan line ", line.ToString(), ": ", why});
  }

  static absl::Status CheckEdge(const ParallelPlan::Line& line,
                                const std::optional<Placement>& edge) {
    if (!edge || edge->is_replicate()) return absl::OkStatus();
    const Order::Kind order = edge->order().kind;
    if (edge->is_shard() && order != Order::Kind::kCyclic) return absl::OkStatus();
    return Error(line, absl::StrCat("an activation cannot be placed as ", edge->ToString(),
                                    " by a plan; use R or S(d), S(d,unit(u)), S(d,block(b)), "
                                    "S(d,zigzag)"));
  }

  static bool HasPattern(const Style& style) { return style.name == "ContextParallel"; }

  absl::StatusOr<std::vector<ModuleEdge>> PatternEdges(const Style& style) const {
    DT_ASSIGN_OR_RETURN(const ContextPattern pattern, ContextPattern::Parse(style.pattern));
    return pattern.EdgesOn(mesh_, style.axis, options_.allow_uneven);
  }

  absl::Status CheckPattern(const ParallelPlan::Line& line) const {
    if (!HasPattern(line.style)) return absl::OkStatus();
    const absl::Status status = PatternEdges(line.style).status();
    return status.ok() ? status : Error(line, status.message());
  }

  absl::Status Claim(size_t i, const ParallelPlan::Line& line, const AxisList& axes) {
    Entry& entry = modules_[i];
    for (int axis : axes) {
      auto [it, fresh] = entry.by_axis.try_emplace(axis, &line);
      if (fresh) continue;
      return Error(line, absl::StrCat("module \"", paths_[i], "\" and axis \"",
                                      mesh_.axis_name(axis), "\" are set by the line ",
                                      it->second->ToString(), " already; keep one of them"));
    }
    entry.claims.push_back({&line, axes});
    return absl::OkStatus();
  }

  absl::Status CheckDivides(const ParallelPlan::Line& line, absl::string_view path,
                            const Parameter& parameter, int dim, int64_t shards,
                            int64_t shards_before) const {
    const int64_t unit = parameter.unit(dim), size = parameter.shape[dim], units = size / unit;
    const bool divides = size % unit == 0 && units % (shards * shards_before) == 0;
    if (options_.allow_uneven || divides) return absl::OkStatus();
    const std::string grouped = unit > 1 ? absl::StrCat(" (", units, " units of ", unit, ")") : "";
    const std::string before =
        shards_before > 1 ? absl::StrCat(" after ", shards_before, " shards of other lines") : "";
    return Error(
        line, absl::StrCat("dimension ", dim, " of ", path, ", ", size, grouped,
                           ", cannot be split evenly by \"", line.style.axis, "\" of size ", shards,
                           before, "; choose axis sizes that divide ", units,
                           ", or allow uneven shards"));
  }

  int64_t ShardsOf(const AxisList& axes) const {
    int64_t shards = 1;
    for (int axis : axes) shards *= mesh_.axis_size(axis);
    return shards;
  }

  const ParallelPlan& plan_;
  const DeviceMesh& mesh_;
  const PlanOptions& options_;
  std::vector<std::string> paths_;
  std::vector<Entry> modules_;
};

}  // namespace

absl::Status ParallelPlan::Apply(Module& model, Context& context, const DeviceMesh& mesh,
                                 const PlanOptions& options) const {
  PlanBuilder builder(*this, model, mesh, options);
  DT_RETURN_IF_ERROR(builder.MatchLines());
  struct Placed {
    Parameter* parameter;
    std::string path;
    Layout layout;
  };
  std::vector<Placed> placed;
  for (size_t i = 0; i < builder.size(); ++i) {
    for (auto& [name, parameter] : builder.module(i).parameters_) {
      DT_ASSIGN_OR_RETURN(Layout layout, builder.PlaceParameter(i, name, *parameter));
      // Refuses a mesh that does not fit the world before anything changes.
      DT_RETURN_IF_ERROR(context.Intern(layout, parameter->shape, parameter->dtype).status());
      const std::string& module = builder.path(i);
      const std::string path = module.empty() ? name : absl::StrCat(module, ".", name);
      if (parameter->tensor.defined()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "parameter ", path, " has memory already; apply the plan before Materialize, once"));
      }
      placed.push_back({parameter, path, std::move(layout)});
    }
  }
  for (Placed& p : placed) {
    DT_RETURN_IF_ERROR(MakeParameter(context, p.layout, p.path, options.seed, *p.parameter));
  }
  for (size_t i = 0; i < builder.size(); ++i) {
    builder.module(i).path_ = builder.path(i);
    builder.module(i).edges_ = builder.EdgesOf(i);
    builder.PinAttention(i);
  }
  return absl::OkStatus();
}

std::string Explain(Module& model) {
  std::string out;
  model.VisitModules([&](const std::string& path, Module& module) {
    std::vector<std::string> parts;
    module.VisitOwnParameters([&](const std::string& name, const Parameter& parameter) {
      parts.push_back(absl::StrCat(
          name, " ", DimsToString(parameter.shape), " as ",
          parameter.tensor.defined() ? parameter.tensor.layout().ToString() : "(no memory)"));
    });
    for (const ModuleEdge& edge : module.edges()) {
      const std::string axes = absl::StrJoin(edge.axes, ",", [&](std::string* text, int axis) {
        absl::StrAppend(text, edge.mesh.axis_name(axis));
      });
      if (edge.input) parts.push_back(absl::StrCat("in ", edge.input->ToString(), " on ", axes));
      if (edge.output) parts.push_back(absl::StrCat("out ", edge.output->ToString(), " on ", axes));
    }
    if (!parts.empty())
      absl::StrAppend(&out, path.empty() ? "(model)" : path, ": ", absl::StrJoin(parts, "; "),
                      "\n");
  });
  return out;
}

}  // namespace dtensor
