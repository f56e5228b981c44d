#include "dtensor/tools/program/nearest_word.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(NearestWordTest, FindsWhatWasMeant) {
  const std::vector<std::string> flags = {"--mesh", "--shape", "--seq", "--steps", "--kv-heads"};
  EXPECT_EQ(NearestWord("--mehs", flags), "--mesh");
  EXPECT_EQ(NearestWord("--shap", flags), "--shape");
  EXPECT_EQ(NearestWord("-mesh", flags), "--mesh");
  EXPECT_EQ(NearestWord("--kvheads", flags), "--kv-heads");
  EXPECT_EQ(NearestWord("--step", flags), "--steps");
}

TEST(NearestWordTest, SaysNothingRatherThanAnything) {
  const std::vector<std::string> commands = {"plan", "regions", "ring"};
  EXPECT_EQ(NearestWord("plam", commands), "plan");
  EXPECT_EQ(NearestWord("train", commands), "");
  EXPECT_EQ(NearestWord("x", commands), "");
  EXPECT_EQ(NearestWord("", commands), "");
  EXPECT_EQ(NearestWord(std::string(1 << 20, 'x'), commands), "");
  EXPECT_EQ(NearestWord("plan", {}), "");
}

TEST(NearestWordTest, Asks) {
  EXPECT_EQ(DidYouMean("dpp", {"dp", "tp"}), "; did you mean dp?");
  EXPECT_EQ(DidYouMean("model", {"dp", "tp"}), "");
}

}  // namespace
}  // namespace dtensor
