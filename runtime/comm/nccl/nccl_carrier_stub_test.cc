#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(NcclCarrierStubTest, AllRanksSayWhatToDo) {
  const auto results =
      RunProcesses(Launched(2, 30, RankWay::kNccl), [](ProcessWorld&) { return absl::OkStatus(); });
  EXPECT_THAT(results, testing::Each(StatusIs(absl::StatusCode::kUnavailable,
                                              testing::HasSubstr("build it with --config=cuda"))));
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace dtensor
