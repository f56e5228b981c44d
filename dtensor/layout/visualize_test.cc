#include "dtensor/layout/visualize.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
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

TEST(VisualizeTest, DrawsAMatrixInLetters) {
  EXPECT_THAT(VisualizeLayout(Of("dp=2,tp=2", "[dp] [tp:zigzag]"), {3, 7}, false),
              IsOkAndHolds("0 0 1 1 1 1 0\n"
                           "0 0 1 1 1 1 0\n"
                           "2 2 3 3 3 3 2\n"
                           "0 rank 0\n1 rank 1\n2 rank 2\n3 rank 3\n"));
}

TEST(VisualizeTest, DrawsAVectorAsARow) {
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[_ x 2(a)]"), {5}, false),
              IsOkAndHolds("0 1 0 1 0\n0 rank 0\n1 rank 1\n"));
}

TEST(VisualizeTest, ReplicasShareALetter) {
  EXPECT_THAT(VisualizeLayout(Of("dp=2,tp=2", "[tp]"), {4}, false),
              IsOkAndHolds("0 0 1 1\n0 ranks 0, 2\n1 ranks 1, 3\n"));
}

TEST(VisualizeTest, NamesTheWorldsRanks) {
  EXPECT_THAT(VisualizeLayout(Of("a=2@5,3", "[a]"), {2}, false),
              IsOkAndHolds("0 1\n0 rank 5\n1 rank 3\n"));
}

TEST(VisualizeTest, SaysThatRanksHoldTerms) {
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[] P(max: a)"), {2}, false),
              IsOkAndHolds("0 0\n0 ranks 0, 1\neach rank holds a term of the max\n"));
}

TEST(VisualizeTest, RanksWithoutElementsAreLeftOut) {
  EXPECT_THAT(VisualizeLayout(Of("a=4", "[a]"), {2}, false),
              IsOkAndHolds("0 1\n0 rank 0\n1 rank 1\n"));
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[a] []"), {0, 3}, false), IsOkAndHolds(""));
}

TEST(VisualizeTest, ColoursOnlyWhereAskedFor) {
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[a]"), {2}, true), IsOkAndHolds(HasSubstr("\x1b[")));
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[a]"), {2}, false), IsOkAndHolds(Not(HasSubstr("\x1b["))));
}

TEST(VisualizeTest, HoldersTileTheTensor) {
  const Layout layout = Of("a=2,b=3,c=2", "[b,a] [] P(sum: c)");
  int64_t elements = 0;
  for (const Holders& holders : HoldersOf(layout, {7, 3})) {
    elements += NumElements(holders.region);
    EXPECT_EQ(holders.ranks.size(), 2);
  }
  EXPECT_EQ(elements, 21);
  EXPECT_THAT(HoldersOf(layout, {7, 3})[0].ranks, ElementsAre(0, 1));
}

TEST(VisualizeTest, SvgHasARectangleForEachBox) {
  DT_ASSERT_OK_AND_ASSIGN(const std::string svg,
                          VisualizeLayoutSvg(Of("dp=2,tp=2", "[dp] [tp:zigzag]"), {6, 8}));
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns"));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(Count(svg, "<rect "), 6);
  EXPECT_EQ(Count(svg, "<g fill="), 4);
  EXPECT_THAT(svg, HasSubstr("<title>rank 3</title>"));
}

TEST(VisualizeTest, MoreDimensionsAreDrawnSliceBySlice) {
  EXPECT_THAT(VisualizeLayout(Of("a=2,b=2", "[a] [] [b]"), {3, 2, 2}),
              IsOkAndHolds("[0, :, :]\n0 1\n0 1\n"
                           "[1, :, :]\n0 1\n0 1\n"
                           "[2, :, :]\n2 3\n2 3\n"
                           "0 rank 0\n1 rank 1\n2 rank 2\n3 rank 3\n"));
  DT_ASSERT_OK_AND_ASSIGN(const std::string svg,
                          VisualizeLayoutSvg(Of("a=2,b=2", "[a] [] [] [b]"), {3, 2, 2, 2}));
  EXPECT_EQ(Count(svg, "<rect "), 3 * 2 * 2);
  EXPECT_THAT(svg, HasSubstr("[2, 1, :, :]"));
}

TEST(VisualizeTest, AScalarIsOneElement) {
  EXPECT_THAT(VisualizeLayout(Of("a=2", "scalar"), {}), IsOkAndHolds("0\n0 ranks 0, 1\n"));
  DT_ASSERT_OK_AND_ASSIGN(const std::string svg, VisualizeLayoutSvg(Of("a=2", "scalar"), {}));
  EXPECT_EQ(Count(svg, "<rect "), 1);
}

// Each element is drawn as the mark of who holds it, whatever the shape.
TEST(VisualizeTest, LettersAreThoseOfTheHolders) {
  const Layout layout = Of("a=2,b=3", "[_ x 2(b)] [a:zigzag] []");
  const Dims shape = {5, 6, 2};
  DT_ASSERT_OK_AND_ASSIGN(const std::string picture, VisualizeLayout(layout, shape));
  const std::vector<Holders> holders = HoldersOf(layout, shape);
  const std::vector<std::string> lines = absl::StrSplit(picture, '\n');
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) {
      for (int64_t k = 0; k < shape[2]; ++k) {
        const size_t part = lines[i * 7 + 1 + j][2 * k] - '0';
        ASSERT_LT(part, holders.size());
        const Region& region = holders[part].region;
        EXPECT_TRUE(region[0].Contains(i) && region[1].Contains(j) && region[2].Contains(k));
      }
    }
  }
}

TEST(VisualizeTest, TextInXmlIsEscaped) {
  EXPECT_EQ(XmlText("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
}

TEST(VisualizeTest, RefusesWhatItCannotDraw) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[] []"), {2, 2, 2}),
              StatusIs(kInvalid, HasSubstr("the layout has 2 dimensions")));
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[a]"), {65}), StatusIs(kInvalid, HasSubstr("or SVG")));
  EXPECT_THAT(VisualizeLayout(Of("a=2", "[a] [] []"), {65, 1, 1}),
              StatusIs(kInvalid, HasSubstr("64 slices")));
  EXPECT_THAT(VisualizeLayout(Of("a=63", "[a]"), {63}),
              StatusIs(kInvalid, HasSubstr("62 letters")));
  EXPECT_THAT(VisualizeLayoutSvg(Of("a=2", "[_ x 2(a)]"), {1000000}),
              StatusIs(kInvalid, HasSubstr("smaller shape")));
  const Layout three = Of("a=2", "[] [] [a]");
  for (const Dims& large : {Dims{int64_t{1} << 40, 1, 2}, Dims{int64_t{1} << 54, 0, 2}}) {
    EXPECT_THAT(VisualizeLayout(three, large), StatusIs(kInvalid, HasSubstr("smaller shape")));
    EXPECT_THAT(VisualizeLayoutSvg(three, large), StatusIs(kInvalid, HasSubstr("smaller shape")));
  }
}

TEST(VisualizeTest, RefusesWhatNoTensorHas) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Layout one = Of("a=2", "[] [a]"), both = Of("a=2,b=2", "[_ x 2(a)] [_ x 2(b)]");
  EXPECT_THAT(VisualizeLayout(one, {-1, 4}), StatusIs(kInvalid, HasSubstr("-1 is negative")));
  EXPECT_THAT(VisualizeLayoutSvg(one, {-1, 4}), StatusIs(kInvalid, HasSubstr("-1 is negative")));
  for (const Dims& large : {Dims{int64_t{1} << 33, int64_t{1} << 33}, Dims{int64_t{1} << 62, 0}}) {
    EXPECT_THAT(VisualizeLayout(both, large), StatusIs(kInvalid, HasSubstr("2^56 elements")));
    EXPECT_THAT(VisualizeLayoutSvg(both, large), StatusIs(kInvalid, HasSubstr("2^56 elements")));
  }
}

TEST(VisualizeTest, ManyRanksAreCutShort) {
  EXPECT_EQ(HolderParts(Of("a=2", "[]"), {1})[0].name, "ranks 0, 1");
  EXPECT_THAT(HolderParts(Of("a=100", "[]"), {1})[0].name, HasSubstr("... (100 ranks)"));
}

}  // namespace
}  // namespace dtensor
