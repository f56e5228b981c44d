#include "dtensor/redistribution/plan_alternatives.h"

#include <map>

#include "absl/algorithm/container.h"

namespace dtensor {
namespace {

// The owner axes by the speed of their links, the slowest first. Empty if all are alike, or if the
// first round would bring nothing: where nothing is reduced, ranks that differ only on axes that
// the source does not shard have nothing to give each other before the others come.
std::vector<AxisList> RoundsOf(const SameMeshTransition& t, const CostModel& links) {
  std::map<double, AxisList> by_speed;
  for (int axis : t.owner_axes()) {
    by_speed[links.Of(t.source().mesh().axis_name(axis)).gb_per_second].push_back(axis);
  }
  if (by_speed.size() < 2) return {};
  std::vector<AxisList> rounds;
  for (const auto& [speed, axes] : by_speed) rounds.push_back(axes);
  const auto gathered = [&t](int axis) { return absl::c_linear_search(t.gathered(), axis); };
  if (t.reduced().empty() && absl::c_none_of(rounds[0], gathered)) return {};
  return rounds;
}

}  // namespace

std::vector<SameMeshTransition> OtherTransitions(const SameMeshTransition& transition,
                                                 const CostModel& links) {
  std::vector<SameMeshTransition> others;
  const auto add = [&](Owners owners, std::vector<AxisList> rounds) {
    if (owners == transition.owners() && rounds.empty()) return;
    SameMeshTransition& other = others.emplace_back(transition);
    other.set_owners(owners);
    other.set_rounds(std::move(rounds));
  };
  if (transition.may_have_owners()) {
    for (Owners owners : {Owners::kHolders, Owners::kAnyNeeder, Owners::kNeeders}) add(owners, {});
  }
  if (transition.may_share_terms()) {
    others.push_back(transition);
    for (size_t i = 0, n = others.size(); i < n; ++i) {
      others.push_back(others[i]);
      others.back().set_shares_terms(true);
    }
  }
  if (links.uniform() || !transition.may_have_rounds()) return others;
  std::vector<AxisList> rounds = RoundsOf(transition, links);
  if (!rounds.empty()) add(Owners::kHolders, std::move(rounds));
  return others;
}

}  // namespace dtensor
