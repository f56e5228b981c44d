#include "dtensor/layout/regions.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;

using Coordinate = absl::InlinedVector<int, 4>;

constexpr int64_t kMaxSize = 17;

Layout LayoutOf(const DeviceMesh& mesh, const std::string& text) {
  absl::StatusOr<Layout> layout = Layout::Parse(mesh, text);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.value_or(Layout());
}

Layout OneDim(const DeviceMesh& mesh, const DimLayout& dim) {
  absl::StatusOr<Layout> layout = Layout::Create(mesh, {dim});
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.value_or(Layout::Replicated(mesh, 1));
}

std::string Describe(const Layout& layout, int64_t n, int rank) {
  return absl::StrCat(layout.ToString(), " of ", n, " on ", layout.mesh().ToString(), ", rank ",
                      rank);
}

// Calls fn(layout, dim) for every small layout of one dimension.
template <typename Fn>
void ForEachSmallLayout(Fn fn) {
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) fn(OneDim(mesh, dim), dim);
  }
}

std::vector<IndexSet> RegionsOfRanks(const Layout& layout, int64_t n) {
  std::vector<IndexSet> regions;
  for (int rank = 0; rank < layout.mesh().size(); ++rank) {
    regions.push_back(DimRegion(layout, 0, n, layout.mesh().Coordinate(rank)));
  }
  return regions;
}

std::vector<std::string> Texts(const Layout& layout, const std::vector<int64_t>& shape) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < layout.mesh().size(); ++rank) {
    texts.push_back(ToString(Regions(layout, shape, layout.mesh().Coordinate(rank))));
  }
  return texts;
}

TEST(RegionsTest, OfTheOrders) {
  const DeviceMesh mesh = MeshOf("tp=2");
  const auto of = [&](const char* text, int64_t n) { return Texts(LayoutOf(mesh, text), {n}); };
  EXPECT_THAT(of("[tp]", 5), ElementsAre("{0..2}", "{3..4}"));
  EXPECT_THAT(of("[tp x 4]", 12), ElementsAre("{0..7}", "{8..11}"));
  EXPECT_THAT(of("[_ x 4(tp)]", 8), ElementsAre("{0..1 +4 x2}", "{2..3 +4 x2}"));
  EXPECT_THAT(of("[_ x 2(tp) x 3]", 12), ElementsAre("{0..2 +6 x2}", "{3..5 +6 x2}"));
  EXPECT_THAT(of("[tp:zigzag]", 8), ElementsAre("{0..1 +6 x2}", "{2..5}"));
}

TEST(RegionsTest, OfSeveralDimensions) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_THAT(Texts(LayoutOf(mesh, "[dp] [tp]"), {3, 4}),
              ElementsAre("{0..1} x {0..1}", "{0..1} x {2..3}", "{2} x {0..1}", "{2} x {2..3}"));
  EXPECT_THAT(Texts(LayoutOf(mesh, "[dp,tp]"), {5}), ElementsAre("{0..1}", "{2}", "{3}", "{4}"));
  EXPECT_THAT(Texts(LayoutOf(mesh, "[tp,dp]"), {5}), ElementsAre("{0..1}", "{3}", "{2}", "{4}"));
}

TEST(RegionsTest, OfAScalarAndOfNothing) {
  const DeviceMesh mesh = MeshOf("dp=2");
  EXPECT_THAT(Texts(Layout::Replicated(mesh, 0), {}), ElementsAre("scalar", "scalar"));
  EXPECT_THAT(Texts(LayoutOf(mesh, "[dp] []"), {0, 3}), ElementsAre("{} x {0..2}", "{} x {0..2}"));
}

TEST(RegionsTest, TwoAxesAreNotOneOfTheirProduct) {
  const std::vector<std::string> one = Texts(LayoutOf(MeshOf("tp=4"), "[tp]"), {5});
  EXPECT_THAT(one, ElementsAre("{0..1}", "{2..3}", "{4}", "{}"));
  // Chunking once by the product would break the law of gathering the minor axis.
  EXPECT_NE(Texts(LayoutOf(MeshOf("dp=2,tp=2"), "[dp,tp]"), {5}), one);
}

TEST(RegionsTest, PartialAndReplicatedAxesDoNotMatter) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2,ep=2");
  for (const char* text : {"[tp]", "[tp] P(sum: dp)", "[tp] P(max: dp,ep)"}) {
    const std::vector<std::string> texts = Texts(LayoutOf(mesh, text), {4});
    EXPECT_THAT(texts, ElementsAre("{0..1}", "{0..1}", "{2..3}", "{2..3}",  //
                                   "{0..1}", "{0..1}", "{2..3}", "{2..3}"));
  }
}

TEST(RegionsTest, AgreeWithTheWordsForEverySmallLayout) {
  int64_t cases = 0;
  ForEachSmallLayout([&](const Layout& layout, const DimLayout& dim) {
    for (int64_t n = 0; n <= kMaxSize; ++n) {
      for (int rank = 0; rank < layout.mesh().size(); ++rank, ++cases) {
        const Coordinate coordinate = layout.mesh().Coordinate(rank);
        const std::vector<int64_t> held = HeldByHand(layout.mesh(), dim, n, coordinate);
        ASSERT_EQ(Elements(DimRegion(layout, 0, n, coordinate)), held) << Describe(layout, n, rank);
        ASSERT_THAT(layout.LocalShape({n}, rank), ElementsAre(held.size()))
            << Describe(layout, n, rank);
      }
    }
  });
  EXPECT_GT(cases, 100'000);
}

TEST(RegionsTest, ShardsPartitionTheDimension) {
  ForEachSmallLayout([](const Layout& layout, const DimLayout&) {
    for (int64_t n = 0; n <= kMaxSize; ++n) {
      std::vector<int64_t> all;
      for (int rank : layout.mesh().Group(0, layout.sharding_axes())) {
        const IndexSet held = DimRegion(layout, 0, n, layout.mesh().Coordinate(rank));
        for (int64_t index : Elements(held)) all.push_back(index);
      }
      std::sort(all.begin(), all.end());
      ASSERT_EQ(all, Elements(IndexSet::Interval(0, n))) << Describe(layout, n, -1);
    }
  });
}

TEST(RegionsTest, LocalPositionsAscend) {
  ForEachSmallLayout([](const Layout& layout, const DimLayout&) {
    for (const IndexSet& set : RegionsOfRanks(layout, kMaxSize)) {
      const std::vector<int64_t> elements = Elements(set);
      ASSERT_TRUE(std::is_sorted(elements.begin(), elements.end(), std::less_equal<>()))
          << layout.ToString();
    }
  });
}

TEST(RegionsTest, OverAxesIsTheUnionOverTheOthers) {
  for (const char* text : {"a=2,b=2", "a=2,b=3", "a=3,b=2"}) {
    const DeviceMesh mesh = MeshOf(text);
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      const Layout layout = OneDim(mesh, dim);
      for (const AxisList& axes : {AxisList{}, AxisList{0}, AxisList{1}, AxisList{1, 0}}) {
        for (int rank = 0; rank < mesh.size(); ++rank) {
          const Coordinate coordinate = mesh.Coordinate(rank);
          AxisList others;
          for (int axis : {0, 1}) {
            if (std::find(axes.begin(), axes.end(), axis) == axes.end()) others.push_back(axis);
          }
          for (int64_t n : {0, 1, 4, 7, 12, 17}) {
            std::vector<int64_t> held;
            for (int peer : mesh.Group(rank, others)) {
              for (int64_t i : HeldByHand(mesh, dim, n, mesh.Coordinate(peer))) held.push_back(i);
            }
            std::sort(held.begin(), held.end());
            held.erase(std::unique(held.begin(), held.end()), held.end());
            ASSERT_EQ(Elements(DimRegionOverAxes(layout, 0, n, coordinate, axes)), held)
                << Describe(layout, n, rank);
          }
        }
      }
    }
  }
}

TEST(RegionsTest, GatheringTheMinorAxisGivesTheLayoutOfTheMajorAxes) {
  int64_t cases = 0;
  ForEachSmallLayout([&](const Layout& layout, const DimLayout& dim) {
    for (size_t f = 0; f < dim.size(); ++f) {
      if (dim[f].splits.empty()) continue;
      DimLayout majors = dim;
      const int minor = majors[f].splits.back().axis;
      majors[f].splits.pop_back();
      const Layout gathered = OneDim(layout.mesh(), majors);
      for (int64_t n = 0; n <= kMaxSize; ++n) {
        for (int rank = 0; rank < layout.mesh().size(); ++rank, ++cases) {
          IndexSet all;
          for (int peer : layout.mesh().Group(rank, {minor})) {
            all = all.Union(DimRegion(layout, 0, n, layout.mesh().Coordinate(peer)));
          }
          ASSERT_EQ(all, DimRegion(gathered, 0, n, layout.mesh().Coordinate(rank)))
              << Describe(layout, n, rank);
        }
      }
    }
  });
  EXPECT_GT(cases, 100'000);
}

TEST(RegionsTest, EqualLayoutsHaveEqualRegions) {
  absl::flat_hash_map<Layout, std::vector<IndexSet>> seen;
  int64_t layouts = 0;
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      const Layout layout = OneDim(mesh, dim);
      std::vector<IndexSet> regions;
      for (int64_t n = 0; n <= kMaxSize; ++n) {
        for (const IndexSet& set : RegionsOfRanks(layout, n)) regions.push_back(set);
      }
      const auto [entry, is_new] = seen.try_emplace(layout, regions);
      ASSERT_EQ(entry->second, regions) << layout.ToString();
      ++layouts;
    }
  }
  // Or else nothing has been compared.
  EXPECT_LT(static_cast<int64_t>(seen.size()), layouts);
}

TEST(RegionsTest, RandomLayoutsOfManyAxesAgreeWithTheWords) {
  TestRandom random;
  const DeviceMesh mesh = MeshOf("a=2,b=3,one=1,c=2,d=4");
  for (int round = 0; round < 300; ++round) {
    std::vector<int> axes = {0, 1, 2, 3, 4};
    DimLayout dim(1);
    for (int f = random.Below(4); f > 0; --f) dim.push_back({1 + random.Below(7), {}});
    for (size_t i = 0; i < axes.size(); ++i) {
      std::swap(axes[i], axes[i + random.Below(static_cast<int>(axes.size() - i))]);
      LayoutFactor& factor = dim[random.Below(static_cast<int>(dim.size()))];
      if (random.Below(4) > 0) factor.splits.push_back({axes[i], random.Coin()});
    }
    const Layout layout = OneDim(mesh, dim);
    const int64_t n = random.Below(200);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int64_t> held = HeldByHand(mesh, dim, n, mesh.Coordinate(rank));
      ASSERT_EQ(Elements(DimRegion(layout, 0, n, mesh.Coordinate(rank))), held)
          << Describe(layout, n, rank);
      ASSERT_THAT(layout.LocalShape({n}, rank), ElementsAre(held.size()))
          << Describe(layout, n, rank);
    }
  }
}

TEST(RegionsTest, OfALargeTensorAreAFewRuns) {
  const DeviceMesh mesh = MeshOf("dp=1000,tp=100");
  constexpr int64_t kSize = int64_t{1} << 50;
  for (const char* text : {"[dp,tp]", "[tp x 16]", "[_ x 4096(tp)]", "[dp:zigzag,tp]",
                           "[_ x 100(tp)]", "[dp x 4096(tp)]"}) {
    const Layout layout = LayoutOf(mesh, text);
    const IndexSet region = DimRegion(layout, 0, kSize, mesh.Coordinate(4711));
    EXPECT_LE(region.runs().size(), 4u) << text;
    EXPECT_THAT(layout.LocalShape({kSize}, 4711), ElementsAre(region.size())) << text;
  }
}

TEST(RegionsTest, PatternsThatRepeatWithoutEndAreRefused) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=4");
  constexpr int64_t kLarge = int64_t{1} << 40;
  for (const char* text : {"[_ x 16(tp:zigzag)]", "[_ x 6(tp:zigzag)]", "[_ x 4(dp) x 8(tp)]",
                           "[dp x 16(tp:zigzag)]"}) {
    const Layout layout = LayoutOf(mesh, text);
    DT_EXPECT_OK(CheckRegions(layout, {4096}));
    EXPECT_THAT(CheckRegions(layout, {kLarge}),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("dimension 0")));
  }
  for (const char* text : {"[_ x 64(dp,tp)]", "[dp:zigzag x 4096(tp)]", "[_ x 4(tp) x 8]",
                           "[_ x 2(dp) x 4(tp) x 3]", "[dp,tp]", "[tp:zigzag]"}) {
    const Layout layout = LayoutOf(mesh, text);
    DT_EXPECT_OK(CheckRegions(layout, {kLarge}));
    for (const std::vector<int>& axes : {std::vector<int>{0}, {1}, {0, 1}, {}}) {
      const IndexSet held = DimRegionOverAxes(layout, 0, kLarge, mesh.Coordinate(3), axes);
      EXPECT_LE(held.runs().size(), 8u) << text;
    }
  }
}

TEST(RegionTest, CountsIntersectsAndPrints) {
  const Region a = {IndexSet::Interval(0, 4), IndexSet::Interval(8, 16)};
  const Region b = {IndexSet::Interval(2, 6), IndexSet::Interval(0, 10)};
  EXPECT_EQ(NumElements(a), 32);
  EXPECT_EQ(NumElements(Region()), 1);
  EXPECT_EQ(ToString(a), "{0..3} x {8..15}");
  ASSERT_EQ(IntersectRegions(a, b).size(), 1);
  EXPECT_EQ(ToString(IntersectRegions(a, b)[0]), "{2..3} x {8..9}");
  EXPECT_THAT(IntersectRegions(a, {IndexSet(), IndexSet::Interval(0, 10)}), testing::IsEmpty());
}

}  // namespace
}  // namespace dtensor
