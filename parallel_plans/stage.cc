#include "dtensor/parallel_plans/stage.h"

#include <optional>

#include "dtensor/runtime/core/status.h"

namespace dtensor {

// ParallelPlan::Apply itself finds the meshes of stages, before it asks other styles.
absl::StatusOr<StyleWishes> Stage::WishesAt(const StyleSite&) const { return StyleWishes(); }

std::string Stage::ToString() const { return StyleText{"Stage", axis, {{"", index}}}.ToString(); }

absl::StatusOr<Stage> Stage::Read(const StyleText& text) {
  ArgumentReader arguments(text);
  const std::optional<int64_t> index = arguments.TakeNumber("");
  DT_RETURN_IF_ERROR(arguments.Done());
  if (index.has_value()) return Stage(text.axis, *index);
  return InvalidArgument({"which stage? Write its number, as in Stage(\"", text.axis, "\", 0)"});
}

}  // namespace dtensor
