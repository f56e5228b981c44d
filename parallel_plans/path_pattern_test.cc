#include "dtensor/parallel_plans/path_pattern.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
  EXPECT_TRUE(PathMatches("{,a}", ""));
  EXPECT_FALSE(PathMatches("*", ""));  // the modules of a list, and not the list
  EXPECT_FALSE(PathMatches("{a,*}", ""));
  EXPECT_TRUE(PathMatches("{,model.layers.*}", ""));
}

TEST(PathMatches, StarsWithinAlternatives) {
  EXPECT_TRUE(PathMatches("{a*,*b}.{,c}", "xb."));
  EXPECT_TRUE(PathMatches("{a*,*b}.{,c}", "ax.c"));
  EXPECT_FALSE(PathMatches("{a*,*b}.{,c}", "x.c"));
  EXPECT_FALSE(PathMatches("{a*}", "a.b"));
  EXPECT_TRUE(PathMatches("a,}", "a,}"));  // outside of braces
}

TEST(PathMatches, AlternativesDoNotNest) {
  EXPECT_FALSE(PathMatches("{a,{b,c}}", "a"));
  EXPECT_FALSE(PathMatches("{a,{b,c}}", "b"));
}

// What it means, by trying everything.
bool MatchesSlowly(std::string pattern, absl::string_view path, bool is_root) {
  if (pattern.empty()) return path.empty();
  const std::string rest = pattern.substr(1);
  if (pattern[0] == '{') {
    const size_t close = pattern.find('}');
    if (close == std::string::npos) return false;
    for (absl::string_view choice : absl::StrSplit(pattern.substr(1, close - 1), ',')) {
      if (MatchesSlowly(absl::StrCat(choice, pattern.substr(close + 1)), path, is_root))
        return true;
    }
    return false;
  }
  if (pattern[0] == '*') {
    for (size_t taken = 0; !is_root; ++taken) {
      if (MatchesSlowly(rest, path.substr(taken), false)) return true;
      if (taken == path.size() || path[taken] == '.') return false;
    }
    return false;
  }
  return !path.empty() && path[0] == pattern[0] && MatchesSlowly(rest, path.substr(1), is_root);
}

TEST(PathMatches, RandomPatternsMeanWhatTheySay) {
  std::mt19937 random(4711);
  const auto text = [&](absl::string_view letters, int longest) {
    std::string text;
    for (int left = random() % (longest + 1); left > 0; --left) {
      text += letters[random() % letters.size()];
    }
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 200'000; ++round) {
    // No braces within braces, and no choice that would become part of another.
    std::string pattern = text("ab.*", 3);
    if (random() % 2) absl::StrAppend(&pattern, "{", text("ab.*,", 4), "}", text("ab.*", 2));
    const std::string path = text("ab.", 5);
    ASSERT_EQ(PathMatches(pattern, path), MatchesSlowly(pattern, path, path.empty()))
        << pattern << " " << path;
    matches += PathMatches(pattern, path);
  }
  EXPECT_GT(matches, 1000);
}

// Ten stars took 11 s before; these would take ages.
TEST(PathMatches, ManyStarsCostLittle) {
  std::string stars, groups, path(200, 'a');
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&stars, "*a"), absl::StrAppend(&groups, "{a,*}");
  EXPECT_FALSE(PathMatches(stars + "b", path));
  EXPECT_FALSE(PathMatches(groups + "b", path));
  EXPECT_TRUE(PathMatches(groups, path));
  EXPECT_EQ(NearestPath(std::string(1'000'000, '*'), {path}), path);
}

TEST(IsSoundPattern, ClosesItsBraces) {
  for (const absl::string_view sound : {"", "*", "a.{b,c}", "{a}{b}", "a}"}) {
    EXPECT_TRUE(IsSoundPattern(sound)) << sound;
  }
  for (const absl::string_view pattern : {"{", "a.{b,c", "{a,{b}}"}) {
    EXPECT_FALSE(IsSoundPattern(pattern)) << pattern;
  }
}

TEST(NearestPath, SuggestsTheLeastEdit) {
  EXPECT_EQ(NearestPath("layers.0.atn", {"layers.0.attn", "layers.0.mlp"}), "layers.0.attn");
  EXPECT_EQ(NearestPath("x", {}), "");
}

}  // namespace
}  // namespace dtensor
