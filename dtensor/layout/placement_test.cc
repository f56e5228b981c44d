#include "dtensor/layout/placement.h"

#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

struct Spelling {
  Placement placement;
  std::string text;
};

const std::vector<Spelling>& Spellings() {
  static const auto* const kSpellings = new std::vector<Spelling>{
      {Replicate(), "R"},
      {Shard(0), "S(0)"},
      {Shard(-1), "S(-1)"},
      {Shard(1, ShardOrder::Unit(16)), "S(1,unit(16))"},
      {Shard(0, ShardOrder::Cyclic(2)), "S(0,cyclic(2))"},
      {Shard(2, ShardOrder::Block(1)), "S(2,block(1))"},
      {Shard(0, ShardOrder::Zigzag()), "S(0,zigzag)"},
      {Partial(), "P(sum)"},
      {Partial(ReduceOp::kAvg), "P(avg)"},
      {Partial(ReduceOp::kMax), "P(max)"},
      {Partial(ReduceOp::kMin), "P(min)"},
      {Partial(ReduceOp::kProduct), "P(product)"},
  };
  return *kSpellings;
}

Placement RandomPlacement(TestRandom& random) {
  const int dim = random.Below(9) - 4;
  switch (random.Below(7)) {
    case 0:
      return Replicate();
    case 1:
      return Shard(dim);
    case 2:
      return Shard(dim, ShardOrder::Unit(1 + random.Below(1000)));
    case 3:
      return Shard(dim, ShardOrder::Cyclic(1 + random.Below(1000)));
    case 4:
      return Shard(dim, ShardOrder::Block(1 + random.Below(1000)));
    case 5:
      return Shard(dim, ShardOrder::Zigzag());
    default:
      return Partial(static_cast<ReduceOp>(random.Below(5)));
  }
}

TEST(PlacementTest, IsReplicateByDefault) {
  EXPECT_EQ(Placement(), Replicate());
  EXPECT_TRUE(Placement().is_replicate());
  EXPECT_FALSE(Placement().is_shard() || Placement().is_partial());
}

TEST(PlacementTest, RemembersItsParts) {
  constexpr Placement shard = Shard(3, ShardOrder::Block(2));
  static_assert(shard.is_shard() && shard.dim() == 3 && shard.order() == ShardOrder::Block(2));
  constexpr Placement partial = Partial(ReduceOp::kMax);
  static_assert(partial.is_partial() && partial.op() == ReduceOp::kMax);
}

TEST(PlacementTest, PrintsAsItIsSpelled) {
  for (const Spelling& s : Spellings()) EXPECT_EQ(s.placement.ToString(), s.text);
}

TEST(PlacementTest, ParsesWhatItPrints) {
  for (const Spelling& s : Spellings()) {
    EXPECT_THAT(Placement::Parse(s.text), IsOkAndHolds(s.placement)) << s.text;
  }
}

TEST(PlacementTest, ParsesBlanks) {
  EXPECT_THAT(Placement::Parse(" S( 0 , unit( 4 ) ) "),
              IsOkAndHolds(Shard(0, ShardOrder::Unit(4))));
}

TEST(PlacementTest, ParsesTheWordsOfCppAndPython) {
  EXPECT_THAT(Placement::Parse("Replicate()"), IsOkAndHolds(Replicate()));
  EXPECT_THAT(Placement::Parse("Shard(1)"), IsOkAndHolds(Shard(1)));
  EXPECT_THAT(Placement::Parse("Shard( dim = -1 )"), IsOkAndHolds(Shard(-1)));
  EXPECT_THAT(Placement::Parse("Shard(0, zigzag)"), IsOkAndHolds(Shard(0, ShardOrder::Zigzag())));
  EXPECT_THAT(Placement::Parse("Partial()"), IsOkAndHolds(Partial()));
  EXPECT_THAT(Placement::Parse("Partial(max)"), IsOkAndHolds(Partial(ReduceOp::kMax)));
  for (const char* text :
       {"Partial(reduce_op=max)", "Partial( reduce_op = 'max' )", "Partial(\"max\")", "P('max')"}) {
    EXPECT_THAT(Placement::Parse(text), IsOkAndHolds(Partial(ReduceOp::kMax))) << text;
  }
  for (const char* text : {"[Shard(dim=0), Replicate()]", "(Shard(dim=0), Replicate())",
                           "(S(0), R,)", " [S(0),R , ] "}) {
    EXPECT_THAT(ParsePlacements(text), IsOkAndHolds(Placements{Shard(0), Replicate()})) << text;
  }
  EXPECT_THAT(ParsePlacements("(Shard(dim=0),)"), IsOkAndHolds(Placements{Shard(0)}));
  EXPECT_THAT(ParsePlacements("[]"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParsePlacements("()"), IsOkAndHolds(IsEmpty()));
}

TEST(PlacementTest, ErrorsSayWhatIsWanted) {
  const auto error = [](const char* text) {
    return std::string(ParsePlacements(text).status().message());
  };
  EXPECT_THAT(error("S(x)"), HasSubstr("expected a dimension, a whole number, at \"x)\""));
  EXPECT_THAT(error("S(0.5)"), HasSubstr("expected ')' at \".5)\""));
  EXPECT_THAT(error("S(0,unit(1e3))"), HasSubstr("expected ')' at \"e3))\""));
  EXPECT_THAT(error("S(0,striped)"), HasSubstr("expected unit, cyclic, block or zigzag"));
  EXPECT_THAT(error("P(mean)"), HasSubstr("expected sum, avg, max, min or product"));
  EXPECT_THAT(error("dp: S(0), tp: R"), HasSubstr("without names of axes"));
  EXPECT_THAT(error("[S(0)"), HasSubstr("\"[S(0)\""));
  EXPECT_THAT(error("(S(0), R"), HasSubstr("\"(S(0), R\""));
  EXPECT_THAT(error("[S(0),,]"), HasSubstr("\"\""));
  for (const char* lone : {"(,)", "[,]", "[ , ]"}) {
    EXPECT_THAT(error(lone), HasSubstr("expected a placement")) << lone;
  }
  EXPECT_THAT(error("Partial('sum)"), HasSubstr("expected the closing quote at \")\""));
  EXPECT_THAT(error("Partial(reduce_op)"), HasSubstr("expected sum, avg"));
  EXPECT_THAT(error("Partial(op=sum)"), HasSubstr("expected sum, avg"));
  EXPECT_THAT(error("[_StridedShard(dim=0, split_factor=2), Shard(dim=0)]"),
              AllOf(HasSubstr("\"_StridedShard(dim=0, split_factor=2)\""),
                    HasSubstr("write the layout"), HasSubstr("[tp,dp] []")));
  EXPECT_THAT(error("_S(0, 2)"), HasSubstr("write the layout"));
}

TEST(PlacementTest, RandomTextsReadBackOrAreRefused) {
  const std::vector<std::string> pieces = {
      "R",    "S(",          "P(",       "0",           ")",    ",",  "unit(", "block(1)",
      " ",    "zigzag",      "sum",      "[",           "]",    "-2", "S(1)",  "Shard(",
      "dim=", "Replicate()", "Partial(", "99999999999", "\xFF", "(",  "'",     "reduce_op="};
  TestRandom random;
  int read = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string text;
    for (int left = random.Below(8); left > 0; --left) {
      text += pieces[random.Below(static_cast<int>(pieces.size()))];
    }
    const absl::StatusOr<Placements> placements = ParsePlacements(text);
    if (!placements.ok()) continue;
    ++read;
    ASSERT_THAT(ParsePlacements(ToString(*placements)), IsOkAndHolds(*placements)) << text;
  }
  EXPECT_GT(read, 1000);
}

TEST(PlacementTest, DistinctPlacementsAreUnequalAndPrintApart) {
  for (const Spelling& a : Spellings()) {
    for (const Spelling& b : Spellings()) {
      const bool same = &a == &b;
      EXPECT_EQ(a.placement == b.placement, same) << a.text << " " << b.text;
      EXPECT_EQ(absl::HashOf(a.placement) == absl::HashOf(b.placement), same)
          << a.text << " " << b.text;
      EXPECT_EQ(a.placement.ToString() == b.placement.ToString(), same);
    }
  }
}

TEST(PlacementTest, RefusesOtherTexts) {
  for (const char* text : {"",
                           "S",
                           "S()",
                           "S(0",
                           "S(x)",
                           "S(0,)",
                           "S(0,unit)",
                           "S(0,unit(2)",
                           "S(0,zigzag(2))",
                           "S(0,striped)",
                           "S(99999999999)",
                           "P",
                           "P()",
                           "P(mean)",
                           "R R",
                           "RS(0)",
                           "Shard",
                           "Shard()",
                           "Replicate",
                           "Partial",
                           "-"}) {
    EXPECT_THAT(Placement::Parse(text),
                StatusIs(kInvalidArgument, AllOf(HasSubstr(std::string("\"") + text + "\""),
                                                 HasSubstr("S(0,block(1))"))))
        << text;
  }
}

TEST(PlacementsTest, PrintAndParse) {
  const Placements placements = {Partial(), Shard(0, ShardOrder::Unit(16)), Replicate()};
  EXPECT_EQ(ToString(placements), "P(sum),S(0,unit(16)),R");
  EXPECT_THAT(ParsePlacements("P(sum), S(0, unit(16)), R"), IsOkAndHolds(placements));
  EXPECT_THAT(ParsePlacements(""), IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(ToString(Placements()), "");
}

TEST(PlacementsTest, ErrorNamesThePart) {
  EXPECT_THAT(ParsePlacements("R,S(0,unit(2)),Q,R"),
              StatusIs(kInvalidArgument, HasSubstr("\"Q\"")));
  EXPECT_THAT(ParsePlacements("R,"), StatusIs(kInvalidArgument, HasSubstr("\"\"")));
  EXPECT_THAT(ParsePlacements("R,S(0"), StatusIs(kInvalidArgument, HasSubstr("\"S(0\"")));
}

TEST(PlacementsTest, ParseWhatRandomOnesPrint) {
  TestRandom random;
  for (int round = 0; round < 1000; ++round) {
    Placements placements(random.Below(6));
    for (Placement& placement : placements) placement = RandomPlacement(random);
    EXPECT_THAT(ParsePlacements(ToString(placements)), IsOkAndHolds(placements))
        << ToString(placements);
  }
}

TEST(OrderTest, Prints) {
  EXPECT_EQ(ToString(ShardOrder::Contiguous()), "contiguous");
  EXPECT_EQ(ToString(ShardOrder::Cyclic(3)), "cyclic(3)");
  EXPECT_EQ(ToString(ShardOrder::Zigzag()), "zigzag");
}

}  // namespace
}  // namespace dtensor
