#include "dtensor/layout/even_share.h"

#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// The elements of a region in row-major order, each as its indices in base 100.
std::vector<int64_t> Elements(const Region& region) {
  std::vector<int64_t> elements = {0};
  for (const IndexSet& set : region) {
    std::vector<int64_t> next;
    for (int64_t prefix : elements) {
      for (int64_t i = 0; i < set.size(); ++i) next.push_back(prefix * 100 + set.At(i));
    }
    elements = next;
  }
  return elements;
}

// The shares of a region follow each other in its order, none larger than an even one.
void ExpectShares(const Region& region, int64_t parts) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < parts; ++i) {
    int64_t size = 0;
    const std::vector<Region> share = ShareOf({region}, parts, i);
    EXPECT_LE(share.size(), 2 * region.size() - 1);
    for (const Region& part : share) {
      size += NumElements(part);
      for (int64_t element : Elements(part)) elements.push_back(element);
    }
    EXPECT_LE(size, (NumElements(region) + parts - 1) / parts);
  }
  EXPECT_EQ(elements, Elements(region));
}

TEST(RegionShareTest, SharesAreEvenAndInOrder) {
  const IndexSet gaps = IndexSet::FromIntervals({{1, 2, 4, 2}, {20, 1, 0, 1}});
  for (const Region& region : std::vector<Region>{
           {IndexSet::Interval(0, 7)},
           {gaps},
           {IndexSet::Interval(0, 3), IndexSet::Interval(0, 5)},
           {gaps, IndexSet::Interval(2, 4), gaps},
           {IndexSet::Interval(0, 1), IndexSet::Interval(0, 1), IndexSet::Interval(0, 5)},
           {IndexSet::Interval(0, 2), IndexSet::Interval(0, 3), IndexSet::Interval(0, 2),
            IndexSet::Interval(0, 3)},
           {IndexSet(), IndexSet::Interval(0, 3)}}) {
    SCOPED_TRACE(ToString(region));
    for (int64_t parts : {1, 2, 3, 4, 7, 11, 40}) ExpectShares(region, parts);
  }
}

TEST(RegionShareTest, WholeRowsAreOneRegion) {
  const Region region = {IndexSet::Interval(0, 8), IndexSet::Interval(0, 5)};
  EXPECT_EQ(ShareOf({region}, 4, 1),
            (std::vector<Region>{{IndexSet::Interval(2, 4), IndexSet::Interval(0, 5)}}));
  EXPECT_EQ(ShareOf({region}, 1, 0), std::vector<Region>{region});
  EXPECT_TRUE(ShareOf({Region{IndexSet()}}, 2, 0).empty());
}

TEST(RegionShareTest, OfSeveralRegions) {
  const Region one = {IndexSet::Interval(0, 3)}, two = {IndexSet::Interval(5, 10)};
  EXPECT_EQ(ShareOf({one, two}, 2, 0), (std::vector<Region>{one, {IndexSet::Interval(5, 6)}}));
  EXPECT_EQ(ShareOf({one, two}, 2, 1), (std::vector<Region>{{IndexSet::Interval(6, 10)}}));
}

TEST(RegionShareTest, ByWeight) {
  const Region region = {IndexSet::Interval(0, 10)};
  const std::vector<int64_t> weights = {2, 0, 1};
  EXPECT_EQ(ShareOf({region}, weights, 0), (std::vector<Region>{{IndexSet::Interval(0, 6)}}));
  EXPECT_TRUE(ShareOf({region}, weights, 1).empty());
  EXPECT_EQ(ShareOf({region}, weights, 2), (std::vector<Region>{{IndexSet::Interval(6, 10)}}));
}

}  // namespace
}  // namespace dtensor
