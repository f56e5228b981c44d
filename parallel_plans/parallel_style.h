// ParallelStyle: what a line of a parallel plan does to each module that it names, on one axis of
// the mesh. The library's are in styles.h and context_parallel.h. One of your own is a struct with
// an axis, a text, == and WishesAt, which looks at a module's facts (module.h) and says what is to
// become of it. It goes into a plan like any other:
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
// A style is a value: copied, compared, told apart by its type (As), never by its text.
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

// Of what a style is asked: a module that its line names, and where.
struct StyleSite {
  const Module& module;
  const DeviceMesh& mesh;
  AxisList axes;  // of the mesh: those that the style's `axis` stands for, an axis or a group
  bool allow_uneven = false;    // ParallelPlanOptions
  absl::string_view path = "";  // of the module, in the model; "" is the model itself

  // An edge on these axes.
  ModuleEdge Edge(std::optional<Placement> input, std::optional<Placement> output) const;
};

// Where parameters of one module go on a style's axes, by their names: R or S(d), which the plan
// cuts between units.
using ParameterPlacements = std::map<std::string, Placement>;

// What a style wants of a module. Nothing changes before all lines' wishes are known and agree.
struct StyleWishes {
  ParameterPlacements parameters;  // those that are not here are left to other lines
  // These may be split unevenly, whatever the plan's options say.
  bool allow_uneven_parameters = false;
  // R, or S(d) in contiguous, unit, block or zigzag order.
  std::vector<ModuleEdge> edges;
  // Sets options of the module's attention, where it has one (Module::attention). Null: none.
  std::function<void(AttentionOptions&)> attention;
  // Makes the module a unit (fully_shard.h): its parameters and those of modules in it, where no
  // unit of these has them, are sharded over the axes between uses, and gathered together.
  std::optional<ShardLevel> unit;
};

// Shard of the first dimension that has one of the roles, for each parameter of the module; R for
// those that have no such dimension. Errors: kInvalidArgument where the module has parameters and
// none of them has one, naming them and the remedy.
absl::StatusOr<ParameterPlacements> SplitAlong(const Module& module,
                                               absl::Span<const DimRole> roles);
// R for each parameter of the module.
ParameterPlacements ReplicateAll(const Module& module);

// A type that is a style. `axis` is a name of the mesh, of an axis or a group. ToString is what
// plans print and errors name, Name("axis"). What WishesAt refuses is reported with the line and
// the module's path.
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

  // No moves: what is moved from is still a style.
  ParallelStyle(const ParallelStyle&) = default;
  ParallelStyle& operator=(const ParallelStyle&) = default;

  const std::string& axis() const { return functions_->axis(style_.get()); }
  std::string ToString() const { return functions_->text(style_.get()); }
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const {
    return functions_->wishes(style_.get(), site);
  }
  // The style, or null where it is of another type than S.
  template <IsParallelStyle S>
  const S* As() const {
    return functions_ == &kFunctions<S> ? static_cast<const S*>(style_.get()) : nullptr;
  }
  // Of one type, and equal.
  friend bool operator==(const ParallelStyle& a, const ParallelStyle& b) {
    return a.functions_ == b.functions_ && a.functions_->equal(a.style_.get(), b.style_.get());
  }

 private:
  // What is done with styles of one type, which the address of this tells apart. (Not std::any: it
  // needs RTTI, or all of a program without.)
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
