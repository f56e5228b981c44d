#include "dtensor/plan_cache.h"

#include <memory>
#include <vector>

#include "dtensor/context.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(PlanCacheTest, ForgetsTheLeastRecentlyUsed) {
  const Layout layout = Layout::Replicated(DeviceMesh(), 1);
  const auto plan = std::make_shared<const RankPlan>(
      RedistributionPlan::Create(layout, layout, {4}, DType::kF32).value(), 0);
  const std::vector<Spec> specs(4);
  const RedistributionOptions options;
  const auto key = [&](int i) { return PlanCache::Key(&specs[i], &specs[0], &options); };
  PlanCache cache(3);
  for (int i : {0, 1, 2}) cache.Insert(key(i), plan);
  EXPECT_EQ(cache.Find(key(0)), plan);
  cache.Insert(key(3), plan);  // in place of 1
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.Find(key(1)), nullptr);
  for (int i : {0, 2, 3}) EXPECT_EQ(cache.Find(key(i)), plan);
  const RedistributionOptions others;
  EXPECT_EQ(cache.Find({&specs[0], &specs[0], &others}), nullptr);
}

}  // namespace
}  // namespace dtensor
