#include "dtensor/parallel_plans/path_pattern.h"

#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(PathMatches, StarsStayInOneComponent) {
  EXPECT_TRUE(PathMatches("layers.*.norm", "layers.12.norm"));
  EXPECT_FALSE(PathMatches("layers.*", "layers.0.norm"));
  EXPECT_FALSE(PathMatches("layers.*.norm", "layers.norm"));
  EXPECT_TRUE(PathMatches("*_proj", "q_proj"));
  EXPECT_FALSE(PathMatches("*_proj", "q.x_proj"));
}

TEST(PathMatches, Alternatives) {
  EXPECT_TRUE(PathMatches("attn.{q,k,v}_proj", "attn.k_proj"));
  EXPECT_FALSE(PathMatches("attn.{q,k,v}_proj", "attn.o_proj"));
  EXPECT_TRUE(PathMatches("{a,b}.{c,d}", "b.c"));
  EXPECT_TRUE(PathMatches("{input,post_*}_norm", "post_attention_norm"));
  EXPECT_FALSE(PathMatches("{a,b", "a"));
}

TEST(PathMatches, TheEmptyPatternIsTheRoot) {
  EXPECT_TRUE(PathMatches("", ""));
  EXPECT_FALSE(PathMatches("", "a"));
  EXPECT_FALSE(PathMatches("a", ""));
}

TEST(NearestPath, SuggestsTheLeastEdit) {
  EXPECT_EQ(NearestPath("layers.0.atn", {"layers.0.attn", "layers.0.mlp"}), "layers.0.attn");
  EXPECT_EQ(NearestPath("x", {}), "");
}

}  // namespace
}  // namespace dtensor
