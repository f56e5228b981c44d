#include "dtensor/redistribution/cost_model.h"

#include <string>

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
  EXPECT_THAT(error("link dp 1 1\nlink dp 1 1"), HasSubstr("line 2: axis \"dp\" has a link"));
  EXPECT_THAT(error("link * 1 1\nlink * 1 1"), HasSubstr("axis \"*\" has a link already"));
}

}  // namespace
}  // namespace dtensor
