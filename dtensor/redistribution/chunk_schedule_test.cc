#include "dtensor/redistribution/chunk_schedule.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNull;
using ::testing::NotNull;

RedistributionPlan Plan(absl::string_view mesh_text, absl::string_view from, absl::string_view to,
                        Dims shape, DType dtype = DType::kF32) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
  return RedistributionPlan::Create(Layout::Parse(mesh, from).value(),
                                    Layout::Parse(mesh, to).value(), shape, dtype)
      .value();
}

// Rank 1 of 4, of rows 0..2, 3..5, 6..8 and 9: its own, then those of ranks 2, 3 and 0.
TEST(ChunkScheduleTest, AGatherBeginsWithTheNextRank) {
  const auto schedule = ChunkSchedule::Create(Plan("tp=4", "[tp] []", "[] []", {10, 2}), 2);
  ASSERT_THAT(schedule, NotNull());
  EXPECT_TRUE(schedule->gathers());
  EXPECT_EQ(schedule->steps(), 3);
  EXPECT_THAT(schedule->Rows(0, 1), ElementsAre(RowRange{3, 6}));
  EXPECT_THAT(schedule->Rows(1, 1), ElementsAre(RowRange{6, 9}));
  EXPECT_THAT(schedule->Rows(2, 1), ElementsAre(RowRange{0, 3}, RowRange{9, 10}));
  EXPECT_THAT(schedule->ChunkOf(0), 0);
  EXPECT_THAT(schedule->ChunkOf(2), -1);
  DT_EXPECT_OK(schedule->Verify());
}

// Each chunk has a share of every rank's rows, so that all make the same ones.
TEST(ChunkScheduleTest, AScatterTakesAShareOfEachRanksRows) {
  const auto schedule =
      ChunkSchedule::Create(Plan("tp=4", "[] [] P(sum: tp)", "[tp] []", {16, 2}), 2);
  ASSERT_THAT(schedule, NotNull());
  EXPECT_FALSE(schedule->gathers());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(schedule->Rows(0, rank),
                ElementsAre(RowRange{0, 2}, RowRange{4, 6}, RowRange{8, 10}, RowRange{12, 14}));
    EXPECT_THAT(schedule->Rows(2, rank), IsEmpty());
    EXPECT_THAT(schedule->Own(rank), IsEmpty());
  }
  EXPECT_THAT(schedule->ChunkOf(0), -1);
  EXPECT_THAT(schedule->ChunkOf(1), 0);
  DT_EXPECT_OK(schedule->Verify());
}

// Rank 1 sends nothing of rows 0 and 2, which b = 0 takes: it makes them, so that its source is
// whole.
TEST(ChunkScheduleTest, RowsThatNobodyReceivesAreMadeLast) {
  const auto schedule =
      ChunkSchedule::Create(Plan("a=2,b=2", "[] [] P(sum: a)", "[a,b] []", {4, 2}), 1);
  ASSERT_THAT(schedule, NotNull());
  EXPECT_THAT(schedule->Rows(0, 1), ElementsAre(RowRange{1, 2}, RowRange{3, 4}));
  EXPECT_THAT(schedule->Rows(1, 1), ElementsAre(RowRange{0, 1}, RowRange{2, 3}));
  DT_EXPECT_OK(schedule->Verify());
}

TEST(ChunkScheduleTest, WhatIsNoLoneGatherOrScatterIsNotCut) {
  const auto cut = [](const RedistributionPlan& plan) { return ChunkSchedule::Create(plan, 2); };
  EXPECT_THAT(cut(Plan("tp=4", "[tp] []", "[] [tp]", {8, 8})), IsNull());         // all-to-all
  EXPECT_THAT(cut(Plan("tp=4", "[] [] P(sum: tp)", "[] []", {8, 8})), IsNull());  // all-reduce
  EXPECT_THAT(cut(Plan("tp=4", "[] []", "[tp] []", {8, 8})), IsNull());           // a slice
  EXPECT_THAT(cut(Plan("a=2,b=2", "[a] [b]", "[] []", {8, 8})), IsNull());        // two dimensions
  EXPECT_THAT(cut(Plan("tp=2", "[tp] []", "[] [] P(sum: tp)", {8, 8})), IsNull());  // nothing moves
}

TEST(ChunkScheduleTest, AllSizesMeshesAndNumbersOfChunks) {
  struct Case {
    std::string mesh, from, to;
  };
  std::vector<Case> cases;
  for (int p = 2; p <= 8; ++p) {
    const std::string mesh = absl::StrCat("tp=", p);
    cases.push_back({mesh, "[] [tp] []", "[] [] []"});
    cases.push_back({mesh, "[] [tp:zigzag] []", "[] [] []"});
    cases.push_back({mesh, "[] [] [] P(sum: tp)", "[] [tp] []"});
    cases.push_back({mesh, "[] [] [] P(sum: tp)", "[] [tp:zigzag] []"});
  }
  cases.push_back({"dp=2,tp=4", "[dp] [tp] []", "[dp] [] []"});
  cases.push_back({"dp=2,tp=3", "[dp] [] [] P(sum: tp)", "[dp] [tp] []"});
  cases.push_back({"a=2,b=4", "[] [a,b] []", "[] [a] []"});
  cases.push_back({"a=2,b=4", "[] [a,b] []", "[] [] []"});
  cases.push_back({"a=2,b=4", "[] [] [b] P(sum: a)", "[] [a] [b]"});
  cases.push_back({"a=2,b=4", "[] [] [] P(sum: a,b)", "[] [a,b] []"});
  cases.push_back({"a=2,b=4", "[] [] [] P(sum: a)", "[] [a,b] []"});  // b slices
  std::mt19937 random(3);
  int cut = 0;
  for (const Case& c : cases) {
    for (int i = 0; i < 12; ++i) {
      const int64_t rows = i == 0 ? 1 : i == 1 ? 0 : random() % 40;
      const RedistributionPlan plan =
          Plan(c.mesh, c.from, c.to, {1 + static_cast<int64_t>(random() % 3), rows, 2});
      const int chunks = 1 + random() % 9;
      const auto schedule = ChunkSchedule::Create(plan, chunks);
      // Of two ranks each may reduce for itself, of a tensor without elements nothing moves.
      if (schedule == nullptr) continue;
      ++cut;
      SCOPED_TRACE(schedule->ToString());
      DT_ASSERT_OK(schedule->Verify());
      for (const int rank : plan.Ranks()) {
        ASSERT_EQ(schedule->BytesReceived(rank), plan.BytesReceived(rank));
      }
    }
  }
  EXPECT_GT(cut, static_cast<int>(cases.size()) * 10);
}

// As even as rows allow, so that no step waits longer than it must.
TEST(ChunkScheduleTest, ChunksDifferByARowAtMost) {
  const auto schedule = ChunkSchedule::Create(Plan("tp=8", "[tp] []", "[] []", {83, 2}), 5);
  ASSERT_THAT(schedule, NotNull());
  for (int rank = 0; rank < 8; ++rank) {
    int64_t least = 83, most = 0;
    for (int chunk = 0; chunk < 5; ++chunk) {
      int64_t rows = 0;
      for (const ReceiveBox& box : schedule->Receives(chunk, rank)) rows += box.dims[0].length;
      least = std::min(least, rows);
      most = std::max(most, rows);
    }
    EXPECT_LE(most - least, 1);
  }
}

}  // namespace
}  // namespace dtensor
