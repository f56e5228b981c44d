#include "dtensor/parallel_plans/plan_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/parallel_plans/path_pattern.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {
namespace {

absl::Status Error(const ParallelPlan::Line& line, absl::string_view why) {
  return InvalidArgument({"plan line ", line.ToString(), ": ", why});
}

absl::Status CheckEdge(const std::optional<Placement>& edge) {
  if (!edge || edge->is_replicate()) return absl::OkStatus();
  const ShardOrder::Kind order = edge->order().kind;
  if (edge->is_shard() && order != ShardOrder::Kind::kCyclic) return absl::OkStatus();
  return InvalidArgument({"an activation cannot be placed as ", edge->ToString(),
                          " by a plan; use R or S(d), S(d,unit(u)), S(d,block(b)), S(d,zigzag)"});
}

absl::Status CheckParameter(const Module& module, const std::string& name,
                            const Placement& placement) {
  const std::vector<OwnParameter>& own = module.own_parameters();
  const auto found = std::find_if(own.begin(), own.end(),
                                  [&](const OwnParameter& one) { return one.name == name; });
  if (found == own.end()) {
    return InvalidArgument({"the style places a parameter '", name, "', which the module lacks"});
  }
  if (placement.is_replicate() || placement == Shard(placement.dim())) return absl::OkStatus();
  return InvalidArgument({"the style places parameter '", name, "' as ", placement.ToString(),
                          "; use R or S(d), which is cut between units"});
}

// Checks what the author of a style, or of a line of edges, may get wrong.
absl::Status CheckWishes(const Module& module, const StyleWishes& wishes) {
  for (const ModuleEdge& edge : wishes.edges) {
    DT_RETURN_IF_ERROR(CheckEdge(edge.input));
    DT_RETURN_IF_ERROR(CheckEdge(edge.output));
  }
  for (const auto& [name, placement] : wishes.parameters) {
    DT_RETURN_IF_ERROR(CheckParameter(module, name, placement));
  }
  return absl::OkStatus();
}

// The same placement, with its dimension counted from the first.
Placement FromFirst(const Placement& placement, int ndim) {
  const bool from_last = placement.is_shard() && placement.dim() < 0 && placement.dim() >= -ndim;
  return from_last ? Shard(placement.dim() + ndim) : placement;
}

// `layout` with `axes` placed as S(d), in the same way in each piece of dimension d.
absl::StatusOr<Layout> PlaceInPieces(const Layout& layout, const AxisList& axes,
                                     const Placement& placement, const Parameter& parameter) {
  const int dim = placement.dim();
  const int64_t pieces = parameter.num_pieces(dim), size = parameter.piece_size(dim);
  if (pieces == 1) return layout.WithAxes(axes, placement);
  DT_ASSIGN_OR_RETURN(const auto cut, SplitDim(layout.mesh(), layout.dim(dim), pieces, size));
  DT_ASSIGN_OR_RETURN(Layout piece, layout.WithDim(dim, cut.second));
  DT_ASSIGN_OR_RETURN(piece, piece.WithAxes(axes, placement));
  DT_ASSIGN_OR_RETURN(const DimLayout joined, JoinDims(cut.first, pieces, piece.dim(dim), size));
  return piece.WithDim(dim, joined);
}

// The number of shards that the axes make.
int64_t ShardsOf(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t shards = 1;
  for (int axis : axes) shards *= mesh.axis_size(axis);
  return shards;
}

bool Overlap(const AxisList& a, const AxisList& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

// Joins what lines say of one thing, in the order of the plan's lines and without repetitions.
// `same` tells whether two claims that share an axis agree; if they do not, `clash` makes the
// error.
template <typename Claim, typename Same, typename Clash>
absl::StatusOr<std::vector<Claim>> Join(std::vector<Claim> claims, Same same, Clash clash) {
  std::stable_sort(claims.begin(), claims.end(),
                   [](const Claim& a, const Claim& b) { return a.line < b.line; });
  std::vector<Claim> joined;
  for (Claim& claim : claims) {
    const auto earlier = std::find_if(joined.begin(), joined.end(), [&](const Claim& one) {
      return Overlap(one.axes, claim.axes);
    });
    if (earlier == joined.end()) {
      joined.push_back(std::move(claim));
    } else if (earlier->axes != claim.axes || !same(*earlier, claim)) {
      return clash(*earlier, claim);
    }
  }
  return joined;
}

}  // namespace

PlanBuilder::PlanBuilder(const ParallelPlan& plan, Module& model, const DeviceMesh& mesh,
                         const ParallelPlanOptions& options)
    : plan_(plan), mesh_(mesh), options_(options) {
  model.VisitModulePaths([&](const std::string& path, Module& module) {
    places_.push_back({path, &module, {mesh}, {}, {}});
  });
}

absl::Status PlanBuilder::MatchLines() {
  DT_RETURN_IF_ERROR(FindStages());
  for (const ParallelPlan::Line& line : plan_.lines()) DT_RETURN_IF_ERROR(MatchLine(line));
  DT_RETURN_IF_ERROR(JoinPlaces());
  DT_RETURN_IF_ERROR(CheckStages());
  for (Entry& entry : modules_) {
    for (Claimed& claimed : entry.claims) DT_RETURN_IF_ERROR(AskStyle(entry, claimed));
  }
  return FindUnits();
}

absl::Status PlanBuilder::ForEachMatch(const ParallelPlan::Line& line,
                                       absl::FunctionRef<absl::Status(Place& place)> claim) {
  bool matched = false;
  for (Place& place : places_) {
    if (!PathMatches(line.pattern, place.path)) continue;
    matched = true;
    DT_RETURN_IF_ERROR(claim(place));
  }
  if (matched) return absl::OkStatus();
  return Error(line, NoModule(line.pattern));
}

// Sets the sites of the places that lines of Stage name, and of all that is inside them.
absl::Status PlanBuilder::FindStages() {
  HashMap<std::string, Site> named;
  for (const ParallelPlan::Line& line : plan_.lines()) {
    const Stage* const stage = line.style.As<Stage>();
    if (stage == nullptr) continue;
    const absl::StatusOr<DeviceMesh> mesh = mesh_.At(stage->axis, stage->index);
    if (!mesh.ok()) return Error(line, mesh.status().message());
    DT_RETURN_IF_ERROR(ForEachMatch(line, [&](const Place& place) {
      const auto [it, fresh] = named.try_emplace(place.path, Site{*mesh, &line});
      if (fresh || it->second.mesh == *mesh) return absl::OkStatus();
      return Error(line, absl::StrCat("module \"", place.path, "\" is put by the line ",
                                      it->second.stage->ToString(), " already; keep one of them"));
    }));
  }
  if (named.empty()) return absl::OkStatus();
  for (Place& place : places_) {
    std::string at = place.path;
    while (!named.contains(at) && !at.empty()) {
      const size_t dot = at.rfind('.');
      at.resize(dot == std::string::npos ? 0 : dot);
    }
    if (const auto found = named.find(at); found != named.end()) place.site = found->second;
  }
  return absl::OkStatus();
}

// If there are stages, each parameter is in one.
absl::Status PlanBuilder::CheckStages() const {
  const auto staged = std::find_if(modules_.begin(), modules_.end(),
                                   [](const Entry& entry) { return entry.site.stage != nullptr; });
  if (staged == modules_.end()) return absl::OkStatus();
  for (const Entry& entry : modules_) {
    if (entry.site.stage != nullptr || entry.module->own_parameters().empty()) continue;
    return Error(*staged->site.stage,
                 absl::StrCat("module \"", entry.path, "\" has parameters and is in no stage, ",
                              "where others are; add a line that puts it into one"));
  }
  return absl::OkStatus();
}

absl::Status PlanBuilder::MatchLine(const ParallelPlan::Line& line) {
  if (line.style.As<Stage>() != nullptr) return absl::OkStatus();
  const auto axes = mesh_.Find(line.style.axis());
  if (!axes.ok()) return Error(line, axes.status().message());
  return ForEachMatch(line, [&](Place& place) { return Claim(place, line); });
}

absl::StatusOr<std::vector<bool>> PlanBuilder::Recomputed() const {
  HashSet<const Module*> named;
  for (const std::string& pattern : options_.recompute) {
    bool matched = false;
    for (const Place& place : places_) {
      if (!PathMatches(pattern, place.path)) continue;
      matched = true;
      named.insert(place.module);
    }
    if (matched) continue;
    return InvalidArgument({"recompute \"", pattern, "\": ", NoModule(pattern)});
  }
  std::vector<bool> recomputed;
  for (const Entry& entry : modules_) recomputed.push_back(named.contains(entry.module));
  return recomputed;
}

absl::Status PlanBuilder::Claim(Place& place, const ParallelPlan::Line& line) const {
  const DeviceMesh& mesh = place.site.mesh;
  const absl::StatusOr<AxisList> axes = mesh.Find(line.style.axis());
  if (!axes.ok()) {
    return Error(line, absl::StrCat("module \"", place.path, "\" is in a stage of the line ",
                                    place.site.stage->ToString(), ": ", axes.status().message()));
  }
  for (int axis : *axes) {
    auto [it, fresh] = place.by_axis.try_emplace(axis, &line);
    if (fresh) continue;
    return Error(line, absl::StrCat("module \"", place.path, "\" and axis \"", mesh.axis_name(axis),
                                    "\" are set by the line ", it->second->ToString(),
                                    " already; keep one of them"));
  }
  place.claims.push_back({&line, *axes, place.path, {}});
  return absl::OkStatus();
}

absl::Status PlanBuilder::JoinPlaces() {
  HashMap<const Module*, size_t> index;
  for (const Place& place : places_) {
    const auto [it, fresh] = index.try_emplace(place.module, modules_.size());
    if (fresh) modules_.push_back({place.module, place.path, place.site, {}});
    const Entry& known = modules_[it->second];
    if (known.site.mesh != place.site.mesh) {
      const ParallelPlan::Line* const line = place.site.stage;
      return Error(line == nullptr ? *known.site.stage : *line,
                   absl::StrCat("module \"", place.path, "\" is \"", known.path,
                                "\" as well, which is in another stage, or in none; put both ",
                                "into one, or give the model two modules"));
    }
    std::vector<Claimed>& claims = modules_[it->second].claims;
    claims.insert(claims.end(), place.claims.begin(), place.claims.end());
  }
  const auto same = [](const Claimed& a, const Claimed& b) {
    return a.line->style == b.line->style;
  };
  const auto clash = [](const Claimed& earlier, const Claimed& claim) {
    return Error(*claim.line,
                 absl::StrCat("module \"", claim.path, "\" is \"", earlier.path,
                              "\" as well, which the line ", earlier.line->ToString(),
                              " sets otherwise; give both one style, or the model two modules"));
  };
  for (Entry& entry : modules_) {
    DT_ASSIGN_OR_RETURN(entry.claims, Join(std::move(entry.claims), same, clash));
  }
  return absl::OkStatus();
}

absl::Status PlanBuilder::AskStyle(const Entry& entry, Claimed& claimed) const {
  const Module& module = *entry.module;
  const ParallelStyle& style = claimed.line->style;
  absl::StatusOr<StyleWishes> wishes =
      style.WishesAt({module, entry.site.mesh, claimed.axes, options_.allow_uneven, claimed.path});
  const absl::Status status = wishes.ok() ? CheckWishes(module, *wishes) : wishes.status();
  if (!status.ok()) {
    return Error(*claimed.line, absl::StrCat("at \"", claimed.path, "\": ", status.message()));
  }
  claimed.wishes = *std::move(wishes);
  return absl::OkStatus();
}

absl::Status PlanBuilder::FindUnits() {
  for (size_t i = 0; i < modules_.size(); ++i) {
    const Unit* earlier = nullptr;
    for (const Claimed& claimed : modules_[i].claims) {
      if (!claimed.wishes.unit) continue;
      if (earlier != nullptr) {
        return Error(*claimed.line,
                     absl::StrCat("module \"", claimed.path, "\" is a unit of the line ",
                                  earlier->line->ToString(),
                                  " already; shard over one axis, or a group of both"));
      }
      units_.push_back({i, claimed.line, *claimed.wishes.unit});
      earlier = &units_.back();
    }
  }
  return absl::OkStatus();
}

int PlanBuilder::UnitOf(const ParameterUses& used) const {
  const std::string& user = modules_[used.uses[0].module].path;
  int innermost = -1;
  size_t length = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    const std::string& path = modules_[units_[u].module].path;
    const bool has = path.empty() || user == path || absl::StartsWith(user, path + ".");
    if (!has || path.size() < length) continue;
    innermost = static_cast<int>(u);  // if two have one path, the later one is inside the other
    length = path.size();
  }
  return innermost;
}

absl::StatusOr<Layout> PlanBuilder::PlaceBetweenUses(const ParameterUses& used, int unit,
                                                     const Layout& layout) const {
  if (unit < 0) return layout;
  absl::StatusOr<Layout> rest;
  if (auto axes = layout.mesh().Find(units_[unit].line->style.axis()); axes.ok()) {
    rest = ShardBetweenUses(layout, used.parameter->shape, *axes);
  } else {
    rest = axes.status();
  }
  if (rest.ok()) return rest;
  return Error(*units_[unit].line,
               absl::StrCat("parameter ", used.path, ": ", rest.status().message()));
}

std::optional<DeviceMesh> PlanBuilder::StageMeshOf(size_t i) const {
  const Site& site = modules_[i].site;
  return site.stage == nullptr ? std::nullopt : std::optional<DeviceMesh>(site.mesh);
}

std::vector<ModuleEdge> PlanBuilder::EdgesOf(size_t i) const {
  std::vector<ModuleEdge> edges;
  for (const Claimed& claimed : modules_[i].claims) {
    const std::vector<ModuleEdge>& wanted = claimed.wishes.edges;
    edges.insert(edges.end(), wanted.begin(), wanted.end());
  }
  return edges;
}

void PlanBuilder::SetAttention(size_t i) const {
  AttentionOptions* attention = modules_[i].module->attention();
  if (attention == nullptr) return;
  for (const Claimed& claimed : modules_[i].claims) {
    if (claimed.wishes.attention) claimed.wishes.attention(*attention);
  }
}

std::vector<PlanBuilder::ParameterUses> PlanBuilder::Parameters() const {
  std::vector<ParameterUses> all;
  HashMap<const Parameter*, size_t> index;
  for (size_t i = 0; i < modules_.size(); ++i) {
    for (const OwnParameter& own : modules_[i].module->own_parameters()) {
      const auto [it, fresh] = index.try_emplace(own.parameter.get(), all.size());
      if (fresh) all.push_back({own.parameter.get(), JoinPath(modules_[i].path, own.name), {}});
      all[it->second].uses.push_back({i, own.name});
    }
  }
  // The first use has the parameter's memory. It is in the earliest stage, so that copies go the
  // way that activations go, and their gradients the other way.
  const auto stage_of = [&](const ParameterUses::Use& use) {
    const ParallelPlan::Line* const line = modules_[use.module].site.stage;
    return line == nullptr ? 0 : line->style.As<Stage>()->index;
  };
  for (ParameterUses& used : all) {
    std::stable_sort(used.uses.begin(), used.uses.end(),
                     [&](const auto& a, const auto& b) { return stage_of(a) < stage_of(b); });
  }
  return all;
}

absl::StatusOr<std::vector<Layout>> PlanBuilder::PlaceParameter(const ParameterUses& used) const {
  std::vector<Layout> layouts;
  for (const ParameterUses::Use& use : used.uses) {
    const DeviceMesh& mesh = modules_[use.module].site.mesh;
    const auto is_there = [&](const Layout& layout) { return layout.mesh() == mesh; };
    if (std::any_of(layouts.begin(), layouts.end(), is_there)) continue;
    DT_ASSIGN_OR_RETURN(const std::vector<Wish> wishes, WishesFor(used, mesh));
    Layout layout = Layout::Replicated(mesh, static_cast<int>(used.parameter->shape.size()));
    for (const Wish& wish : wishes) {
      DT_ASSIGN_OR_RETURN(layout, Grant(wish, *used.parameter, layout));
    }
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

absl::StatusOr<Layout> PlanBuilder::Grant(const Wish& wish, const Parameter& parameter,
                                          const Layout& layout) const {
  Placement placement = wish.placement;
  const int dim = placement.dim();
  const bool splits = placement.is_shard() && dim >= 0 && dim < layout.ndim();
  if (splits) {
    DT_RETURN_IF_ERROR(CheckDivides(wish, parameter, dim, layout));
    const DeviceMesh& mesh = layout.mesh();
    const int64_t shards = ShardsOf(mesh, wish.axes) * ShardsOf(mesh, AxesOf(layout.dim(dim)));
    const int64_t unit = parameter.unit(dim, shards);
    if (unit > 1) placement = Shard(dim, ShardOrder::Unit(unit));
  }
  auto placed = splits ? PlaceInPieces(layout, wish.axes, placement, parameter)
                       : layout.WithAxes(wish.axes, placement);  // refuses other dimensions
  if (!placed.ok()) return Error(*wish.line, placed.status().message());
  return placed;
}

absl::StatusOr<std::vector<PlanBuilder::Wish>> PlanBuilder::WishesFor(
    const ParameterUses& used, const DeviceMesh& mesh) const {
  const int ndim = static_cast<int>(used.parameter->shape.size());
  std::vector<Wish> wishes;
  for (const ParameterUses::Use& use : used.uses) {
    if (modules_[use.module].site.mesh != mesh) continue;
    for (const Claimed& claimed : modules_[use.module].claims) {
      const auto wanted = claimed.wishes.parameters.find(use.name);
      if (wanted == claimed.wishes.parameters.end()) continue;
      wishes.push_back({claimed.line, claimed.axes, JoinPath(claimed.path, use.name),
                        FromFirst(wanted->second, ndim),
                        options_.allow_uneven || claimed.wishes.allow_uneven_parameters});
    }
  }
  const auto same = [](const Wish& a, const Wish& b) { return a.placement == b.placement; };
  const auto clash = [](const Wish& earlier, const Wish& wish) {
    return Error(
        *wish.line,
        absl::StrCat("parameter ", wish.path, " is ", earlier.path, " as well, and would rest as ",
                     wish.placement.ToString(), " where the line ", earlier.line->ToString(),
                     " makes it ", earlier.placement.ToString(),
                     "; choose styles that agree, or give each module a parameter of its own"));
  };
  return Join(std::move(wishes), same, clash);
}

absl::Status PlanBuilder::CheckDivides(const Wish& wish, const Parameter& parameter, int dim,
                                       const Layout& granted) {
  const int64_t shards = ShardsOf(granted.mesh(), wish.axes);
  const int64_t shards_before = ShardsOf(granted.mesh(), AxesOf(granted.dim(dim)));
  const int64_t unit = parameter.unit(dim, shards * shards_before);
  const int64_t size = parameter.piece_size(dim), units = size / unit;
  const bool divides = size % unit == 0 && units % (shards * shards_before) == 0;
  if (wish.allow_uneven || divides) return absl::OkStatus();
  const int64_t pieces = parameter.num_pieces(dim);
  const std::string of = pieces > 1 ? absl::StrCat("each of ", pieces, " pieces of ") : "";
  const std::string grouped = unit > 1 ? absl::StrCat(" (", units, " units of ", unit, ")") : "";
  const std::string before =
      shards_before > 1 ? absl::StrCat(" after ", shards_before, " shards of other lines") : "";
  return Error(
      *wish.line,
      absl::StrCat(of, "dimension ", dim, " of ", wish.path, ", ", size, grouped,
                   ", cannot be split evenly by \"", wish.line->style.axis(), "\" of size ", shards,
                   before, "; choose axis sizes that divide ", units, ", or allow uneven shards"));
}

std::string PlanBuilder::NoModule(absl::string_view pattern) const {
  if (!IsSoundPattern(pattern)) return "matches nothing: a '{' is not closed before the next one";
  std::vector<std::string> paths;
  for (const Place& place : places_) paths.push_back(place.path);
  const std::string nearest = NearestPath(pattern, paths);
  return absl::StrCat("matches no module; the nearest is \"", nearest, "\"",
                      nearest.empty() ? ", the model itself" : "");
}

}  // namespace dtensor::internal
