// SplitDim and JoinDims of layout.h: a dimension of n = outer * inner and the two it is made of.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

using Parts = std::pair<DimLayout, DimLayout>;

DimLayout DimOf(const DeviceMesh& mesh, const std::string& text) {
  absl::StatusOr<Layout> layout = Layout::Parse(mesh, text);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? layout->dim(0) : DimLayout();
}

std::string TextOf(const DeviceMesh& mesh, const std::vector<DimLayout>& dims) {
  absl::StatusOr<Layout> layout = Layout::Create(mesh, dims);
  return layout.ok() ? layout->ToString() : std::string(layout.status().message());
}

// The layouts of the two parts as text, or "refused".
std::string Split(const DeviceMesh& mesh, const std::string& dim, int64_t outer, int64_t inner) {
  absl::StatusOr<Parts> parts = SplitDim(mesh, DimOf(mesh, dim), outer, inner);
  return parts.ok() ? TextOf(mesh, {parts->first, parts->second}) : "refused";
}

std::string Join(const DeviceMesh& mesh, const std::string& outer, int64_t outer_size,
                 const std::string& inner, int64_t inner_size) {
  absl::StatusOr<DimLayout> joined =
      JoinDims(DimOf(mesh, outer), outer_size, DimOf(mesh, inner), inner_size);
  return joined.ok() ? TextOf(mesh, {*joined}) : "refused";
}

// What a rank holds of a flattened dimension whose parts have these layouts.
std::vector<int64_t> HeldOfParts(const DeviceMesh& mesh, const Parts& parts, int64_t outer_size,
                                 int64_t inner_size, int rank) {
  std::vector<int64_t> held;
  const absl::InlinedVector<int, 4> coordinate = mesh.Coordinate(rank);
  const std::vector<int64_t> inner = HeldByHand(mesh, parts.second, inner_size, coordinate);
  for (int64_t o : HeldByHand(mesh, parts.first, outer_size, coordinate)) {
    for (int64_t i : inner) held.push_back(o * inner_size + i);
  }
  return held;
}

bool SameEverywhere(const DeviceMesh& mesh, const DimLayout& dim, const Parts& parts,
                    int64_t outer_size, int64_t inner_size) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (HeldByHand(mesh, dim, outer_size * inner_size, mesh.Coordinate(rank)) !=
        HeldOfParts(mesh, parts, outer_size, inner_size, rank)) {
      return false;
    }
  }
  return true;
}

std::string Describe(const DeviceMesh& mesh, const DimLayout& dim, const Parts& parts,
                     int64_t outer_size, int64_t inner_size) {
  return absl::StrCat(TextOf(mesh, {dim}), " and ", TextOf(mesh, {parts.first, parts.second}),
                      " for ", outer_size, " * ", inner_size, " on ", mesh.ToString());
}

TEST(SplitDimTest, CutsAtAFactorsEnd) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  // Heads of features: unit(u) with u = g * d.
  EXPECT_EQ(Split(mesh, "[tp x 16]", 4, 16), "[tp] []");
  EXPECT_EQ(Split(mesh, "[tp x 16]", 8, 8), "[tp x 2] []");
  EXPECT_EQ(Split(mesh, "[dp,tp x 16]", 4, 16), "[dp,tp] []");
  EXPECT_EQ(Split(mesh, "[_ x 4(tp)]", 2, 4), "[] [tp]");
  EXPECT_EQ(Split(mesh, "[dp x 4(tp)]", 2, 4), "[dp] [tp]");
  EXPECT_EQ(Split(mesh, "[dp x 2 x 4(tp)]", 6, 8), "[dp] [_ x 4(tp)]");
  EXPECT_EQ(Split(mesh, "[_ x 2(tp) x 3]", 4, 6), "[] [tp x 3]");
}

TEST(SplitDimTest, CutsWhereEveryChunkIsWhole) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_EQ(Split(mesh, "[tp]", 4, 3), "[tp] []");
  EXPECT_EQ(Split(mesh, "[dp,tp]", 4, 3), "[dp,tp] []");
  EXPECT_EQ(Split(mesh, "[tp:zigzag]", 4, 3), "[tp:zigzag] []");
  EXPECT_EQ(Split(mesh, "[tp x 3]", 2, 6), "[tp] []");
  EXPECT_EQ(Split(mesh, "[_ x 12(tp)]", 8, 3), "[_ x 4(tp)] []");
  EXPECT_EQ(Split(mesh, "[tp]", 3, 3), "refused");
  EXPECT_EQ(Split(mesh, "[tp]", 1, 3), "[] [tp]");
  EXPECT_EQ(Split(mesh, "[tp]", 3, 1), "[tp] []");
}

TEST(SplitDimTest, MinorAxesCutASingleGroup) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_EQ(Split(mesh, "[dp,tp]", 2, 5), "[dp] [tp]");
  EXPECT_EQ(Split(mesh, "[dp,tp:zigzag]", 2, 5), "[dp] [tp:zigzag]");
  EXPECT_EQ(Split(mesh, "[dp,tp]", 3, 5), "refused");
  // The third rank of "dp" has no group at all.
  EXPECT_EQ(Split(MeshOf("dp=3,tp=2"), "[dp,tp]", 2, 2), "[dp] [tp]");
}

TEST(SplitDimTest, ErrorNamesLayoutSizesAndRemedy) {
  const DeviceMesh mesh = MeshOf("tp=2");
  EXPECT_THAT(SplitDim(mesh, DimOf(mesh, "[tp]"), 3, 5),
              StatusIs(kInvalidArgument,
                       AllOf(HasSubstr("15 = 3 * 5"), HasSubstr("[tp]"), HasSubstr("\"tp\"=2"),
                             HasSubstr("redistribute"), HasSubstr("units of 5"))));
}

TEST(SplitDimTest, RefusesSizesThatOverflow) {
  const DeviceMesh mesh = MeshOf("tp=2");
  EXPECT_THAT(SplitDim(mesh, DimOf(mesh, "[tp]"), 5, 0x3333333333333334),
              StatusIs(kInvalidArgument, HasSubstr("2^56")));
  EXPECT_THAT(SplitDim(mesh, DimOf(mesh, "[tp]"), -2, -2), StatusIs(kInvalidArgument));
}

TEST(SplitDimTest, RefusesAxesThatTheMeshLacks) {
  const DimLayout of_other = DimOf(MeshOf("dp=2,tp=2"), "[dp,tp]");
  EXPECT_THAT(SplitDim(MeshOf("tp=4"), of_other, 4, 2), StatusIs(kInvalidArgument));
}

TEST(JoinDimsTest, RefusesSizesThatOverflow) {
  const DeviceMesh mesh = MeshOf("tp=2");
  EXPECT_THAT(JoinDims(DimOf(mesh, "[tp]"), 5, DimLayout(), 0x3333333333333334),
              StatusIs(kInvalidArgument, HasSubstr("2^56")));
  EXPECT_THAT(JoinDims(DimLayout(), 1, DimLayout(), -5), StatusIs(kInvalidArgument));
  // Each is small, but the units would not be.
  EXPECT_THAT(JoinDims(DimOf(mesh, "[tp x 1099511627776]"), 2, DimLayout(), int64_t{1} << 40),
              StatusIs(kInvalidArgument, HasSubstr("groups of 1099511627776")));
}

TEST(SplitDimTest, TakesLayoutsThatAreNotCanonical) {
  const DeviceMesh mesh = MeshOf("tp=2,one=1");
  const DimLayout dim = {{0, {{1}}}, {2, {}}, {4, {{0}}}, {3, {}}, {2, {}}};
  // Neither 3 nor 2 alone could be cut at 3.
  DT_ASSERT_OK_AND_ASSIGN(const Parts parts, SplitDim(mesh, dim, 32, 3));
  EXPECT_EQ(TextOf(mesh, {parts.first, parts.second}), "[_ x 4(tp) x 2] []");
}

TEST(SplitDimTest, NeverGivesOtherRegions) {
  int64_t cut = 0, refused = 0;
  for (const DeviceMesh& mesh : SmallMeshes()) {
    for (const DimLayout& dim : SmallDimLayouts(mesh)) {
      for (int64_t outer = 0; outer <= 6; ++outer) {
        for (int64_t inner = 0; inner <= 6; ++inner) {
          const absl::StatusOr<Parts> parts = SplitDim(mesh, dim, outer, inner);
          parts.ok() ? ++cut : ++refused;
          if (!parts.ok()) continue;
          DT_ASSERT_OK(Layout::Create(mesh, {parts->first, parts->second}));
          ASSERT_TRUE(SameEverywhere(mesh, dim, *parts, outer, inner))
              << Describe(mesh, dim, *parts, outer, inner);
        }
      }
    }
  }
  EXPECT_GT(cut, 50'000);
  EXPECT_GT(refused, 10'000);
}

TEST(SplitDimTest, RefusesNoPlainSplitThatHasPlainParts) {
  // Over one axis: whenever some plain layouts of the parts agree, SplitDim must find them.
  for (int ranks = 2; ranks <= 5; ++ranks) {
    const DeviceMesh mesh = MeshOf(absl::StrCat("a=", ranks));
    const std::vector<DimLayout> plain = {{}, {{0, {{0, false}}}}, {{0, {{0, true}}}}};
    for (const DimLayout& dim : plain) {
      for (int64_t outer = 1; outer <= 9; ++outer) {
        for (int64_t inner = 1; inner <= 9; ++inner) {
          bool exists = false;
          for (const Parts& parts :
               {Parts{plain[0], plain[0]}, Parts{plain[1], plain[0]}, Parts{plain[2], plain[0]},
                Parts{plain[0], plain[1]}, Parts{plain[0], plain[2]}}) {
            exists = exists || SameEverywhere(mesh, dim, parts, outer, inner);
          }
          EXPECT_EQ(SplitDim(mesh, dim, outer, inner).ok(), exists)
              << TextOf(mesh, {dim}) << " for " << outer << " * " << inner << " on " << ranks;
        }
      }
    }
  }
}

TEST(JoinDimsTest, ListsTheFactors) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=2");
  EXPECT_EQ(Join(mesh, "[dp]", 4, "[tp]", 6), "[dp x 6(tp)]");
  EXPECT_EQ(Join(mesh, "[dp]", 5, "[]", 6), "[dp x 6]");
  EXPECT_EQ(Join(mesh, "[]", 4, "[tp]", 7), "[_ x 7(tp)]");
  EXPECT_EQ(Join(mesh, "[]", 4, "[]", 7), "[]");
  EXPECT_EQ(Join(mesh, "[tp x 2]", 8, "[]", 8), "[tp x 16]");
  EXPECT_EQ(Join(mesh, "[]", 1, "[tp x 2]", 7), "[tp x 2]");
  EXPECT_EQ(Join(mesh, "[tp x 2]", 7, "[]", 1), "[tp x 2]");
  EXPECT_EQ(Join(mesh, "[dp]", 4, "[tp]", 1), "[dp x 1(tp)]");
}

TEST(JoinDimsTest, RefusesGroupsThatDoNotDivideTheInnerDimension) {
  const DeviceMesh mesh = MeshOf("tp=2");
  const absl::StatusOr<DimLayout> joined = JoinDims({}, 2, DimOf(mesh, "[tp x 3]"), 7);
  EXPECT_THAT(joined,
              StatusIs(kInvalidArgument, AllOf(HasSubstr("2 and 7"), HasSubstr("groups of 3"),
                                               HasSubstr("redistribute"))));
}

// Pairs of layouts whose axes do not overlap: every third of them, to save time.
std::vector<Parts> SmallParts() {
  std::vector<Parts> all;
  const std::vector<DimLayout> on_a = SmallDimLayoutsOver({0}), on_b = SmallDimLayoutsOver({1});
  for (size_t i = 0; i < on_a.size(); ++i) {
    for (size_t j = i % 3; j < on_b.size(); j += 3) {
      all.emplace_back(on_a[i], on_b[j]);
      all.emplace_back(on_b[j], on_a[i]);
    }
  }
  for (const DimLayout& both : SmallDimLayoutsOver({0, 1})) {
    all.emplace_back(both, DimLayout());
    all.emplace_back(DimLayout(), both);
  }
  return all;
}

TEST(JoinDimsTest, HasTheRegionsOfItsParts) {
  const DeviceMesh mesh = MeshOf("a=2,b=3");
  int64_t joined_count = 0;
  for (const Parts& parts : SmallParts()) {
    int64_t group = 1;
    for (size_t f = 1; f < parts.second.size(); ++f) group *= parts.second[f].size;
    for (int64_t outer : {0, 1, 2, 5}) {
      for (int64_t inner : {0, 1, 4, 6}) {
        const absl::StatusOr<DimLayout> joined = JoinDims(parts.first, outer, parts.second, inner);
        if (!joined.ok()) {
          ASSERT_NE(inner % group, 0) << joined.status();
          continue;
        }
        ++joined_count;
        DT_ASSERT_OK(Layout::Create(mesh, {*joined}));
        ASSERT_TRUE(SameEverywhere(mesh, *joined, parts, outer, inner))
            << Describe(mesh, *joined, parts, outer, inner);
      }
    }
  }
  EXPECT_GT(joined_count, 20'000);
}

TEST(JoinDimsTest, SplitDimIsItsInverse) {
  const DeviceMesh mesh = MeshOf("a=2,b=3");
  int64_t count = 0;
  for (const Parts& parts : SmallParts()) {
    for (int64_t outer : {1, 2, 6}) {
      for (int64_t inner : {1, 4, 7, 12}) {
        const absl::StatusOr<DimLayout> joined = JoinDims(parts.first, outer, parts.second, inner);
        if (!joined.ok()) continue;
        const absl::StatusOr<Parts> again = SplitDim(mesh, *joined, outer, inner);
        DT_ASSERT_OK(again) << Describe(mesh, *joined, parts, outer, inner);
        ++count;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          ASSERT_EQ(HeldOfParts(mesh, *again, outer, inner, rank),
                    HeldOfParts(mesh, parts, outer, inner, rank))
              << Describe(mesh, *joined, *again, outer, inner);
        }
      }
    }
  }
  EXPECT_GT(count, 10'000);
}

}  // namespace
}  // namespace dtensor
