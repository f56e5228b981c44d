#include "dtensor/parallel_plans/explain/fold_paths.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "path:first:members" of each, where things with equal values are alike.
std::vector<std::string> Fold(const std::vector<std::string>& paths,
                              const std::vector<int>& values = {}) {
  std::vector<std::string> folded;
  const auto alike = [&](size_t a, size_t b) { return values.empty() || values[a] == values[b]; };
  for (const FoldedPath& one : FoldPaths(paths, alike)) {
    folded.push_back(absl::StrCat(one.path, ":", one.members[0], ":", one.members.size()));
  }
  return folded;
}

TEST(FoldPaths, JoinsLayersThatAreAlike) {
  EXPECT_THAT(Fold({"embed", "layers.0.mlp", "layers.0.norm", "layers.1.mlp", "layers.1.norm"}),
              ElementsAre("embed:0:1", "layers.0..1.mlp:1:2", "layers.0..1.norm:2:2"));
  EXPECT_THAT(Fold({"0", "1", "2"}), ElementsAre("0..2:0:3"));
  EXPECT_THAT(Fold({}), IsEmpty());
  EXPECT_THAT(Fold({""}), ElementsAre(":0:1"));
}

TEST(FoldPaths, KeepsApartWhatIsNot) {
  EXPECT_THAT(Fold({"l.0", "l.1", "l.2", "l.3"}, {7, 8, 8, 7}),
              ElementsAre("l.0:0:1", "l.1..2:1:2", "l.3:3:1"));
  EXPECT_THAT(Fold({"l.0", "l.2", "l.3"}), ElementsAre("l.0:0:1", "l.2..3:1:2"));  // a gap
}

TEST(FoldPaths, GoesByNumbersNotByOrder) {
  EXPECT_THAT(Fold({"l.10", "l.9", "l.8"}), ElementsAre("l.8..10:2:3"));
}

TEST(FoldPaths, FoldsTheFirstNumberAlone) {
  EXPECT_THAT(Fold({"a.0.b.0", "a.0.b.1", "a.1.b.0"}),
              ElementsAre("a.0..1.b.0:0:2", "a.0.b.1:1:1"));
}

TEST(FoldPaths, TakesOtherComponentsAsTheyAre) {
  EXPECT_THAT(Fold({"l1", "l2"}), ElementsAre("l1:0:1", "l2:1:1"));
  const std::string long_number = "l.99999999999999999999";
  EXPECT_THAT(Fold({long_number}), ElementsAre(long_number + ":0:1"));
}

}  // namespace
}  // namespace dtensor::internal
