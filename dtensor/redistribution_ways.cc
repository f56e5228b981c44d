#include "dtensor/redistribution_ways.h"

#include <map>

#include "absl/algorithm/container.h"

namespace dtensor {
namespace {

// The owner axes by the speed of their links, the slowest first. Empty if all are alike, or if the
// first round would bring nothing: where nothing is reduced, ranks that differ only on axes that
// the source does not shard have nothing to give each other before the others come.
std::vector<AxisList> StagesOf(const Transition& t, const LinkTable& links) {
  std::map<double, AxisList> by_speed;
  for (int axis : t.owner_axes()) {
    by_speed[links.Of(t.source().mesh().axis_name(axis)).gb_per_second].push_back(axis);
  }
  if (by_speed.size() < 2) return {};
  std::vector<AxisList> stages;
  for (const auto& [speed, axes] : by_speed) stages.push_back(axes);
  const auto gathered = [&t](int axis) { return absl::c_linear_search(t.gathered(), axis); };
  if (t.reduced().empty() && absl::c_none_of(stages[0], gathered)) return {};
  return stages;
}

}  // namespace

std::vector<Transition> OtherWays(const Transition& transition, const LinkTable& links) {
  std::vector<Transition> ways;
  const auto add = [&](Owners owners, std::vector<AxisList> stages) {
    if (owners == transition.owners() && stages.empty()) return;
    Transition& way = ways.emplace_back(transition);
    way.set_owners(owners);
    way.set_stages(std::move(stages));
  };
  if (transition.may_have_owners()) {
    for (Owners owners : {Owners::kHolders, Owners::kAnyNeeder, Owners::kNeeders}) add(owners, {});
  }
  if (transition.may_share_terms()) {
    ways.push_back(transition);
    for (size_t i = 0, n = ways.size(); i < n; ++i) {
      ways.push_back(ways[i]);
      ways.back().set_shares_terms(true);
    }
  }
  if (links.uniform() || !transition.may_have_stages()) return ways;
  std::vector<AxisList> stages = StagesOf(transition, links);
  if (!stages.empty()) add(Owners::kHolders, std::move(stages));
  return ways;
}

}  // namespace dtensor
