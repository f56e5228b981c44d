#include "dtensor/parallel_plans/styles.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// No wishes for parameters, and one edge, for operand and result `index` (-1: each).
StyleWishes OneEdge(const StyleSite& site, std::optional<Placement> input,
                    std::optional<Placement> output, int index = -1) {
  StyleWishes wishes;
  wishes.edges = {site.Edge(input, output)};
  wishes.edges[0].index = index;
  return wishes;
}

bool HasRole(const Module& module, DimRole role) {
  for (const OwnParameter& own : module.own_parameters()) {
    if (std::find(own.roles.begin(), own.roles.end(), role) != own.roles.end()) return true;
  }
  return false;
}

// Reads a style that has an axis and no arguments.
template <typename S>
absl::StatusOr<S> ReadAxis(const StyleText& text) {
  DT_RETURN_IF_ERROR(ArgumentReader(text).Done());
  return S(text.axis);
}

// The index in `names` for each placement. The names are those of a module's operands, or of its
// results.
absl::StatusOr<std::vector<std::pair<int, Placement>>> Indexed(
    const EachPlacement& each, absl::string_view what, const std::vector<std::string>& names) {
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({why, "; the module has the ", what, " ", absl::StrJoin(names, ", ")});
  };
  if (each.positional.size() > names.size()) {
    return refuse(absl::StrCat("there are ", each.positional.size(), " placements"));
  }
  std::vector<std::pair<int, Placement>> indexed;
  for (size_t i = 0; i < each.positional.size(); ++i) {
    if (each.positional[i]) indexed.emplace_back(i, *each.positional[i]);
  }
  for (const auto& [name, placement] : each.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) return refuse(absl::StrCat("there is no ", name));
    const int index = static_cast<int>(found - names.begin());
    if (index < static_cast<int>(each.positional.size()) && each.positional[index]) {
      return refuse(absl::StrCat(name, " is placed by position as well"));
    }
    indexed.emplace_back(index, placement);
  }
  return indexed;
}

// An edge for each placement, on one side of the module.
absl::StatusOr<StyleWishes> EdgesAt(const StyleSite& site, const EachPlacement& each,
                                    std::optional<Placement> ModuleEdge::*side) {
  const bool is_input = side == &ModuleEdge::input;
  const auto& names = is_input ? site.module.operand_names() : site.module.result_names();
  DT_ASSIGN_OR_RETURN(const auto indexed, Indexed(each, is_input ? "operands" : "results", names));
  StyleWishes wishes;
  for (const auto& [index, placement] : indexed) {
    ModuleEdge& edge = wishes.edges.emplace_back(site.Edge(std::nullopt, std::nullopt));
    edge.*side = placement;
    edge.index = index;
  }
  return wishes;
}

std::vector<StyleArgument> ArgumentsOf(const EachPlacement& each) {
  std::vector<StyleArgument> arguments;
  for (const std::optional<Placement>& placement : each.positional) {
    arguments.emplace_back("", placement);
  }
  for (const auto& [name, placement] : each.named) arguments.emplace_back(name, placement);
  return arguments;
}

// Reads PrepareInput or PrepareOutput.
template <typename S>
absl::StatusOr<S> ReadEach(const StyleText& text) {
  EachPlacement each;
  for (const StyleArgument& argument : text.arguments) {
    const auto* placement = std::get_if<Placement>(&argument.value);
    const bool none = std::holds_alternative<std::monostate>(argument.value);
    const bool positional = argument.key.empty();
    if ((placement == nullptr && !(none && positional)) || (positional && !each.named.empty()) ||
        each.named.contains(argument.key)) {
      return InvalidArgument({text.name, " takes placements (R, S(d), or - for none) by position, ",
                              "and then by name, each once: S(1), -, memory R"});
    }
    if (!positional) each.named.emplace(argument.key, *placement);
    if (positional) {
      each.positional.push_back(none ? std::nullopt : std::optional<Placement>(*placement));
    }
  }
  return S(text.axis, std::move(each));
}

// The arguments that have a placement.
std::vector<StyleArgument> Given(
    std::initializer_list<std::pair<std::string, std::optional<Placement>>> arguments) {
  std::vector<StyleArgument> given;
  for (const auto& [key, placement] : arguments) {
    if (placement) given.emplace_back(key, placement);
  }
  return given;
}

}  // namespace

absl::StatusOr<StyleWishes> Colwise::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, Replicate(), output, 0);
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kOutput}));
  return wishes;
}
std::string Colwise::ToString() const {
  return StyleText{"Colwise", axis, Given({{"out", output}})}.ToString();
}
absl::StatusOr<Colwise> Colwise::Read(const StyleText& text) {
  ArgumentReader arguments(text);
  Colwise style(text.axis, arguments.TakePlacement("out"));
  DT_RETURN_IF_ERROR(arguments.Done());
  return style;
}

absl::StatusOr<StyleWishes> Rowwise::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, input, output, 0);
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kInput, DimRole::kRow}));
  return wishes;
}
std::string Rowwise::ToString() const {
  return StyleText{"Rowwise", axis, Given({{"out", output}, {"in", input}})}.ToString();
}
absl::StatusOr<Rowwise> Rowwise::Read(const StyleText& text) {
  return internal::ReadOutput<Rowwise>(text);
}

absl::StatusOr<StyleWishes> VocabParallel::WishesAt(const StyleSite& site) const {
  if (site.module.own_parameters().empty()) return OneEdge(site, Shard(-1), std::nullopt, 0);
  const bool table = HasRole(site.module, DimRole::kRow);
  StyleWishes wishes =
      table ? OneEdge(site, std::nullopt, output, 0) : OneEdge(site, Replicate(), std::nullopt, 0);
  DT_ASSIGN_OR_RETURN(wishes.parameters,
                      SplitAlong(site.module, {table ? DimRole::kRow : DimRole::kOutput}));
  wishes.allow_uneven_parameters = true;
  return wishes;
}
std::string VocabParallel::ToString() const {
  return StyleText{"VocabParallel", axis, Given({{"out", output}})}.ToString();
}
absl::StatusOr<VocabParallel> VocabParallel::Read(const StyleText& text) {
  return internal::ReadOutput<VocabParallel>(text);
}

absl::StatusOr<StyleWishes> SequenceParallel::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, Shard(1), Shard(1));
  wishes.parameters = ReplicateAll(site.module);
  return wishes;
}
std::string SequenceParallel::ToString() const {
  return StyleText{"SequenceParallel", axis, {}}.ToString();
}
absl::StatusOr<SequenceParallel> SequenceParallel::Read(const StyleText& text) {
  return ReadAxis<SequenceParallel>(text);
}

absl::StatusOr<StyleWishes> Replicated::WishesAt(const StyleSite& site) const {
  StyleWishes wishes = OneEdge(site, Replicate(), std::nullopt);
  wishes.parameters = ReplicateAll(site.module);
  return wishes;
}
std::string Replicated::ToString() const { return StyleText{"Replicated", axis, {}}.ToString(); }
absl::StatusOr<Replicated> Replicated::Read(const StyleText& text) {
  return ReadAxis<Replicated>(text);
}

absl::StatusOr<StyleWishes> ShardParameters::WishesAt(const StyleSite& site) const {
  StyleWishes wishes;
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kOutput}));
  return wishes;
}
std::string ShardParameters::ToString() const {
  return StyleText{"ShardParameters", axis, {}}.ToString();
}
absl::StatusOr<ShardParameters> ShardParameters::Read(const StyleText& text) {
  return ReadAxis<ShardParameters>(text);
}

absl::StatusOr<StyleWishes> DataParallel::WishesAt(const StyleSite& site) const {
  return OneEdge(site, Shard(0), std::nullopt);
}
std::string DataParallel::ToString() const {
  return StyleText{"DataParallel", axis, {}}.ToString();
}
absl::StatusOr<DataParallel> DataParallel::Read(const StyleText& text) {
  return ReadAxis<DataParallel>(text);
}

absl::StatusOr<StyleWishes> Edges::WishesAt(const StyleSite& site) const {
  return OneEdge(site, input, output);
}
std::string Edges::ToString() const {
  return StyleText{"Edges", axis, Given({{"in", input}, {"out", output}})}.ToString();
}
absl::StatusOr<Edges> Edges::Read(const StyleText& text) {
  ArgumentReader arguments(text);
  const auto input = arguments.TakePlacement("in");
  Edges style(text.axis, input, arguments.TakePlacement("out"));
  DT_RETURN_IF_ERROR(arguments.Done());
  return style;
}

absl::StatusOr<StyleWishes> PrepareInput::WishesAt(const StyleSite& site) const {
  return EdgesAt(site, inputs, &ModuleEdge::input);
}
std::string PrepareInput::ToString() const {
  return StyleText{"PrepareInput", axis, ArgumentsOf(inputs)}.ToString();
}
absl::StatusOr<PrepareInput> PrepareInput::Read(const StyleText& text) {
  return ReadEach<PrepareInput>(text);
}

absl::StatusOr<StyleWishes> PrepareOutput::WishesAt(const StyleSite& site) const {
  return EdgesAt(site, outputs, &ModuleEdge::output);
}
std::string PrepareOutput::ToString() const {
  return StyleText{"PrepareOutput", axis, ArgumentsOf(outputs)}.ToString();
}
absl::StatusOr<PrepareOutput> PrepareOutput::Read(const StyleText& text) {
  return ReadEach<PrepareOutput>(text);
}

}  // namespace dtensor
