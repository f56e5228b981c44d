#include "dtensor/parallel_plans/expert_parallel.h"

#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::StatusOr<StyleWishes> WishesOf(const StyleSite& site, DimRole role,
                                     const std::optional<Placement>& input,
                                     const Placement& output) {
  StyleWishes wishes;
  DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {role}));
  wishes.edges = {site.Edge(input, output)};
  return wishes;
}

}  // namespace

absl::StatusOr<StyleWishes> ExpertParallel::WishesAt(const StyleSite& site) const {
  return WishesOf(site, DimRole::kExpert, input, output);
}
std::string ExpertParallel::ToString() const {
  StyleText text{"ExpertParallel", axis, {{"out", output}}};
  if (input) text.arguments.emplace_back("in", input);
  return text.ToString();
}
absl::StatusOr<ExpertParallel> ExpertParallel::Read(const StyleText& text) {
  return internal::ReadOutput<ExpertParallel>(text);
}

absl::StatusOr<StyleWishes> ExpertTensorParallel::WishesAt(const StyleSite& site) const {
  return WishesOf(site, DimRole::kHidden, Replicate(), output);
}
std::string ExpertTensorParallel::ToString() const {
  return StyleText{"ExpertTensorParallel", axis, {{"out", output}}}.ToString();
}
absl::StatusOr<ExpertTensorParallel> ExpertTensorParallel::Read(const StyleText& text) {
  return internal::ReadOutput<ExpertTensorParallel>(text);
}

}  // namespace dtensor
