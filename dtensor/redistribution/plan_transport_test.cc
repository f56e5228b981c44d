// What a plan tells a transport: which rounds may be native collectives, and what staging costs.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {

class RedistributionPlanTestPeer {
 public:
  static void ClaimNative(RedistributionPlan& plan) {
    for (RedistributionRound& round : plan.rounds_) round.native = true;
  }
};

namespace {

using ::testing::HasSubstr;

absl::StatusOr<RedistributionPlan> Plan(absl::string_view mesh, absl::string_view from,
                                        absl::string_view to, Dims shape,
                                        const RedistributionOptions& options = {}) {
  const DeviceMesh m = DeviceMesh::Parse(mesh).value();
  return RedistributionPlan::Create(Layout::Parse(m, from).value(), Layout::Parse(m, to).value(),
                                    shape, DType::kF32, options);
}

// "yes no" of its rounds.
std::string Native(absl::string_view mesh, absl::string_view from, absl::string_view to, Dims shape,
                   const RedistributionOptions& options = {}) {
  const auto plan = Plan(mesh, from, to, shape, options);
  DT_EXPECT_OK(plan->Verify());
  return absl::StrJoin(plan->rounds(), " ", [](std::string* out, const RedistributionRound& round) {
    absl::StrAppend(out, round.native ? "yes" : "no");
  });
}

TEST(PlanTransportTest, RoundsAreNativeWhereAllRanksReceiveAlike) {
  EXPECT_EQ(Native("a=4", "[a] []", "[] []", {8, 3}), "yes");  // all-gather
  EXPECT_EQ(Native("a=4", "[a] []", "[] []", {9, 4}), "no");   // 3, 3, 3, 0
  EXPECT_EQ(Native("a=4", "[a:zigzag]", "[]", {16}), "yes");
  EXPECT_EQ(Native("a=4", "[a:zigzag]", "[]", {12}), "no");     // chunks of 2 and 1
  EXPECT_EQ(Native("a=4", "[a] []", "[] [a]", {8, 4}), "yes");  // all-to-all
  EXPECT_EQ(Native("a=4", "[a] []", "[] [a]", {8, 5}), "no");
  EXPECT_EQ(Native("a=4", "[] P(sum: a)", "[a]", {8}), "yes");  // reduce-scatter
  EXPECT_EQ(Native("a=4", "[] P(sum: a)", "[a]", {6}), "no");
  EXPECT_EQ(Native("a=4", "[] P(sum: a)", "[]", {8}), "yes yes");  // all-reduce
  EXPECT_EQ(Native("a=4", "[] P(sum: a)", "[]", {6}), "no no");
  EXPECT_EQ(Native("a=2,b=2", "[a,b]", "[a]", {8}), "yes");
  EXPECT_EQ(Native("a=2,b=2", "[a] [b]", "[] [b]", {8, 5}), "yes");  // 3 or 2, within a group alike
  EXPECT_EQ(Native("a=2,b=2", "[a]", "[b]", {8}), "no");             // a permutation
  EXPECT_EQ(Native("a=4", "[a] []", "[] []", {8, 3}, {.dtype = DType::kBF16}), "no");
  // What is gathered is doubled as well.
  EXPECT_EQ(Native("a=2,b=2", "[a] P(sum: b)", "[] P(avg: b)", {8}), "no");
  // In one round half of what is reduced is scattered, and half is not.
  const RedistributionOptions latency = {.objective = RedistributionObjective::kLatency};
  EXPECT_EQ(Native("a=2,b=2", "[] P(sum: a,b)", "[a,b]", {8}, latency), "yes");
  EXPECT_EQ(Native("a=2,b=2", "[] P(sum: a,b)", "[]", {8}, latency), "yes");
  EXPECT_EQ(Native("a=2,b=2", "[] P(sum: a,b)", "[b]", {8}, latency), "no");
  EXPECT_EQ(Native("a=2,b=2", "[] P(sum: a,b)", "[a]", {8}, latency), "no");
}

// "yes no" of its rounds, and what the digest says of the option.
std::string AnyOrder(absl::string_view mesh, absl::string_view from, absl::string_view to,
                     Dims shape, RedistributionOptions options = {}) {
  const uint64_t in_order = Plan(mesh, from, to, shape, options)->digest();
  options.sums_in_any_order = true;
  const auto plan = Plan(mesh, from, to, shape, options);
  std::string text = absl::StrJoin(plan->rounds(), " ", [](std::string* out, const auto& round) {
    absl::StrAppend(out, round.sums_in_any_order ? "yes" : "no");
  });
  EXPECT_EQ(plan->digest() != in_order, absl::StrContains(text, "yes")) << text;
  return text;
}

TEST(PlanTransportTest, SumsAreInAnyOrderWhereEachIsOneRanksAlone) {
  EXPECT_EQ(AnyOrder("a=4", "[] P(sum: a)", "[a]", {8}), "yes");
  EXPECT_EQ(AnyOrder("a=4", "[] P(avg: a)", "[a]", {8}), "yes");
  EXPECT_EQ(AnyOrder("a=4", "[] P(sum: a)", "[a]", {6}), "no");     // uneven
  EXPECT_EQ(AnyOrder("a=4", "[] P(max: a)", "[a]", {8}), "no");     // no sum
  EXPECT_EQ(AnyOrder("a=4", "[] P(sum: a)", "[]", {8}), "yes no");  // and then it is gathered
  EXPECT_EQ(AnyOrder("a=4", "[a] []", "[] []", {8, 3}), "no");
  EXPECT_EQ(AnyOrder("a=4", "[] P(sum: a)", "[a]", {8}, {.dtype = DType::kBF16}), "no");
  EXPECT_EQ(AnyOrder("a=2,b=2", "[] P(sum: a,b)", "[a,b]", {8}), "yes");
  // Every rank would add for itself, each in another order.
  EXPECT_EQ(
      AnyOrder("a=4", "[] P(sum: a)", "[]", {4}, {.objective = RedistributionObjective::kLatency}),
      "no");
}

TEST(PlanTransportTest, VerifyFindsRoundsThatAreNotNative) {
  for (absl::string_view from : {"[a] []", "[] [] P(sum: a)"}) {
    RedistributionPlan plan = Plan("a=4", from, "[] []", {5, 3}).value();
    DT_EXPECT_OK(plan.Verify());
    RedistributionPlanTestPeer::ClaimNative(plan);
    EXPECT_THAT(plan.Verify(), StatusIs(absl::StatusCode::kInternal, HasSubstr("native")));
  }
}

TEST(PlanTransportTest, StagingIsMemoryOfPlansThatMove) {
  const auto plan = [](absl::string_view from, absl::string_view to, int64_t cap) {
    return Plan("a=2", from, to, {8, 4}, {.max_extra_bytes = cap, .staging_bytes = 100});
  };
  EXPECT_EQ(plan("[a] []", "[] []", -1)->ExtraBytes(), 228);
  EXPECT_EQ(plan("[a] []", "[] []", -1)->PeakBytes(), 292);
  EXPECT_EQ(plan("[] []", "[a] []", 0)->PeakBytes(), 128);  // a view
  DT_EXPECT_OK(plan("[a] []", "[] []", 228).status());
  EXPECT_THAT(plan("[a] []", "[] []", 227).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("128 bytes, the transport's staging 100, and")));
}

}  // namespace
}  // namespace dtensor
