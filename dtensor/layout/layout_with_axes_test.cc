// Layout::WithAxes: some axes of a layout get new placements.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr SplitPosition kMinor = SplitPosition::kMinor, kMajor = SplitPosition::kMajor;

// The text of the layout; an error's message in its place.
std::string Placed(const DeviceMesh& mesh, const std::string& layout, const AxisList& axes,
                   const Placement& placement, SplitPosition position = kMinor) {
  const absl::StatusOr<Layout> placed =
      Layout::Parse(mesh, layout)->WithAxes(axes, placement, position);
  return placed.ok() ? placed->ToString() : std::string(placed.status().message());
}

TEST(WithAxesTest, PlacesAxesAnew) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2,one=1");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {1}, Replicate()), "[dp] [] []");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {1}, Shard(0)), "[dp,tp] [] []");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {1}, Shard(-1)), "[dp] [] [tp]");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {1, 0}, Shard(1)), "[] [tp,dp] []");
  EXPECT_EQ(Placed(mesh, "[] P(max: dp,tp)", {1}, Shard(0)), "[tp] P(max: dp)");
  EXPECT_EQ(Placed(mesh, "[dp:zigzag]", {1}, Shard(0)), "[dp:zigzag,tp]");
  // What was a unit of the axis that left says nothing of the one that comes.
  EXPECT_EQ(Placed(mesh, "[tp x 16]", {1}, Shard(0)), "[tp]");
  EXPECT_EQ(Placed(mesh, "[tp x 16]", {0, 1}, Shard(0, ShardOrder::Unit(8))), "[dp,tp x 8]");
  // The groups of those that stay are kept.
  EXPECT_EQ(Placed(mesh, "[dp x 16]", {1}, Shard(0)), "[dp,tp x 16]");
  EXPECT_EQ(Placed(mesh, "[dp x 16]", {1}, Shard(0, ShardOrder::Unit(8))), "[dp,tp x 16]");
  EXPECT_EQ(Placed(mesh, "[dp] []", {2}, Shard(0, ShardOrder::Unit(8))), "[dp] []");
}

// What context parallelism splits first, sequence parallelism splits further.
TEST(WithAxesTest, PlacesZigzagAndBlocksAtEitherPosition) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2,cp=3,one=1");
  const Placement zigzag = Shard(1, ShardOrder::Zigzag()), striped = Shard(1, ShardOrder::Block(1));
  EXPECT_EQ(Placed(mesh, "[dp] [] []", {2}, zigzag), "[dp] [cp:zigzag] []");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {2}, zigzag), "[dp] [tp,cp:zigzag] []");
  EXPECT_EQ(Placed(mesh, "[dp] [tp] []", {2}, zigzag, kMajor), "[dp] [cp:zigzag,tp] []");
  EXPECT_EQ(Placed(mesh, "[dp] [cp:zigzag,tp] []", {2}, zigzag, kMajor), "[dp] [cp:zigzag,tp] []");
  EXPECT_EQ(Placed(mesh, "[dp] [cp,tp] []", {2}, zigzag, kMajor), "[dp] [cp:zigzag,tp] []");
  EXPECT_EQ(Placed(mesh, "[] [tp]", {2}, Shard(1), kMajor), "[] [cp,tp]");
  EXPECT_EQ(Placed(mesh, "[] [tp x 4]", {2, 0}, Shard(1), kMajor), "[] [cp,dp,tp x 4]");
  EXPECT_EQ(Placed(mesh, "[] [tp]", {0, 2}, zigzag, kMajor), "[] [dp:zigzag,cp:zigzag,tp]");
  EXPECT_EQ(Placed(mesh, "[] []", {2}, striped), "[] [_ x 3(cp)]");
  EXPECT_EQ(Placed(mesh, "[] []", {2}, Shard(1, ShardOrder::Block(4))), "[] [_ x 3(cp) x 4]");
  EXPECT_EQ(Placed(mesh, "[] []", {0, 2}, striped), "[] [_ x 3(cp) x 2(dp)]");
  EXPECT_EQ(Placed(mesh, "[] []", {0, 3, 2}, striped), "[] [_ x 3(cp) x 2(dp)]");
  for (const SplitPosition position : {kMinor, kMajor}) {
    EXPECT_EQ(Placed(mesh, "[] [tp]", {2}, striped, position), "[] [tp x 3(cp)]");
    EXPECT_EQ(Placed(mesh, "[] [_ x 3(cp)]", {1}, Shard(1), position), "[] [tp x 3(cp)]");
    EXPECT_EQ(Placed(mesh, "[] [tp x 3(cp)]", {2}, striped, position), "[] [tp x 3(cp)]");
    EXPECT_EQ(Placed(mesh, "[] [tp x 12]", {2}, striped, position), "[] [tp x 4 x 3(cp)]");
    EXPECT_EQ(Placed(mesh, "[] [tp x 3]", {2}, Shard(1, ShardOrder::Block(2)), position),
              "[] [tp x 3(cp) x 2]");
    EXPECT_EQ(Placed(mesh, "[] [tp]", {3}, striped, position), "[] [tp]");
  }
}

TEST(WithAxesTest, RefusesWhatNoSplitSays) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_THAT(Placed(mesh, "[_ x 4(dp)]", {1}, Shard(0, ShardOrder::Unit(2))),
              HasSubstr("an inner factor of it"));
  // Without a refusal the unit would be dropped.
  EXPECT_THAT(Placed(mesh, "[dp]", {1}, Shard(0, ShardOrder::Unit(4))),
              HasSubstr("not in such units"));
  EXPECT_THAT(Placed(mesh, "[dp x 6]", {1}, Shard(0, ShardOrder::Unit(4))),
              HasSubstr("not in such units"));
  for (const SplitPosition position : {kMinor, kMajor}) {
    for (const char* groups : {"[_ x 2(dp)]", "[_ x 2(dp) x 3]"}) {
      EXPECT_THAT(Placed(mesh, groups, {1}, Shard(0, ShardOrder::Block(1)), position),
                  HasSubstr("in groups already"));
    }
    EXPECT_THAT(Placed(mesh, "[dp x 6]", {1}, Shard(0, ShardOrder::Block(2)), position),
                HasSubstr("would cut"));
  }
  EXPECT_THAT(Placed(mesh, "[]", {1}, Shard(0, ShardOrder::Block(int64_t{1} << 62))),
              HasSubstr("longer than any dimension"));
  EXPECT_THAT(Placed(mesh, "[] [dp]", {1}, Shard(2)), HasSubstr("S(2) is out of range"));
  for (const Placement& other : {Partial(), Shard(0, ShardOrder::Cyclic(2)),
                                 Shard(0, ShardOrder::Unit(0)), Shard(0, ShardOrder::Block(0))}) {
    EXPECT_THAT(Placed(mesh, "[]", {1}, other), HasSubstr("not as " + other.ToString()));
  }
  EXPECT_THAT(Placed(mesh, "[]", {2}, Shard(0)), HasSubstr("no axis number 2"));
  EXPECT_THAT(Placed(mesh, "[]", {1, 1}, Shard(0)), HasSubstr("used twice"));
}

TEST(WithAxesTest, TakingAnAxisOffAgainGivesTheLayout) {
  int64_t placed = 0;
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      const Layout layout = *Layout::Create(mesh, {dim});
      for (int axis : layout.replicated_axes()) {
        for (const ShardOrder order : {ShardOrder::Contiguous(), ShardOrder::Unit(2),
                                       ShardOrder::Zigzag(), ShardOrder::Block(2)}) {
          for (const SplitPosition position : {kMinor, kMajor}) {
            const absl::StatusOr<Layout> more = layout.WithAxes({axis}, Shard(0, order), position);
            if (!more.ok()) continue;
            ++placed;
            ASSERT_THAT(more->WithAxes({axis}, Shard(0, order), position), IsOkAndHolds(*more));
            // Blocks leave their groups to the axes that cut between them.
            if (order.kind == ShardOrder::Kind::kBlock && IsSplit(layout.dim(0))) continue;
            ASSERT_THAT(more->WithAxes({axis}, Replicate()), IsOkAndHolds(layout));
          }
        }
      }
    }
  }
  EXPECT_GT(placed, 400);
}

// A minor axis deals what the others left; others deal what a major one left: the layout is that
// of the placements of all of them, wherever these can say one.
TEST(WithAxesTest, IsWhatPlacementsOfAllAxesSay) {
  const DeviceMesh mesh = MeshOf("a=2,b=3");
  const std::vector<Placement> placements = {
      Shard(0), Shard(0, ShardOrder::Unit(2)), Shard(0, ShardOrder::Zigzag()),
      Shard(0, ShardOrder::Block(1)), Shard(0, ShardOrder::Block(2))};
  int compared = 0;
  for (const Placement& a : placements) {
    for (const Placement& b : placements) {
      for (const int64_t n : {12, 24, 36}) {
        const absl::StatusOr<Layout> both = Layout::FromPlacements(mesh, {a, b}, {n});
        if (!both.ok()) continue;
        const Layout a_alone = *Layout::FromPlacements(mesh, {a, Replicate()}, {n});
        const Layout b_alone = *Layout::FromPlacements(mesh, {Replicate(), b}, {n});
        for (const auto& placed :
             {a_alone.WithAxes({1}, b, kMinor), b_alone.WithAxes({0}, a, kMajor)}) {
          if (!placed.ok()) continue;
          ++compared;
          EXPECT_EQ(*placed, *both) << a.ToString() << " " << b.ToString() << " of " << n;
        }
      }
    }
  }
  EXPECT_GT(compared, 60);
}

TEST(OnMeshTest, KeepsWhatAxesOfTheSameNamesDo) {
  const DeviceMesh from = MeshOf("pp=2,dp=2,tp=4"), to = MeshOf("tp=2,dp=3,cp=2@3..14");
  const auto on = [&](const char* text) {
    return Layout::Parse(from, text)->OnMesh(to).value().ToString();
  };
  EXPECT_EQ(on("[dp] [] [tp]"), "[dp] [] [tp]");
  EXPECT_EQ(on("[pp,dp:zigzag] [_ x 8(tp)]"), "[dp:zigzag] [_ x 8(tp)]");
  EXPECT_EQ(on("[pp] [dp] P(sum: tp)"), "[] [dp]");
  EXPECT_EQ(Layout::Parse(from, "[dp] []")->OnMesh(to)->mesh(), to);
}

}  // namespace
}  // namespace dtensor
