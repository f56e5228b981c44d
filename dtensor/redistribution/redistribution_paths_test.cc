// The oracle of planners: the cheapest chain of single collectives from each layout to each other,
// found by exhaustive search. No chain moves less than the plan.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/all_layouts.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

// What a library with collectives alone would call one round: local, or one native collective.
bool IsOneCollective(const RedistributionPlan& plan) {
  if (plan.moves_nothing()) return true;
  if (plan.rounds().size() == 2) return plan.rounds()[1].continues;
  return plan.rounds()[0].kind != CollectiveKind::kExchange;
}

struct Costs {
  int64_t direct;  // of the plan
  int64_t path;    // of the best chain
};

std::vector<std::vector<Costs>> Search(absl::Span<const Layout> layouts, const Dims& shape) {
  const size_t n = layouts.size();
  std::vector<std::vector<Costs>> costs(n, std::vector<Costs>(n, {kFar, kFar}));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const auto plan = RedistributionPlan::Create(layouts[i], layouts[j], shape, DType::kF32);
      costs[i][j].direct = plan->Bytes().total;
      if (IsOneCollective(*plan)) costs[i][j].path = costs[i][j].direct;
    }
  }
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        costs[i][j].path = std::min(costs[i][j].path, costs[i][k].path + costs[k][j].path);
      }
    }
  }
  return costs;
}

// An axis that stays partial keeps its terms, which is part of what the plan promises; a chain may
// reduce them and make the result partial again, which can move less.
bool KeepsTerms(const Layout& from, const Layout& to) {
  return absl::c_any_of(from.partial_axes(),
                        [&](int axis) { return to.use(axis) == Layout::AxisUse::kPartial; });
}

// Returns for how many pairs every chain moves more than the plan.
int ExpectNoChainIsCheaper(absl::string_view mesh, const Dims& shape) {
  const std::vector<Layout> layouts =
      AllLayouts(*DeviceMesh::Parse(mesh), shape, ReduceOp::kSum, ContiguousOrder());
  const auto costs = Search(layouts, shape);
  int worse = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = 0; j < layouts.size(); ++j) {
      if (KeepsTerms(layouts[i], layouts[j])) continue;
      EXPECT_LE(costs[i][j].direct, costs[i][j].path)
          << layouts[i].ToString() << " -> " << layouts[j].ToString();
      EXPECT_LT(costs[i][j].path, kFar) << "no chain at all";
      worse += costs[i][j].direct < costs[i][j].path;
    }
  }
  return worse;
}

TEST(RedistributionPathsTest, NoChainOfCollectivesMovesLess) {
  EXPECT_EQ(ExpectNoChainIsCheaper("a=4", {8, 4}), 0);
  EXPECT_GT(ExpectNoChainIsCheaper("a=2,b=2", {8, 4}), 0);
  EXPECT_GT(ExpectNoChainIsCheaper("a=2,b=3", {12, 6}), 0);
  EXPECT_GT(ExpectNoChainIsCheaper("a=2,b=3", {5, 7}), 0);
  EXPECT_GT(ExpectNoChainIsCheaper("a=4,b=8", {64, 64}), 0);
  EXPECT_GT(ExpectNoChainIsCheaper("a=2,b=2,c=2", {8, 8}), 0);
}

}  // namespace
}  // namespace dtensor
