#include "dtensor/redistribution/plan_alternatives.h"

#include <map>
#include <utility>

#include "absl/algorithm/container.h"

namespace dtensor {
namespace {

// Groups the owner axes by the speed of their links, the slowest first. Returns nothing if all have
// the same speed, or if the first round would move nothing: if nothing is reduced, ranks that
// differ only on axes that do not shard the source have the same elements before the later rounds.
std::vector<AxisList> RoundsOf(const SameMeshTransition& t, const CostModel& links) {
  std::map<double, AxisList> by_speed;
  for (int axis : t.owner_axes()) {
    by_speed[links.Of(t.roles().source().mesh().axis_name(axis)).gb_per_second].push_back(axis);
  }
  if (by_speed.size() < 2) return {};
  std::vector<AxisList> rounds;
  for (const auto& [speed, axes] : by_speed) rounds.push_back(axes);
  const auto gathered = [&t](int axis) {
    return absl::c_linear_search(t.roles().gathered(), axis);
  };
  if (t.roles().reduced().empty() && absl::c_none_of(rounds[0], gathered)) return {};
  return rounds;
}

}  // namespace

std::vector<SameMeshTransition> OtherTransitions(const SameMeshTransition& transition,
                                                 const CostModel& links) {
  const AxisRoles& roles = transition.roles();
  std::vector<OwnerChoice> choices;
  if (MayHaveOwners(roles)) {
    for (Owners owners : {Owners::kHolders, Owners::kAnyNeeder, Owners::kNeeders}) {
      if (owners != transition.choice().owners) choices.push_back({.owners = owners});
    }
  }
  if (MayShareTerms(roles)) {
    choices.push_back(transition.choice());
    for (size_t i = 0, n = choices.size(); i < n; ++i) {
      choices.push_back(choices[i]);
      choices.back().shares_terms = true;
    }
  }
  if (!links.uniform() && MayHaveRounds(roles)) {
    std::vector<AxisList> rounds = RoundsOf(transition, links);
    if (!rounds.empty()) {
      choices.push_back({.owners = Owners::kHolders, .rounds = std::move(rounds)});
    }
  }
  std::vector<SameMeshTransition> others;
  for (OwnerChoice& choice : choices) others.push_back(transition.With(std::move(choice)));
  return others;
}

}  // namespace dtensor
