#include "dtensor/bench/redistribute_grid.h"

#include <set>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::bench {
namespace {

using ::testing::ElementsAre;

TEST(GridTest, NamesSayWhatARowIsAndAreUnlike) {
  std::set<std::string> names;
  for (const Row& row : Grid(/*wide=*/true)) {
    EXPECT_TRUE(names.insert(row.Name()).second) << row.Name();
    EXPECT_EQ(row.from.size(), row.mesh.size()) << row.Name();
    EXPECT_EQ(row.to.size(), row.mesh.size()) << row.Name();
  }
  EXPECT_TRUE(names.contains("2/S0->R/f32/64MiB"));
  EXPECT_TRUE(names.contains("2/P->S0/f32/1000003"));
  EXPECT_TRUE(names.contains("2/S0->S1/f32/5x5"));
  EXPECT_TRUE(names.contains("2x2/P,S0->S0,R/bf16/1KiB"));
  EXPECT_TRUE(names.contains("2x2x2/P,P,P->R,R,R/f32/4MiB"));
}

TEST(GridTest, SizesAreThoseOfTheNames) {
  for (const Row& row : Grid(/*wide=*/false)) {
    const std::string name = row.Name();
    if (absl::EndsWith(name, "/64MiB")) {
      EXPECT_EQ(row.bytes(), 64 << 20) << name;
    }
    if (absl::EndsWith(name, "/1KiB")) {
      EXPECT_EQ(row.bytes(), 1 << 10) << name;
    }
  }
}

Placement S(int dim) { return Shard(dim); }
Placement R() { return Replicate(); }
Placement P() { return Partial(); }

TEST(GreedyStepsTest, OneAxisGoesThere) {
  EXPECT_THAT(GreedySteps({S(0)}, {S(1)}), ElementsAre(Placements{S(1)}));
}

TEST(GreedyStepsTest, GathersInnerShardsBeforeTheOuterOneMoves) {
  EXPECT_THAT(GreedySteps({S(0), S(1)}, {S(1), S(0)}),
              ElementsAre(Placements{S(0), R()}, Placements{S(1), R()}, Placements{S(1), S(0)}));
  EXPECT_THAT(GreedySteps({S(0), S(0)}, {R(), S(0)}),
              ElementsAre(Placements{S(0), R()}, Placements{R(), R()}, Placements{R(), S(0)}));
  EXPECT_THAT(GreedySteps({P(), S(0)}, {S(0), S(0)}),
              ElementsAre(Placements{P(), R()}, Placements{S(0), R()}, Placements{S(0), S(0)}));
}

TEST(GreedyStepsTest, WithoutShardsFromTheOutermostAxisOn) {
  EXPECT_THAT(GreedySteps({P(), P()}, {S(0), S(1)}),
              ElementsAre(Placements{S(0), P()}, Placements{S(0), S(1)}));
}

TEST(GreedyStepsTest, WhatLiesRightStays) {
  EXPECT_THAT(GreedySteps({S(0), S(1)}, {S(0), S(1)}), ElementsAre());
  EXPECT_THAT(GreedySteps({S(0), S(1)}, {S(0), R()}), ElementsAre(Placements{S(0), R()}));
}

}  // namespace
}  // namespace dtensor::bench
