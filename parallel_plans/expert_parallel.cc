#include "dtensor/parallel_plans/expert_parallel.h"

#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::StatusOr<StyleWishes> WishesOf(const StyleSite& site, DimRole role, const Placement& output) {
  StyleWishes wishes;
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {role}));
  wishes.edges = {site.Edge(Replicate(), output)};
  return wishes;
}

std::string TextOf(const char* name, const std::string& axis, const Placement& output) {
  return StyleText{name, axis, {{"out", output}}}.ToString();
}

template <typename S>
absl::StatusOr<S> ReadStyle(const StyleText& text) {
  ArgumentReader arguments(text);
  S style(text.axis, arguments.TakePlacement("out").value_or(Replicate()));
  DT_RETURN_IF_ERROR(arguments.Done());
  return style;
}

}  // namespace

absl::StatusOr<StyleWishes> ExpertParallel::WishesAt(const StyleSite& site) const {
  return WishesOf(site, DimRole::kExpert, output);
}
std::string ExpertParallel::ToString() const { return TextOf("ExpertParallel", axis, output); }
absl::StatusOr<ExpertParallel> ExpertParallel::Read(const StyleText& text) {
  return ReadStyle<ExpertParallel>(text);
}

absl::StatusOr<StyleWishes> ExpertTensorParallel::WishesAt(const StyleSite& site) const {
  return WishesOf(site, DimRole::kHidden, output);
}
std::string ExpertTensorParallel::ToString() const {
  return TextOf("ExpertTensorParallel", axis, output);
}
absl::StatusOr<ExpertTensorParallel> ExpertTensorParallel::Read(const StyleText& text) {
  return ReadStyle<ExpertTensorParallel>(text);
}

}  // namespace dtensor
