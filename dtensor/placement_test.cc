#include "dtensor/placement.h"

#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "dtensor/layout_testing.h"
#include "dtensor/runtime/core/status_matchers.h"
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
      {Shard(1, Order::Unit(16)), "S(1,unit(16))"},
      {Shard(0, Order::Cyclic(2)), "S(0,cyclic(2))"},
      {Shard(2, Order::Block(1)), "S(2,block(1))"},
      {Shard(0, Order::Zigzag()), "S(0,zigzag)"},
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
      return Shard(dim, Order::Unit(1 + random.Below(1000)));
    case 3:
      return Shard(dim, Order::Cyclic(1 + random.Below(1000)));
    case 4:
      return Shard(dim, Order::Block(1 + random.Below(1000)));
    case 5:
      return Shard(dim, Order::Zigzag());
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
  constexpr Placement shard = Shard(3, Order::Block(2));
  static_assert(shard.is_shard() && shard.dim() == 3 && shard.order() == Order::Block(2));
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
  EXPECT_THAT(Placement::Parse(" S( 0 , unit( 4 ) ) "), IsOkAndHolds(Shard(0, Order::Unit(4))));
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
  for (const char* text :
       {"", "S", "S()", "S(0", "S(x)", "S(0,)", "S(0,unit)", "S(0,unit(2)", "S(0,zigzag(2))",
        "S(0,striped)", "S(99999999999)", "P", "P()", "P(mean)", "R R", "RS(0)", "Shard(0)", "-"}) {
    EXPECT_THAT(Placement::Parse(text),
                StatusIs(kInvalidArgument, AllOf(HasSubstr(std::string("\"") + text + "\""),
                                                 HasSubstr("S(0,block(1))"))))
        << text;
  }
}

TEST(PlacementsTest, PrintAndParse) {
  const Placements placements = {Partial(), Shard(0, Order::Unit(16)), Replicate()};
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
  EXPECT_EQ(ToString(Order::Contiguous()), "contiguous");
  EXPECT_EQ(ToString(Order::Cyclic(3)), "cyclic(3)");
  EXPECT_EQ(ToString(Order::Zigzag()), "zigzag");
}

}  // namespace
}  // namespace dtensor
