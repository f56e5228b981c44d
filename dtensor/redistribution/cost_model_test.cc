#include "dtensor/redistribution/cost_model.h"

#include <optional>
#include <string>

#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

TEST(CostModelTest, ReadsItsText) {
  DT_ASSERT_OK_AND_ASSIGN(const CostModel table, CostModel::Parse("# two nodes\n"
                                                                  "link dp 12 25  # slow\n"
                                                                  "\n"
                                                                  "link * 0.5 150\n"
                                                                  "copy 1500\nreduce 1e3"));
  EXPECT_EQ(table.Of("dp"), (LinkSpeed{12, 25}));
  EXPECT_EQ(table.Of("tp"), (LinkSpeed{0.5, 150}));
  EXPECT_EQ(table.copy_gb_per_second(), 1500);
  EXPECT_EQ(table.reduce_gb_per_second(), 1000);
  EXPECT_FALSE(table.uniform());
}

TEST(CostModelTest, ReadsHowFastARankComputes) {
  DT_ASSERT_OK_AND_ASSIGN(const CostModel table,
                          CostModel::Parse("multiply 50\ngemm bf16 400\nmemory 30\ncall 0.5"));
  const MachineRates& rates = table.rates();
  EXPECT_EQ(rates.GemmFlopsPerSecond(DType::kBF16), 400e9);
  EXPECT_EQ(rates.GemmFlopsPerSecond(DType::kF32), 50e9);  // as attention's
  EXPECT_EQ(rates.MemoryBytesPerSecond(), 30e9);
  EXPECT_EQ(rates.call_us, 0.5);
  EXPECT_EQ(CostModel::Parse(table.ToString()).value(), table);
}

// A table from before there were lines for that.
TEST(CostModelTest, WhatATableLacksFollowsFromWhatItHas) {
  DT_ASSERT_OK_AND_ASSIGN(const CostModel table,
                          CostModel::Parse("link * 1 10\ncopy 20\nreduce 15\nmultiply 600"));
  EXPECT_EQ(table.rates().GemmFlopsPerSecond(DType::kF64), 600e9);
  EXPECT_EQ(table.rates().MemoryBytesPerSecond(), 20e9);
  EXPECT_EQ(table.rates().call_us, 0);
  EXPECT_EQ(table.ToString(), "link * 1 10\ncopy 20\nreduce 15\nmultiply 600\n");
}

TEST(CostModelTest, ALabelGoesByItsSlowestAxis) {
  DT_ASSERT_OK_AND_ASSIGN(const CostModel table,
                          CostModel::Parse("link dp 12 2\nlink tp 1 100\nlink * 0.5 50"));
  const MachineRates& rates = table.rates();
  EXPECT_EQ(rates.LinkOfLabel("tp"), (LinkSpeed{1, 100}));
  EXPECT_EQ(rates.LinkOfLabel("tp,dp"), (LinkSpeed{12, 2}));
  EXPECT_EQ(rates.LinkOfLabel("tp,cp"), (LinkSpeed{0.5, 50}));
  EXPECT_EQ(rates.LinkOfLabel("dp->tp"), (LinkSpeed{0.5, 50}));
}

TEST(CostModelTest, AGroupStandsForItsAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("kv=2,rep=2,dp=2;tp=kv*rep,world=kv*rep*dp").value();
  const CostModel table =
      CostModel::Parse("link tp 1 10\nlink world 2 20\nlink rep 3 30\nlink cp 4 40").value();
  const CostModel on_mesh = table.On(mesh);
  EXPECT_EQ(on_mesh.Of("kv").gb_per_second, 10);   // of two groups the smaller one
  EXPECT_EQ(on_mesh.Of("rep").gb_per_second, 30);  // its own
  EXPECT_EQ(on_mesh.Of("dp").gb_per_second, 20);
  EXPECT_EQ(on_mesh.On(mesh), on_mesh);
  EXPECT_EQ(table.On(DeviceMesh::Parse("tp=4").value()), table);
}

// A plan is priced, and chosen, by the links that its axes have.
TEST(CostModelTest, PlansTakeAGroupsLine) {
  const auto seconds = [](const char* mesh_text, const char* from, const CostModel& links) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
    const auto plan =
        RedistributionPlan::Create(Layout::Parse(mesh, from).value(), Layout::Replicated(mesh, 1),
                                   {1 << 20}, DType::kF32, {.links = links});
    return plan->PredictedSeconds(links);
  };
  const CostModel links = CostModel::Parse("link tp 100 0.5").value();
  EXPECT_EQ(seconds("kv=2,rep=2;tp=kv*rep", "[kv,rep]", links), seconds("tp=4", "[tp]", links));
  // What crosses slow axes first and alone.
  const DeviceMesh mesh = DeviceMesh::Parse("kv=2,rep=2,dp=2;tp=kv*rep").value();
  const auto rounds = [&](const char* table) {
    return RedistributionPlan::Create(Layout::Parse(mesh, "[kv,rep,dp]").value(),
                                      Layout::Replicated(mesh, 1), {1 << 20}, DType::kF32,
                                      {.links = CostModel::Parse(table).value()})
        ->ToString();
  };
  EXPECT_EQ(rounds("link tp 12 1"), rounds("link kv 12 1\nlink rep 12 1"));
  EXPECT_NE(rounds("link tp 12 1"), rounds("link * 12 1"));
}

// A round that sends the result's type is priced by that type's size.
TEST(CostModelTest, PricesEachRoundByWhatItSends) {
  const DeviceMesh mesh = DeviceMesh::Parse("tp=4").value();
  const CostModel links = CostModel::Parse("link tp 0 1").value();
  const auto seconds = [&](const char* from, const char* to, DType type,
                           std::optional<DType> result) {
    const auto layout = [&](const char* text) { return Layout::Parse(mesh, text).value(); };
    return RedistributionPlan::Create(layout(from), layout(to), {1 << 20}, type,
                                      {.dtype = result, .links = links})
        ->PredictedSeconds(links);
  };
  const double scattered = seconds("[] P(sum: tp)", "[tp]", DType::kF32, {});
  const double gathered = seconds("[tp]", "[]", DType::kBF16, {});
  EXPECT_NEAR(seconds("[] P(sum: tp)", "[]", DType::kF32, DType::kBF16), scattered + gathered,
              (scattered + gathered) * 0.1);
}

// Eight of many ranks are looked at: they must be some that receive.
TEST(CostModelTest, PricesWhatFewRanksReceive) {
  const auto seconds = [](const char* from_mesh, const char* from, const char* to_mesh,
                          const char* to, const Dims& shape) {
    const auto layout = [](const char* mesh, const char* placements) {
      return Layout::Parse(DeviceMesh::Parse(mesh).value(), placements).value();
    };
    return RedistributionPlan::Create(layout(from_mesh, from), layout(to_mesh, to), shape,
                                      DType::kF32)
        ->PredictedSeconds({});
  };
  // On a mesh of few ranks, behind many that send.
  EXPECT_EQ(seconds("dp=64", "[dp] []", "tp=8@64..71", "[] [tp]", {64, 64}),
            seconds("dp=64@8..71", "[dp] []", "tp=8@0..7", "[] [tp]", {64, 64}));
  EXPECT_GT(seconds("dp=64", "[dp] []", "tp=8@64..71", "[] [tp]", {64, 64}), 0);
  // All but the first of each row of the mesh.
  EXPECT_GT(seconds("dp=8,tp=8", "[tp]", "dp=8,tp=8", "[]", {1}), 0);
}

TEST(CostModelTest, ParsesWhatItPrints) {
  CostModel table;
  table.Set("dp", {0.1, 1.0 / 3});
  table.SetDefault({1e-7, 1e9});
  table.set_copy_gb_per_second(2.5);
  DT_ASSERT_OK_AND_ASSIGN(const CostModel parsed, CostModel::Parse(table.ToString()));
  EXPECT_EQ(parsed, table);
  EXPECT_NE(parsed, CostModel());
  EXPECT_TRUE(CostModel().uniform());
  EXPECT_EQ(CostModel::Parse("").value(), CostModel());
}

TEST(CostModelTest, NamesTheLineThatIsWrong) {
  const auto error = [](absl::string_view text) {
    return std::string(CostModel::Parse(text).status().message());
  };
  EXPECT_THAT(error("copy 1\nlnk * 1 1"), HasSubstr("line 2: expected \"link AXIS"));
  EXPECT_THAT(error("link dp 1"), HasSubstr("line 1: expected"));
  EXPECT_THAT(error("link dp -1 1"), HasSubstr("\"-1\" is not a latency"));
  EXPECT_THAT(error("link dp 1 0"), HasSubstr("\"0\" is not a rate above 0"));
  EXPECT_THAT(error("copy nan"), HasSubstr("\"nan\" is not a rate"));
  EXPECT_THAT(error("gemm f31 5"), HasSubstr("line 1: "));
  EXPECT_THAT(error("gemm f32 0"), HasSubstr("\"0\" is not a rate above 0"));
  EXPECT_THAT(error("gemm 5"), HasSubstr("\"gemm TYPE GF/S\""));
  EXPECT_THAT(error("memory 0"), HasSubstr("\"0\" is not a rate above 0"));
  EXPECT_THAT(error("call -1"), HasSubstr("\"-1\" is not a latency"));
  EXPECT_THAT(error("link dp 1 1\nlink dp 1 1"),
              HasSubstr("line 2: there is a line for \"link dp\""));
  EXPECT_THAT(error("link * 1 1\nlink * 1 1"), HasSubstr("for \"link *\" already"));
  EXPECT_THAT(error("gemm f32 1\ngemm f32 2"),
              HasSubstr("line 2: there is a line for \"gemm f32\""));
  EXPECT_THAT(error("memory 1\nmemory 1"), HasSubstr("for \"memory\" already"));
  EXPECT_THAT(error("call 1\n\ncall 1"), HasSubstr("line 3: there is a line for \"call\""));
  EXPECT_THAT(error("gemm i32 5"), HasSubstr("no products of i32; take f32"));
}

}  // namespace
}  // namespace dtensor
