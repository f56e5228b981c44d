// Which rank writes what: each element once, by a rank that holds it, and no rank much more than
// another.
#include "dtensor/checkpoint/slice_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dtensor/checkpoint/region_runs.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

int64_t BytesOf(const PlannedTensor& tensor, const Region& region) {
  return NumElements(region) * SizeOf(tensor.dtype);
}

// The busiest rank's bytes over the mean.
double Imbalance(const std::vector<PlannedTensor>& tensors, int ranks) {
  std::vector<int64_t> bytes(ranks, 0);
  int64_t sum = 0;
  for (const PlannedSlice& slice : PlanSlices(tensors, ranks)) {
    bytes[slice.rank] += BytesOf(tensors[slice.tensor], slice.region);
    sum += BytesOf(tensors[slice.tensor], slice.region);
  }
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) * ranks /
         static_cast<double>(sum);
}

PlannedTensor Tensor(const DeviceMesh& mesh, Dims shape, const std::string& layout,
                     DType dtype = DType::kF32) {
  return {*Layout::Parse(mesh, layout), std::move(shape), dtype};
}

// A decoder's parameters and states, in a layout for those of the norms and one for each side of a
// product.
std::vector<PlannedTensor> Decoder(const DeviceMesh& mesh, int layers, int64_t dim,
                                   const std::string& norm, const std::string& out,
                                   const std::string& in) {
  std::vector<PlannedTensor> tensors;
  for (int state = 0; state < 3; ++state) {
    tensors.push_back(Tensor(mesh, {1000, dim}, out));
    for (int layer = 0; layer < layers; ++layer) {
      for (int i = 0; i < 2; ++i) tensors.push_back(Tensor(mesh, {dim}, norm));
      for (int i = 0; i < 3; ++i) tensors.push_back(Tensor(mesh, {dim, dim}, out));
      tensors.push_back(Tensor(mesh, {dim, dim}, in));
      for (int i = 0; i < 2; ++i) tensors.push_back(Tensor(mesh, {3 * dim, dim}, out));
      tensors.push_back(Tensor(mesh, {dim, 3 * dim}, in));
    }
  }
  return tensors;
}

TEST(SlicePlan, NobodyWritesMuchMoreThanAnother) {
  struct Case {
    std::string mesh, norm, out, in;
  };
  for (const Case& c :
       {Case{"tp=1", "[]", "[] []", "[] []"}, Case{"dp=8", "[]", "[] []", "[] []"},
        Case{"dp=64", "[]", "[] []", "[] []"}, Case{"tp=8", "[]", "[tp] []", "[] [tp]"},
        Case{"dp=2,tp=4", "[]", "[tp] []", "[] [tp]"},
        Case{"dp=4,tp=2", "[dp]", "[tp,dp] []", "[dp] [tp]"},
        Case{"dp=8", "[dp]", "[dp] []", "[dp] []"}, Case{"dp=3,tp=3", "[]", "[tp] []", "[] [tp]"},
        Case{"a=2,b=2,c=4", "[c]", "[a] [c]", "[b] [c]"},
        Case{"a=2,b=2", "[]", "[a] []", "[b] []"}}) {
    const DeviceMesh mesh = MeshOf(c.mesh);
    for (const int64_t dim : {64, 96, 576}) {
      EXPECT_LE(Imbalance(Decoder(mesh, 3, dim, c.norm, c.out, c.in), mesh.size()), 1.1)
          << c.mesh << " " << dim;
    }
  }
}

TEST(SlicePlan, WhoHasLessTakesMore) {
  // What is split lies on ranks 0 and 1 alone, and what is replicated goes to the others.
  const DeviceMesh mesh = MeshOf("tp=4");
  const std::vector<PlannedTensor> tensors = {Tensor(mesh, {2, 1000}, "[tp] []"),
                                              Tensor(mesh, {2000}, "[]")};
  EXPECT_LE(Imbalance(tensors, 4), 1.01);
}

TEST(SlicePlan, HasFewSlices) {
  // 1,024 replicas of 500 small tensors: no more than a few files of crumbs.
  const DeviceMesh mesh = MeshOf("dp=1024");
  std::vector<PlannedTensor> tensors(500, Tensor(mesh, {1024, 64}, "[] []"));
  const std::vector<PlannedSlice> slices = PlanSlices(tensors, 1024);
  EXPECT_LE(slices.size(), 1024 * 64 + 500);
  EXPECT_LE(Imbalance(tensors, 1024), 1.1);
  EXPECT_EQ(PlanSlices({}, 4).size(), 0);
}

// Every element is in one slice, and its rank holds it.
void CheckEachOnce(const std::vector<PlannedTensor>& tensors, int ranks) {
  std::map<size_t, std::set<std::vector<int64_t>>> seen;
  for (const PlannedSlice& slice : PlanSlices(tensors, ranks)) {
    const PlannedTensor& tensor = tensors[slice.tensor];
    const Region held =
        Regions(tensor.layout, tensor.shape, tensor.layout.mesh().Coordinate(slice.rank));
    ASSERT_GT(NumElements(slice.region), 0);
    int64_t common = 0;
    DT_ASSERT_OK(VisitCommonRuns(slice.region, held, [&](const RegionRun& run) {
      common += run.length;
      return absl::OkStatus();
    }));
    ASSERT_EQ(common, NumElements(slice.region)) << "of what the rank holds";
    for (int64_t i = 0; i < NumElements(slice.region); ++i) {
      std::vector<int64_t> at;
      int64_t rest = i;
      for (size_t d = slice.region.size(); d-- > 0;) {
        at.push_back(slice.region[d].At(rest % slice.region[d].size()));
        rest /= slice.region[d].size();
      }
      ASSERT_TRUE(seen[slice.tensor].insert(at).second) << "twice";
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(static_cast<int64_t>(seen[i].size()), NumElements(tensors[i].shape));
  }
}

TEST(SlicePlan, EachElementOnceForRandomLayouts) {
  TestRandom random;
  for (int round = 0; round < 60; ++round) {
    const std::vector<DeviceMesh> meshes = SmallMeshes();
    const DeviceMesh& mesh = meshes[random.Below(static_cast<int>(meshes.size()))];
    const std::vector<DimLayout> dims = SmallDimLayouts(mesh);
    std::vector<PlannedTensor> tensors;
    for (int i = 0; i < 4; ++i) {
      const DimLayout& dim = dims[random.Below(static_cast<int>(dims.size()))];
      const absl::StatusOr<Layout> layout = Layout::Create(mesh, {dim, {}});
      if (!layout.ok()) continue;
      tensors.push_back({*layout, {random.Below(14), random.Below(6)}, DType::kBF16});
    }
    CheckEachOnce(tensors, mesh.size());
  }
  CheckEachOnce({Tensor(MeshOf("tp=3"), {}, "scalar"), Tensor(MeshOf("tp=3"), {1}, "[tp]")}, 3);
}

// --- region_runs.h

TEST(RegionRuns, AreTheCommonElements) {
  TestRandom random;
  const std::vector<DeviceMesh> meshes = SmallMeshes();
  for (int round = 0; round < 300; ++round) {
    Dims shape;
    Region regions[2];
    for (int d = 0; d < 1 + round % 3; ++d) {
      shape.push_back(1 + random.Below(12));
      for (Region& region : regions) {
        const DeviceMesh& mesh = meshes[random.Below(static_cast<int>(meshes.size()))];
        const std::vector<DimLayout> dims = SmallDimLayouts(mesh);
        const absl::StatusOr<Layout> layout =
            Layout::Create(mesh, {dims[random.Below(static_cast<int>(dims.size()))]});
        ASSERT_TRUE(layout.ok());
        region.push_back(
            DimRegion(*layout, 0, shape[d], mesh.Coordinate(random.Below(mesh.size()))));
      }
    }
    // By hand: the place of each element in both.
    const auto places = [&](const Region& region) {
      std::map<std::vector<int64_t>, int64_t> place;
      for (int64_t i = 0; i < NumElements(region); ++i) {
        std::vector<int64_t> at;
        int64_t rest = i;
        for (size_t d = region.size(); d-- > 0;) {
          at.push_back(region[d].At(rest % region[d].size()));
          rest /= region[d].size();
        }
        place[at] = i;
      }
      return place;
    };
    const auto src = places(regions[0]), dst = places(regions[1]);
    std::map<int64_t, int64_t> expected, found;
    for (const auto& [at, i] : src) {
      if (dst.contains(at)) expected[i] = dst.at(at);
    }
    int64_t last = -1;
    DT_ASSERT_OK(VisitCommonRuns(regions[0], regions[1], [&](const RegionRun& run) {
      EXPECT_GT(run.src, last) << "ascending";
      EXPECT_GT(run.length, 0);
      for (int64_t i = 0; i < run.length; ++i) found[run.src + i] = run.dst + i;
      last = run.src + run.length - 1;
      return absl::OkStatus();
    }));
    ASSERT_EQ(found, expected) << ToString(regions[0]) << " and " << ToString(regions[1]);
  }
}

TEST(RegionRuns, AreLongWhereBothAreWhole) {
  const Region whole = {IndexSet::Interval(0, 8), IndexSet::Interval(0, 5)};
  const Region rows = {IndexSet::Interval(2, 6), IndexSet::Interval(0, 5)};
  int runs = 0;
  DT_ASSERT_OK(VisitCommonRuns(whole, rows, [&](const RegionRun& run) {
    ++runs;
    EXPECT_EQ(run.src, 10);
    EXPECT_EQ(run.dst, 0);
    EXPECT_EQ(run.length, 20);
    return absl::OkStatus();
  }));
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(
      VisitCommonRuns(whole, whole, [](const RegionRun&) { return absl::InternalError("stop"); }),
      StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace dtensor
