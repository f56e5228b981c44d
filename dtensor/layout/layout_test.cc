#include "dtensor/layout/layout.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

Layout LayoutOf(const DeviceMesh& mesh, const std::string& text) {
  absl::StatusOr<Layout> layout = Layout::Parse(mesh, text);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.value_or(Layout());
}

// The text of the layout that `placements` say; an error's message in its place.
std::string From(const DeviceMesh& mesh, const std::string& placements,
                 const std::vector<int64_t>& shape) {
  absl::StatusOr<Placements> parsed = ParsePlacements(placements);
  if (!parsed.ok()) return std::string(parsed.status().message());
  absl::StatusOr<Layout> layout = Layout::FromPlacements(mesh, *parsed, shape);
  return layout.ok() ? layout->ToString() : std::string(layout.status().message());
}

absl::Status ErrorFrom(const DeviceMesh& mesh, const std::string& placements,
                       const std::vector<int64_t>& shape) {
  return Layout::FromPlacements(mesh, *ParsePlacements(placements), shape).status();
}

std::string To(const Layout& layout, const std::vector<int64_t>& shape) {
  absl::StatusOr<Placements> placements = layout.ToPlacements(shape);
  return placements.ok() ? ToString(*placements) : std::string(placements.status().message());
}

TEST(LayoutTest, DefaultIsAReplicatedScalar) {
  const Layout layout;
  EXPECT_EQ(layout.ndim(), 0);
  EXPECT_TRUE(layout.is_replicated());
  EXPECT_EQ(layout.ToString(), "scalar");
  EXPECT_EQ(layout, Layout::Replicated(DeviceMesh(), 0));
}

TEST(LayoutTest, TellsWhatAxesDo) {
  const DeviceMesh mesh = MeshOf("dp=2,cp=2,tp=2,ep=2,one=1");
  const Layout layout = LayoutOf(mesh, "[ep x 4] [tp] P(avg: dp)");
  EXPECT_THAT(layout.sharding_axes(), ElementsAre(2, 3));
  EXPECT_THAT(layout.replicated_axes(), ElementsAre(1, 4));
  EXPECT_THAT(layout.partial_axes(), ElementsAre(0));
  EXPECT_EQ(layout.partial_op(), ReduceOp::kAvg);
  EXPECT_EQ(layout.use(0), Layout::AxisUse::kPartial);
  EXPECT_EQ(layout.use(1), Layout::AxisUse::kReplicate);
  EXPECT_EQ(layout.use(2), Layout::AxisUse::kShard);
  EXPECT_EQ(layout.use(4), Layout::AxisUse::kReplicate);
  EXPECT_FALSE(layout.is_replicated());
  EXPECT_FALSE(LayoutOf(mesh, "[] [] P(sum: dp)").is_replicated());
  EXPECT_TRUE(Layout::Replicated(mesh, 2).is_replicated());
}

TEST(LayoutTest, AxesOfADimensionComeOutermostFactorFirst) {
  const DeviceMesh mesh = MeshOf("a=2,b=2,c=2");
  EXPECT_THAT(AxesOf(LayoutOf(mesh, "[b,a x 4(c)]").dim(0)), ElementsAre(1, 0, 2));
  EXPECT_TRUE(IsSplit(LayoutOf(mesh, "[_ x 4(c)]").dim(0)));
  EXPECT_FALSE(IsSplit(DimLayout()));
  EXPECT_FALSE(IsSplit(DimLayout(2)));
}

TEST(LayoutTest, ReplacesParts) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  const Layout layout = LayoutOf(mesh, "[dp] [] P(max: tp)");
  EXPECT_THAT(layout.WithDim(0, {}), IsOkAndHolds(LayoutOf(mesh, "[] [] P(max: tp)")));
  EXPECT_THAT(layout.WithDim(1, {{0, {{1}}}}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"tp\""), HasSubstr("twice"))));
  EXPECT_THAT(layout.WithPartial({}), IsOkAndHolds(LayoutOf(mesh, "[dp] []")));
  EXPECT_THAT(layout.WithPartial({1}), IsOkAndHolds(LayoutOf(mesh, "[dp] [] P(sum: tp)")));
}

// An average is a scaled sum, so the two may meet; nothing else may.
TEST(LayoutTest, SumsAndAveragesMeet) {
  const DeviceMesh mesh = MeshOf("dp=2,cp=3,tp=2,one=1");
  DT_ASSERT_OK_AND_ASSIGN(
      const Layout layout,
      Layout::FromPlacements(mesh, {Partial(), Shard(0), Partial(ReduceOp::kAvg), Replicate()},
                             {6}));
  EXPECT_EQ(layout.ToString(), "[cp] P(sum: dp) P(avg: tp)");
  EXPECT_EQ(LayoutOf(mesh, "[cp] P(avg: tp) P(sum: dp)"), layout);
  EXPECT_EQ(layout.partial_op(), ReduceOp::kAvg);
  EXPECT_EQ(layout.partial_op(0), ReduceOp::kSum);
  EXPECT_EQ(layout.partial_op(2), ReduceOp::kAvg);
  EXPECT_EQ(layout.term_op(), ReduceOp::kSum);
  EXPECT_THAT(layout.averaged_axes(), ElementsAre(2));
  EXPECT_THAT(layout.ToPlacements({6}),
              IsOkAndHolds(ElementsAre(Partial(), Shard(0), Partial(ReduceOp::kAvg), Replicate())));
  EXPECT_EQ(layout.Dual(), LayoutOf(mesh, "[cp]"));
  EXPECT_THAT(layout.WithDim(0, {}), IsOkAndHolds(LayoutOf(mesh, "[] P(sum: dp) P(avg: tp)")));
  EXPECT_THAT(layout.WithAxes({2}, Replicate()), IsOkAndHolds(LayoutOf(mesh, "[cp] P(sum: dp)")));
  EXPECT_THAT(layout.WithAxes({0}, Replicate()), IsOkAndHolds(LayoutOf(mesh, "[cp] P(avg: tp)")));
  EXPECT_THAT(layout.WithPartial({0, 2}, ReduceOp::kSum, {2}), IsOkAndHolds(layout));
  EXPECT_NE(LayoutOf(mesh, "[cp] P(avg: dp) P(sum: tp)"), layout);
  EXPECT_NE(LayoutOf(mesh, "[cp] P(avg: dp,tp)"), layout);
  EXPECT_NE(LayoutOf(mesh, "[cp] P(sum: dp,tp)"), layout);
  EXPECT_EQ(LayoutOf(mesh, "[cp] P(sum: dp) P(avg: one)"), LayoutOf(mesh, "[cp] P(sum: dp)"));

  EXPECT_THAT(layout.WithPartial({0, 2}, ReduceOp::kMax, {2}),
              StatusIs(kInvalidArgument, HasSubstr("P(max) stands beside P(avg)")));
  EXPECT_THAT(layout.WithPartial({0}, ReduceOp::kSum, {2}),
              StatusIs(kInvalidArgument, HasSubstr("not among the partial axes")));
  EXPECT_THAT(Layout::Parse(mesh, "[] P(sum: dp) P(max: tp)"),
              StatusIs(kInvalidArgument, HasSubstr("or sum and average")));
  EXPECT_THAT(Layout::FromPlacements(
                  mesh, {Partial(), Shard(0), Partial(ReduceOp::kMax), Replicate()}, {6}),
              StatusIs(kInvalidArgument, HasSubstr("or sum and average")));
}

TEST(LayoutTest, DualOfASumIsReplicated) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_EQ(LayoutOf(mesh, "[dp] P(sum: tp)").Dual(), LayoutOf(mesh, "[dp]"));
  EXPECT_EQ(LayoutOf(mesh, "[dp] P(avg: tp)").Dual(), LayoutOf(mesh, "[dp]"));
  EXPECT_EQ(LayoutOf(mesh, "[dp] P(max: tp)").Dual(), LayoutOf(mesh, "[dp] P(max: tp)"));
  EXPECT_EQ(LayoutOf(mesh, "[tp x 3]").Dual(), LayoutOf(mesh, "[tp x 3]"));
}

TEST(LayoutTest, LocalShapeOfAFewRanks) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=3");
  EXPECT_THAT(LayoutOf(mesh, "[dp] [tp] []").LocalShape({5, 7, 2}, 0), ElementsAre(3, 3, 2));
  EXPECT_THAT(LayoutOf(mesh, "[dp] [tp] []").LocalShape({5, 7, 2}, 5), ElementsAre(2, 1, 2));
  EXPECT_THAT(Layout::Replicated(mesh, 0).LocalShape({}, 3), IsEmpty());
}

// --- Canonical form ---

TEST(LayoutCreateTest, IsCanonical) {
  const DeviceMesh mesh = MeshOf("one=1,a=2,b=2");
  const auto of = [&](const DimLayout& dim) { return Layout::Create(mesh, {dim})->ToString(); };
  EXPECT_EQ(of({{0, {{0}}}}), "[]");
  EXPECT_EQ(of({{0, {}}, {4, {}}}), "[]");
  EXPECT_EQ(of({{0, {{0}, {1}, {2}}}}), "[a,b]");
  EXPECT_EQ(of({{0, {}}, {4, {}}, {2, {{1}}}, {3, {}}, {5, {{0}}}}), "[_ x 2(a) x 15]");
  EXPECT_EQ(of({{0, {{1}}}, {1, {}}, {3, {{0}}}, {2, {}}}), "[a x 6]");
  EXPECT_EQ(of({{0, {{1}}}, {1, {{2}}}}), "[a x 1(b)]");
  EXPECT_EQ(Layout::Create(mesh, {}, {2, 0, 1}, ReduceOp::kMax)->ToString(), "P(max: a,b)");
  EXPECT_EQ(*Layout::Create(mesh, {}, {0}, ReduceOp::kMax), Layout::Replicated(mesh, 0));
}

TEST(LayoutCreateTest, EqualLayoutsFromDifferentSpellingsAreEqualAndHashEqual) {
  const DeviceMesh mesh = MeshOf("one=1,dp=2,tp=4"), same_mesh = MeshOf("one=1,dp=2,tp=4");
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"[dp] []", "[one,dp x 1] [_ x 4]"},
      {"[dp x 8]", "[dp x 2 x 4(one)]"},
      {"[] P(sum: dp)", "[one:zigzag] P(sum: dp)"},
      {"[_ x 4(tp)]", "[_ x 2 x 4(tp) x 1]"},
  };
  for (const auto& [a, b] : pairs) {
    EXPECT_EQ(LayoutOf(mesh, a), LayoutOf(same_mesh, b));
    EXPECT_EQ(absl::HashOf(LayoutOf(mesh, a)), absl::HashOf(LayoutOf(same_mesh, b)));
  }
}

TEST(LayoutCreateTest, DistinctLayoutsAreUnequal) {
  const DeviceMesh mesh = MeshOf("a=2,b=2");
  absl::flat_hash_set<Layout> layouts;
  const std::vector<std::string> texts = {"scalar", "P(sum: a)",  "P(max: a)",     "P(sum: b)",
                                          "[]",     "[a]",        "[b]",           "[a,b]",
                                          "[b,a]",  "[a:zigzag]", "[a x 2]",       "[a x 3]",
                                          "[] []",  "[_ x 2(a)]", "[a] P(sum: b)", "[a] []",
                                          "[] [a]", "[a x 2(b)]", "[b:zigzag,a]",  "[b,a:zigzag]"};
  for (const std::string& text : texts) layouts.insert(LayoutOf(mesh, text));
  EXPECT_EQ(layouts.size(), texts.size());
  EXPECT_NE(LayoutOf(mesh, "[a]"), LayoutOf(MeshOf("a=2,c=2"), "[a]"));
}

TEST(LayoutCreateTest, RefusesBadParts) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2,one=1");
  const auto error = [&](const DimLayout& dim, const AxisList& partial = {}) {
    return Layout::Create(mesh, {dim}, partial).status();
  };
  EXPECT_THAT(error({{0, {{3}}}}), StatusIs(kInvalidArgument, HasSubstr("axis number 3")));
  EXPECT_THAT(error({{0, {{-1}}}}), StatusIs(kInvalidArgument, HasSubstr("axis number -1")));
  EXPECT_THAT(error({{0, {{1}, {1}}}}), StatusIs(kInvalidArgument, HasSubstr("\"tp\"")));
  EXPECT_THAT(error({{0, {{1}}}}, {1}), StatusIs(kInvalidArgument, HasSubstr("\"tp\"")));
  EXPECT_THAT(error({}, {0, 0}), StatusIs(kInvalidArgument, HasSubstr("\"dp\"")));
  EXPECT_THAT(error({{0, {{2}, {2}}}}), StatusIs(kInvalidArgument, HasSubstr("\"one\"")));
  EXPECT_THAT(error({{4, {{1}}}}), StatusIs(kInvalidArgument, HasSubstr("write 0")));
  EXPECT_THAT(error({{0, {{1}}}, {0, {}}}), StatusIs(kInvalidArgument, HasSubstr("size 0")));
  EXPECT_THAT(error({{0, {{1}}}, {-4, {}}}), StatusIs(kInvalidArgument, HasSubstr("size -4")));
  EXPECT_THAT(error({{0, {{1}}}, {int64_t{1} << 40, {}}, {int64_t{1} << 40, {}}}),
              StatusIs(kInvalidArgument, HasSubstr("2^56")));
}

// --- Text ---

TEST(LayoutTextTest, PrintsAndParsesTheExamples) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2,cp=2");
  for (const char* text :
       {"[dp,tp] []", "[tp x 16]", "[_ x 4(tp)]", "[_ x 2(tp) x 3]", "[cp:zigzag]",
        "[] [] P(sum: dp,tp)", "scalar", "P(product: cp)", "[dp:zigzag,tp,cp:zigzag x 7]",
        "[tp x 2(dp:zigzag) x 5] [] P(min: cp)"}) {
    EXPECT_EQ(LayoutOf(mesh, text).ToString(), text);
  }
}

TEST(LayoutTextTest, ParsesBlanksNamesLikeMarksAndGroups) {
  const DeviceMesh mesh = MeshOf("x=2,_a=2,P=2;all=x*_a");
  EXPECT_EQ(LayoutOf(mesh, " [ x x 3 ] P( sum : _a , P ) ").ToString(), "[x x 3] P(sum: _a,P)");
  EXPECT_EQ(LayoutOf(mesh, "[_a,x x 2(P)][]").ToString(), "[_a,x x 2(P)] []");
  EXPECT_EQ(LayoutOf(mesh, "[all]").ToString(), "[x,_a]");
  EXPECT_EQ(LayoutOf(mesh, "[P] P(max: all)").ToString(), "[P] P(max: x,_a)");
}

TEST(LayoutTextTest, ErrorsNameThePart) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2;all=dp*tp");
  const auto error = [&](const char* text) { return Layout::Parse(mesh, text).status(); };
  EXPECT_THAT(error("[dp,qp]"),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"qp\""), HasSubstr("[dp,qp]"))));
  EXPECT_THAT(error("[dp] [dp]"), StatusIs(kInvalidArgument, HasSubstr("\"dp\"")));
  EXPECT_THAT(error("[] P(mean: dp)"), StatusIs(kInvalidArgument, HasSubstr("mean")));
  EXPECT_THAT(error("[all:zigzag]"), StatusIs(kInvalidArgument, HasSubstr("group")));
  EXPECT_THAT(error("[dp x 0]"), StatusIs(kInvalidArgument, HasSubstr("size 0")));
  EXPECT_THAT(error("-"), StatusIs(kInvalidArgument, HasSubstr("the end")));
  for (const char* text :
       {"[", "]", "[dp", "[dp x]", "[dp x 4(]", "[dp x 4(tp]", "[4(tp)]", "[dp] x", "[dp,]",
        "[] P(sum)", "[] P(sum:)", "[] P(sum: dp", "[dp:zig]", "scalar []", "[] scalar"}) {
    EXPECT_THAT(error(text),
                StatusIs(kInvalidArgument, AllOf(HasSubstr(text), HasSubstr("[dp,tp x 16]"))))
        << text;
  }
}

TEST(LayoutTextTest, ParsesWhatEverySmallLayoutPrints) {
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      const Layout layout = *Layout::Create(mesh, {dim, {}});
      ASSERT_THAT(Layout::Parse(mesh, layout.ToString()), IsOkAndHolds(layout));
    }
  }
}

TEST(LayoutTextTest, ParsesWhatRandomLayoutsPrint) {
  TestRandom random;
  const DeviceMesh mesh = MeshOf("a=2,b=3,one=1,c=2,d=4,e=2");
  for (int round = 0; round < 2000; ++round) {
    std::vector<DimLayout> dims(random.Below(4));
    for (DimLayout& dim : dims) {
      dim.resize(1 + random.Below(4));
      for (size_t f = 1; f < dim.size(); ++f) dim[f].size = 1 + random.Below(20);
    }
    AxisList partial;
    for (int axis : {3, 0, 5, 2, 4, 1}) {
      const int use = random.Below(6);
      if (use == 0) partial.push_back(axis);
      if (use < 2 || dims.empty()) continue;
      DimLayout& dim = dims[random.Below(static_cast<int>(dims.size()))];
      dim[random.Below(static_cast<int>(dim.size()))].splits.push_back({axis, random.Coin()});
    }
    const ReduceOp op = static_cast<ReduceOp>(random.Below(5));
    DT_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Create(mesh, dims, partial, op));
    ASSERT_THAT(Layout::Parse(mesh, layout.ToString()), IsOkAndHolds(layout));
  }
}

TEST(LayoutTextTest, PlacementsAreAnsweredWithTheirSpelling) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  for (const char* text : {"[Shard(dim=0), Replicate()]", "dp: S(0), tp: R", "S(0),R"}) {
    EXPECT_THAT(
        Layout::Parse(mesh, text),
        StatusIs(kInvalidArgument, HasSubstr("placements are written one for each mesh axis")))
        << text;
  }
  EXPECT_THAT(Layout::Parse(mesh, "[dp x 1e3]"),
              StatusIs(kInvalidArgument, HasSubstr("expected ']' at \"e3]\"")));
  EXPECT_THAT(Layout::Parse(mesh, "[dp x big]"),
              StatusIs(kInvalidArgument, HasSubstr("a size, a whole number, at \"big]\"")));
}

TEST(LayoutTextTest, RandomTextsReadBackOrAreRefused) {
  const std::vector<std::string> pieces = {
      "a",       "b",    "all", "[",          "]",   "[a]",    "[] ",
      "[b",      " x ",  "x",   "2",          "(a)", "(",      ")",
      ":zigzag", ",",    "_",   " P(sum: a)", "P(",  "scalar", "9999999999999999999",
      "-1",      "\xFF", "4(b)"};
  const DeviceMesh mesh = MeshOf("a=2,b=3;all=b*a");
  TestRandom random;
  int read = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string text;
    for (int left = random.Below(9); left > 0; --left) {
      text += pieces[random.Below(static_cast<int>(pieces.size()))];
    }
    const absl::StatusOr<Layout> layout = Layout::Parse(mesh, text);
    if (!layout.ok()) continue;
    ++read;
    ASSERT_THAT(Layout::Parse(mesh, layout->ToString()), IsOkAndHolds(*layout)) << text;
  }
  EXPECT_GT(read, 500);
}

// Megabytes of text are read in their own time, and not repeated in the message.
TEST(LayoutTextTest, LongTextsMakeShortMessages) {
  const DeviceMesh mesh = MeshOf("a=2,b=3;all=b*a");
  for (const char* piece : {"[", "[]", "[a", "a,", "[a x 2 x ", "all,", "P(sum: ", "x2"}) {
    for (const char* start : {"", "[", "[a x 2", "[] P(sum: "}) {
      std::string text = start;
      while (text.size() < 1'000'000) text += piece;
      const absl::Status status = Layout::Parse(mesh, text + "!").status();
      ASSERT_FALSE(status.ok());
      EXPECT_LT(status.message().size(), 5000u) << start << piece;
    }
  }
}

// --- Placements ---

TEST(FromPlacementsTest, MakesTheFactorsOfTheOrders) {
  const DeviceMesh mesh = MeshOf("tp=2");
  EXPECT_EQ(From(mesh, "R", {8, 2}), "[] []");
  EXPECT_EQ(From(mesh, "R", {}), "scalar");
  EXPECT_EQ(From(mesh, "S(0)", {8, 2}), "[tp] []");
  EXPECT_EQ(From(mesh, "S(-1)", {8, 2}), "[] [tp]");
  EXPECT_EQ(From(mesh, "S(0,unit(16))", {48}), "[tp x 16]");
  EXPECT_EQ(From(mesh, "S(0,cyclic(2))", {8}), "[_ x 4(tp)]");
  EXPECT_EQ(From(mesh, "S(0,cyclic(3))", {8}), "[_ x 3(tp)]");
  EXPECT_EQ(From(mesh, "S(0,block(3))", {8}), "[_ x 2(tp) x 3]");
  EXPECT_EQ(From(mesh, "S(0,block(1))", {8}), "[_ x 2(tp)]");
  EXPECT_EQ(From(mesh, "S(0,zigzag)", {8}), "[tp:zigzag]");
  EXPECT_EQ(From(mesh, "P(avg)", {8}), "[] P(avg: tp)");
}

TEST(LayoutTest, WithDimRefusesADimensionThatItLacks) {
  const Layout layout = Layout::Replicated(MeshOf("tp=2"), 2);
  for (const int d : {-1, 2, 50}) {
    EXPECT_THAT(layout.WithDim(d, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give one from 0 to 1")));
  }
}

TEST(LayoutDeathTest, LocalShapeIsOfARankOfTheMesh) {
  const Layout layout = Layout::Replicated(MeshOf("tp=2@2..3"), 1);
  EXPECT_DEATH(layout.LocalShape({4}, 0), "not on it; ask Contains");
}

TEST(FromPlacementsTest, OneUnitRoundOrRankIsContiguous) {
  const DeviceMesh mesh = MeshOf("tp=2,one=1");
  EXPECT_EQ(From(mesh, "S(0,unit(1)),R", {8}), "[tp]");
  EXPECT_EQ(From(mesh, "S(0,cyclic(1)),R", {8}), "[tp]");
  EXPECT_EQ(From(mesh, "S(0),S(0,block(2))", {8}), "[tp]");
  EXPECT_EQ(From(mesh, "R,S(0,zigzag)", {8}), "[]");
  EXPECT_EQ(From(mesh, "R,P(max)", {8}), "[]");
  EXPECT_EQ(From(mesh, "S(0,cyclic(4)),R", {0}), "[_ x 1(tp)]");
}

TEST(FromPlacementsTest, CombinesAxesOfOneDimensionInMeshOrder) {
  const DeviceMesh mesh = MeshOf("a=2,b=2");
  EXPECT_EQ(From(mesh, "S(0),S(0)", {8}), "[a,b]");
  EXPECT_EQ(From(mesh, "S(0,zigzag),S(0)", {8}), "[a:zigzag,b]");
  EXPECT_EQ(From(mesh, "S(0),S(0,zigzag)", {7}), "[a,b:zigzag]");
  EXPECT_EQ(From(mesh, "S(0),S(0,unit(2))", {8}), "[a,b x 2]");
  EXPECT_EQ(From(mesh, "S(0,unit(2)),S(0,unit(2))", {7}), "[a,b x 2]");
  EXPECT_EQ(From(mesh, "S(0,unit(2)),S(0)", {8}), "[a,b x 2]");
  EXPECT_EQ(From(mesh, "S(0),S(0,unit(4))", {1}), "[a,b x 4]");
  EXPECT_EQ(From(mesh, "S(0,unit(1)),S(0,unit(2))", {8}), "[a,b x 2]");
  EXPECT_EQ(From(mesh, "S(0,zigzag),S(0,unit(2))", {8}), "[a:zigzag,b x 2]");
  EXPECT_EQ(From(mesh, "S(0),S(0,cyclic(2))", {8}), "[a x 2(b)]");
  EXPECT_EQ(From(mesh, "S(0,cyclic(2)),S(0,cyclic(2))", {7}), "[_ x 4(a,b)]");
  // The sixth rank of "a" has nothing, and no rounds.
  EXPECT_EQ(From(MeshOf("a=6,b=2"), "S(0),S(0,cyclic(2))", {20}), "[a x 2(b)]");
  EXPECT_EQ(From(mesh, "S(0),S(0,block(1))", {8}), "[a x 2(b)]");
  EXPECT_EQ(From(mesh, "S(0,block(3)),S(0,block(3))", {40}), "[_ x 2(b) x 2(a) x 3]");
  EXPECT_EQ(From(mesh, "S(0,block(1)),S(0)", {8}), "[b x 2(a)]");
}

TEST(FromPlacementsTest, ErrorsNameAxisDimensionShapeAndRemedy) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_THAT(
      ErrorFrom(mesh, "R", {4}),
      StatusIs(kInvalidArgument, AllOf(HasSubstr("[\"dp\"=2, \"tp\"=2]"), HasSubstr("2 axes"),
                                       HasSubstr("\"R\" are 1"), HasSubstr("give one"))));
  EXPECT_THAT(ErrorFrom(mesh, "R,S(2)", {4, 6}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"tp\" as S(2)"), HasSubstr("[4, 6]"),
                                               HasSubstr("dimension 2"))));
  EXPECT_THAT(ErrorFrom(mesh, "R,S(-3)", {4, 6}), StatusIs(kInvalidArgument, HasSubstr("S(-3)")));
  EXPECT_THAT(ErrorFrom(mesh, "S(0),R", {}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"dp\""), HasSubstr("scalar"))));
  EXPECT_THAT(
      ErrorFrom(mesh, "P(sum),P(max)", {4}),
      StatusIs(kInvalidArgument, AllOf(HasSubstr("\"dp\" as P(sum)"), HasSubstr("\"tp\" as P(max)"),
                                       HasSubstr("reduce one of them first"))));
  EXPECT_THAT(ErrorFrom(mesh, "P(sum),P(max)", {4}), StatusIs(kInvalidArgument));
  EXPECT_THAT(ErrorFrom(mesh, "R,R", {-4}), StatusIs(kInvalidArgument, HasSubstr("[-4]")));
  for (const char* order : {"unit(0)", "cyclic(0)", "block(-1)"}) {
    EXPECT_THAT(ErrorFrom(mesh, absl::StrCat("R,S(0,", order, ")"), {4}),
                StatusIs(kInvalidArgument,
                         AllOf(HasSubstr("\"tp\""), HasSubstr(order), HasSubstr("at least 1"))));
  }
}

TEST(FromPlacementsTest, RefusesWhatNoLayoutSays) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  for (const char* placements :
       {"S(0,unit(2)),S(0,unit(4))", "S(0,unit(2)),S(0,block(2))", "S(0,cyclic(2)),S(0,block(2))",
        "S(0,cyclic(2)),S(0)", "S(0,block(2)),S(0,cyclic(2))"}) {
    EXPECT_THAT(ErrorFrom(mesh, placements, {16}),
                StatusIs(kInvalidArgument,
                         AllOf(HasSubstr("dimension 0 of size 16"), HasSubstr("\"dp\" as S(0,"),
                               HasSubstr("\"tp\""), HasSubstr("the same order"))))
        << placements;
  }
  EXPECT_THAT(ErrorFrom(mesh, "S(0),S(0,unit(4))", {12}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"dp\" as S(0) would cut groups of 4"),
                                               HasSubstr("\"tp\" as S(0,unit(4))"))));
}

// What a rank holds by the words of placement.h: each axis deals what the ones before it left.
std::vector<int64_t> DealByOrder(const std::vector<int64_t>& list, ShardOrder order, int64_t parts,
                                 int64_t index) {
  const int64_t n = static_cast<int64_t>(list.size());
  if (order.kind == ShardOrder::Kind::kContiguous) return DealByHand(list, parts, false, index);
  if (order.kind == ShardOrder::Kind::kZigzag) return DealByHand(list, parts, true, index);
  std::vector<int64_t> dealt;
  for (int64_t i = 0; i < n; ++i) {
    int64_t owner = 0;
    if (order.kind == ShardOrder::Kind::kUnit) {
      const int64_t units = (n + order.n - 1) / order.n;
      owner = i / order.n / ((units + parts - 1) / parts);
    } else if (order.kind == ShardOrder::Kind::kCyclic) {
      const int64_t round = (n + order.n - 1) / order.n;
      owner = i % round / ((round + parts - 1) / parts);
    } else {
      owner = i / order.n % parts;
    }
    if (owner == index) dealt.push_back(list[i]);
  }
  return dealt;
}

std::vector<int64_t> DealByPlacements(const DeviceMesh& mesh, const Placements& placements,
                                      int64_t n, int rank) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < n; ++i) list.push_back(i);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    list = DealByOrder(list, placements[axis].order(), mesh.axis_size(axis),
                       mesh.Coordinate(rank)[axis]);
  }
  return list;
}

const std::vector<Placement>& SmallPlacements() {
  static const auto* const kPlacements = new std::vector<Placement>{Replicate(),
                                                                    Shard(0),
                                                                    Shard(0, ShardOrder::Zigzag()),
                                                                    Shard(0, ShardOrder::Unit(1)),
                                                                    Shard(0, ShardOrder::Unit(2)),
                                                                    Shard(0, ShardOrder::Unit(3)),
                                                                    Shard(0, ShardOrder::Cyclic(1)),
                                                                    Shard(0, ShardOrder::Cyclic(2)),
                                                                    Shard(0, ShardOrder::Cyclic(3)),
                                                                    Shard(0, ShardOrder::Cyclic(5)),
                                                                    Shard(0, ShardOrder::Block(1)),
                                                                    Shard(0, ShardOrder::Block(2)),
                                                                    Shard(0, ShardOrder::Block(3))};
  return *kPlacements;
}

// All placements of the axes of `mesh` from SmallPlacements().
std::vector<Placements> AllPlacements(const DeviceMesh& mesh) {
  std::vector<Placements> all = {{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Placements> longer;
    for (const Placements& placements : all) {
      for (const Placement& placement : SmallPlacements()) {
        longer.push_back(placements);
        longer.back().push_back(placement);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Whether FromPlacements promises a layout whatever the sizes.
bool AlwaysSays(const DeviceMesh& mesh, const Placements& placements) {
  std::vector<ShardOrder> orders;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const Placement& p = placements[axis];
    if (!p.is_shard() || mesh.axis_size(axis) == 1) continue;
    orders.push_back(p.order());
  }
  const auto is_plain = [](const ShardOrder& order) {
    return order.kind == ShardOrder::Kind::kContiguous || order.kind == ShardOrder::Kind::kZigzag;
  };
  const auto is_first = [&](const ShardOrder& order) { return order == orders[0]; };
  return orders.size() <= 1 || std::all_of(orders.begin(), orders.end(), is_plain) ||
         std::all_of(orders.begin(), orders.end(), is_first);
}

TEST(FromPlacementsTest, EachAxisDealsWhatTheOnesBeforeLeft) {
  int64_t said = 0, refused = 0;
  for (const char* text :
       {"a=2", "a=3", "a=4", "a=2,b=2", "a=3,b=2", "a=2,one=1,b=3", "a=2,b=2,c=2"}) {
    const DeviceMesh mesh = MeshOf(text);
    for (const Placements& placements : AllPlacements(mesh)) {
      for (int64_t n = 0; n <= 18; ++n) {
        const absl::StatusOr<Layout> layout = Layout::FromPlacements(mesh, placements, {n});
        layout.ok() ? ++said : ++refused;
        if (!layout.ok()) {
          ASSERT_FALSE(AlwaysSays(mesh, placements)) << layout.status();
          continue;
        }
        for (int rank = 0; rank < mesh.size(); ++rank) {
          ASSERT_EQ(HeldByHand(mesh, layout->dim(0), n, mesh.Coordinate(rank)),
                    DealByPlacements(mesh, placements, n, rank))
              << ToString(placements) << " of " << n << " is " << layout->ToString();
        }
        ASSERT_THAT(layout->ToPlacements({n}), IsOk()) << ToString(placements);
        const Placements back = *layout->ToPlacements({n});
        ASSERT_THAT(Layout::FromPlacements(mesh, back, {n}), IsOkAndHolds(*layout));
      }
    }
  }
  EXPECT_GT(said, 5'000);
  EXPECT_GT(refused, 1'000);
}

TEST(ToPlacementsTest, SaysWhatItCan) {
  const DeviceMesh mesh = MeshOf("one=1,a=2,b=2,c=3");
  EXPECT_EQ(To(LayoutOf(mesh, "[a,b] [c]"), {8, 3}), "R,S(0),S(0),S(1)");
  EXPECT_EQ(To(LayoutOf(mesh, "[a:zigzag] P(max: b,c)"), {8}), "R,S(0,zigzag),P(max),P(max)");
  EXPECT_EQ(To(LayoutOf(mesh, "[a,b x 4]"), {16}), "R,S(0,unit(4)),S(0,unit(4)),R");
  EXPECT_EQ(To(LayoutOf(mesh, "[a x 6(b)]"), {24}), "R,S(0),S(0,cyclic(2)),R");
  EXPECT_EQ(To(LayoutOf(mesh, "[_ x 3(c) x 2]"), {24}), "R,R,R,S(0,block(2))");
  EXPECT_EQ(To(LayoutOf(mesh, "scalar"), {}), "R,R,R,R");
}

TEST(ToPlacementsTest, RefusesTheRest) {
  const DeviceMesh mesh = MeshOf("a=2,b=2");
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"[b,a]", 8},          {"[a x 3(b)]", 7},        {"[a x 4 x 2(b)]", 16},
      {"[a:zigzag x 2]", 8}, {"[_ x 4(a:zigzag)]", 8}, {"[a x 4(b:zigzag)]", 8}};
  for (const auto& [text, n] : cases) {
    EXPECT_THAT(
        LayoutOf(mesh, text).ToPlacements({n}),
        StatusIs(kInvalidArgument, AllOf(HasSubstr(text), HasSubstr(absl::StrCat("[", n, "]")),
                                         HasSubstr("use the layout itself"))))
        << text;
  }
}

TEST(ToPlacementsTest, WhatItSaysIsTheLayout) {
  int64_t said = 0;
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      const Layout layout = *Layout::Create(mesh, {dim});
      for (int64_t n : {0, 1, 5, 12, 16}) {
        const absl::StatusOr<Placements> placements = layout.ToPlacements({n});
        if (!placements.ok()) continue;
        ++said;
        ASSERT_THAT(Layout::FromPlacements(mesh, *placements, {n}), IsOkAndHolds(layout));
      }
    }
  }
  EXPECT_GT(said, 1'000);
}

}  // namespace
}  // namespace dtensor
