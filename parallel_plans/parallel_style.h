// ParallelStyle: what a line of a parallel plan does to each module that it names, on one axis of
// the mesh. The library's styles are in styles.h, fully_shard.h and context_parallel.h. A style of
// your own is a struct with an axis, a text, == and WishesAt, which looks at a module's facts
// (module.h) and returns what should be done with the module. It is used in a plan like any other:
//
//   // Splits the rows of tables. Leaves it to others how activations come and go.
//   struct SplitRows {
//     std::string axis;
//     absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const {
//       StyleWishes wishes;
//       DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {DimRole::kRow}));
//       return wishes;
//     }
//     std::string ToString() const { return absl::StrCat("SplitRows(\"", axis, "\")"); }
//     friend bool operator==(const SplitRows&, const SplitRows&) = default;
//   };
//
//   ParallelPlan plan({{"embed_tokens", SplitRows{"tp"}}});
//
// A style is a value: it is copied and compared. Styles are told apart by their type (As), never by
// their text.
#ifndef DTENSOR_PARALLEL_PLANS_PARALLEL_STYLE_H_
#define DTENSOR_PARALLEL_PLANS_PARALLEL_STYLE_H_

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/placement.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// What a style gets to see: a module that its line names, and where it is.
struct StyleSite {
  const Module& module;
  const DeviceMesh& mesh;
  AxisList axes;  // of the mesh: those that the style's `axis` stands for, an axis or a group
  bool allow_uneven = false;    // ParallelPlanOptions
  absl::string_view path = "";  // of the module, in the model; "" is the model itself

  // An edge on these axes.
  ModuleEdge Edge(std::optional<Placement> input, std::optional<Placement> output) const;
};

// Placements of a module's parameters on a style's axes, by parameter name: R or S(d). The plan
// cuts dimensions between units only.
using ParameterPlacements = std::map<std::string, Placement>;

// What a style wants of a module. Nothing is changed until the wishes of all lines are known and
// agree.
struct StyleWishes {
  ParameterPlacements parameters;  // parameters that are not listed are left to other lines
  // The parameters may be split unevenly, whatever the plan's options say.
  bool allow_uneven_parameters = false;
  // R, or S(d) in contiguous, unit, block or zigzag order.
  std::vector<ModuleEdge> edges;
  // Sets options of the module's attention, if it has one (Module::attention). Null: sets none.
  std::function<void(AttentionOptions&)> attention;
  // Makes the module a unit (fully_shard.h): its parameters, and those of its submodules that are
  // not in a unit of their own, are sharded over the axes between uses and gathered together.
  std::optional<ShardLevel> unit;
};

// For each parameter of the module: Shard of its first dimension that has one of the roles, or R if
// it has no such dimension. Errors: kInvalidArgument if the module has parameters but none of them
// has such a dimension, naming them and the remedy.
absl::StatusOr<ParameterPlacements> SplitAlong(const Module& module,
                                               absl::Span<const DimRole> roles);
// R for each parameter of the module.
ParameterPlacements ReplicateAll(const Module& module);

// The requirements on a type that is a style. `axis` is the name of an axis or a group of the mesh.
// ToString is what plans print and errors quote, of the form Name("axis"). An error of WishesAt is
// reported with the line and the module's path.
template <typename S>
concept IsParallelStyle = requires(const S& style, const StyleSite& site) {
  { style.axis } -> std::same_as<const std::string&>;
  { style.ToString() } -> std::same_as<std::string>;
  { style.WishesAt(site) } -> std::same_as<absl::StatusOr<StyleWishes>>;
  { style == style } -> std::convertible_to<bool>;
};

// A style of any type.
class ParallelStyle {
 public:
  template <IsParallelStyle S>
  ParallelStyle(S style)  // NOLINT(google-explicit-constructor): a line takes any style
      : style_(std::make_shared<const S>(std::move(style))), functions_(&kFunctions<S>) {}

  // Has copies but no moves, so that an object that was moved from is still a valid style.
  ParallelStyle(const ParallelStyle&) = default;
  ParallelStyle& operator=(const ParallelStyle&) = default;

  const std::string& axis() const { return functions_->axis(style_.get()); }
  std::string ToString() const { return functions_->text(style_.get()); }
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const {
    return functions_->wishes(style_.get(), site);
  }
  // The style, or null if it is of another type than S.
  template <IsParallelStyle S>
  const S* As() const {
    return functions_ == &kFunctions<S> ? static_cast<const S*>(style_.get()) : nullptr;
  }
  // Equal if both are of the same type and compare equal.
  friend bool operator==(const ParallelStyle& a, const ParallelStyle& b) {
    return a.functions_ == b.functions_ && a.functions_->equal(a.style_.get(), b.style_.get());
  }

 private:
  // The operations of one type of style. Its address identifies the type. (std::any is not used: it
  // needs RTTI, or a program that is compiled without RTTI throughout.)
  struct Functions {
    const std::string& (*axis)(const void* style);
    std::string (*text)(const void* style);
    absl::StatusOr<StyleWishes> (*wishes)(const void* style, const StyleSite& site);
    bool (*equal)(const void* style, const void* other);
  };
  template <typename S>
  static const S& Get(const void* style) {
    return *static_cast<const S*>(style);
  }
  template <typename S>
  static constexpr Functions kFunctions = {
      [](const void* style) -> const std::string& { return Get<S>(style).axis; },
      [](const void* style) { return Get<S>(style).ToString(); },
      [](const void* style, const StyleSite& site) { return Get<S>(style).WishesAt(site); },
      [](const void* style, const void* other) -> bool { return Get<S>(style) == Get<S>(other); }};

  std::shared_ptr<const void> style_;
  const Functions* functions_;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_STYLE_H_
