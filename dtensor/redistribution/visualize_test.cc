#include "dtensor/redistribution/visualize.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

RedistributionPlan PlanOf(const char* mesh, const char* from, const char* to, const Dims& shape,
                          const RedistributionOptions& options = {}) {
  const DeviceMesh on = DeviceMesh::Parse(mesh).value();
  return RedistributionPlan::Create(Layout::Parse(on, from).value(), Layout::Parse(on, to).value(),
                                    shape, DType::kF32, options)
      .value();
}

TEST(VisualizeRedistributionTest, DrawsBothSidesAndWhatMoves) {
  EXPECT_THAT(VisualizeRedistribution(PlanOf("tp=2", "[tp] []", "[] [tp]", {4, 4})),
              IsOkAndHolds("[tp] [] -> [] [tp], [4, 4] f32: all-to-all(tp) 16 B\n"
                           "before:\n"
                           "0 0 0 0\n0 0 0 0\n1 1 1 1\n1 1 1 1\n0 rank 0\n1 rank 1\n"
                           "all-to-all(tp), bytes:\n"
                           "to \\ from  0  1\n"
                           "        0  . 16\n"
                           "        1 16  .\n"
                           "after:\n"
                           "0 0 1 1\n0 0 1 1\n0 0 1 1\n0 0 1 1\n0 rank 0\n1 rank 1\n"));
}

TEST(VisualizeRedistributionTest, WithoutRoundsNothingMoves) {
  DT_ASSERT_OK_AND_ASSIGN(const std::string picture,
                          VisualizeRedistribution(PlanOf("tp=2", "[]", "[tp]", {4})));
  EXPECT_THAT(picture, testing::Not(HasSubstr("bytes")));
}

// The table's sums are the plan's, also where ranks receive terms, where the type changes on the
// way, and between meshes.
TEST(VisualizeRedistributionTest, TablesSumUpToThePlan) {
  const DeviceMesh four = DeviceMesh::Parse("a=2,b=2@0..3").value();
  const DeviceMesh two = DeviceMesh::Parse("c=3@2..4").value();
  DT_ASSERT_OK_AND_ASSIGN(
      const RedistributionPlan across,
      RedistributionPlan::Create(Layout::Parse(four, "[a] [b]").value(),
                                 Layout::Parse(two, "[] [c]").value(), {5, 7}, DType::kF32));
  for (const RedistributionPlan& plan :
       {PlanOf("a=2,b=3", "[a] [] P(sum: b)", "[] []", {5, 7}),
        PlanOf("a=2,b=3", "[a:zigzag] [b]", "[b] [a]", {5, 7}, {.dtype = DType::kBF16}), across}) {
    for (int s = 0; s < static_cast<int>(plan.rounds().size()); ++s) {
      const auto bytes = BytesBetweenRanks(plan, s);
      int64_t total = 0;
      for (size_t to = 0; to < bytes.size(); ++to) {
        int64_t received = 0;
        for (const int64_t cell : bytes[to]) received += cell;
        EXPECT_EQ(received, plan.BytesReceived(s, plan.Ranks()[to])) << plan.ToString();
        EXPECT_EQ(bytes[to][to], 0);
        total += received;
      }
      EXPECT_EQ(total, plan.Bytes(s).total) << plan.ToString();
      EXPECT_GT(total, 0);
    }
  }
}

TEST(VisualizeRedistributionTest, SvgHasAPanelForEachSideAndRound) {
  const RedistributionPlan plan = PlanOf("a=2,b=2", "[a] [] P(sum: b)", "[] []", {4, 4});
  DT_ASSERT_OK_AND_ASSIGN(const std::string svg, VisualizeRedistributionSvg(plan));
  size_t panels = 0;
  for (size_t at = svg.find("translate"); at != svg.npos; at = svg.find("translate", at + 1)) {
    ++panels;
  }
  EXPECT_EQ(panels, plan.rounds().size() + 2);
  EXPECT_THAT(svg, HasSubstr(absl::StrCat("<title>", "[a] [] P(sum: b) -&gt; [] []")));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
}

TEST(VisualizeRedistributionTest, RefusesManyRanks) {
  EXPECT_THAT(VisualizeRedistribution(PlanOf("a=65", "[a]", "[]", {65})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65 ranks")));
}

}  // namespace
}  // namespace dtensor
