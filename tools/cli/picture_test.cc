#include "dtensor/tools/cli/picture.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Layout Of(const char* mesh, const char* layout) {
  return Layout::Parse(DeviceMesh::Parse(mesh).value(), layout).value();
}

int Count(absl::string_view text, absl::string_view word) {
  int count = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(PictureTest, DrawsAMatrixInLetters) {
  EXPECT_THAT(DrawText(Of("dp=2,tp=2", "[dp] [tp:zigzag]"), {3, 7}, false),
              IsOkAndHolds("0 0 1 1 1 1 0\n"
                           "0 0 1 1 1 1 0\n"
                           "2 2 3 3 3 3 2\n"
                           "0 rank 0\n1 rank 1\n2 rank 2\n3 rank 3\n"));
}

TEST(PictureTest, DrawsAVectorAsARow) {
  EXPECT_THAT(DrawText(Of("a=2", "[_ x 2(a)]"), {5}, false),
              IsOkAndHolds("0 1 0 1 0\n0 rank 0\n1 rank 1\n"));
}

TEST(PictureTest, ReplicasShareALetter) {
  EXPECT_THAT(DrawText(Of("dp=2,tp=2", "[tp]"), {4}, false),
              IsOkAndHolds("0 0 1 1\n0 ranks 0, 2\n1 ranks 1, 3\n"));
}

TEST(PictureTest, NamesTheWorldsRanks) {
  EXPECT_THAT(DrawText(Of("a=2@5,3", "[a]"), {2}, false),
              IsOkAndHolds("0 1\n0 rank 5\n1 rank 3\n"));
}

TEST(PictureTest, SaysThatRanksHoldTerms) {
  EXPECT_THAT(DrawText(Of("a=2", "[] P(max: a)"), {2}, false),
              IsOkAndHolds("0 0\n0 ranks 0, 1\neach rank holds a term of the max\n"));
}

TEST(PictureTest, RanksWithoutElementsAreLeftOut) {
  EXPECT_THAT(DrawText(Of("a=4", "[a]"), {2}, false), IsOkAndHolds("0 1\n0 rank 0\n1 rank 1\n"));
  EXPECT_THAT(DrawText(Of("a=2", "[a] []"), {0, 3}, false), IsOkAndHolds(""));
}

TEST(PictureTest, ColoursOnlyWhereAskedFor) {
  EXPECT_THAT(DrawText(Of("a=2", "[a]"), {2}, true), IsOkAndHolds(HasSubstr("\x1b[")));
  EXPECT_THAT(DrawText(Of("a=2", "[a]"), {2}, false), IsOkAndHolds(Not(HasSubstr("\x1b["))));
}

TEST(PictureTest, HoldersTileTheTensor) {
  const Layout layout = Of("a=2,b=3,c=2", "[b,a] [] P(sum: c)");
  int64_t elements = 0;
  for (const Holders& holders : HoldersOf(layout, {7, 3})) {
    elements += NumElements(holders.region);
    EXPECT_EQ(holders.ranks.size(), 2);
  }
  EXPECT_EQ(elements, 21);
  EXPECT_THAT(HoldersOf(layout, {7, 3})[0].ranks, ElementsAre(0, 1));
}

TEST(PictureTest, SvgHasARectangleForEachBox) {
  DT_ASSERT_OK_AND_ASSIGN(const std::string svg,
                          DrawSvg(Of("dp=2,tp=2", "[dp] [tp:zigzag]"), {6, 8}));
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns"));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(Count(svg, "<rect "), 6);
  EXPECT_EQ(Count(svg, "<g "), 4);
  EXPECT_THAT(svg, HasSubstr("<title>rank 3</title>"));
}

TEST(PictureTest, RefusesWhatItCannotDraw) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(DrawText(Of("a=2", "[] [] []"), {2, 2, 2}, false),
              StatusIs(kInvalid, HasSubstr("3 dimensions")));
  EXPECT_THAT(DrawSvg(Of("a=2", "scalar"), {}), StatusIs(kInvalid, HasSubstr("0 dimensions")));
  EXPECT_THAT(DrawText(Of("a=2", "[a]"), {65}, false), StatusIs(kInvalid, HasSubstr("--svg")));
  EXPECT_THAT(DrawText(Of("a=63", "[a]"), {63}, false),
              StatusIs(kInvalid, HasSubstr("62 letters")));
  EXPECT_THAT(DrawSvg(Of("a=2", "[_ x 2(a)]"), {1000000}),
              StatusIs(kInvalid, HasSubstr("smaller --shape")));
}

TEST(PictureTest, ManyRanksAreCutShort) {
  EXPECT_EQ(RanksToString({0, 2}), "0, 2");
  EXPECT_THAT(RanksToString(std::vector<int>(100, 7)), HasSubstr("... (100 ranks)"));
}

}  // namespace
}  // namespace dtensor::cli
