// Redistribution between two meshes: plans are proved, and run on ranks that are threads.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/all_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Messages counted element by element.
int64_t LeastMessages(const Layout& from, const Layout& to, const Dims& shape) {
  const DeviceMesh &a = from.mesh(), &b = to.mesh();
  int64_t terms = 1, messages = 0;
  for (int axis : from.partial_axes()) terms *= a.axis_size(axis);
  for (int64_t e = 0; e < NumElements(shape); ++e) {
    const auto has = [&](const Layout& layout, int rank) {
      if (!layout.mesh().Contains(rank)) return false;
      const Region region = Regions(layout, shape, layout.mesh().Coordinate(rank));
      int64_t rest = e;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        if (!region[d].Contains(rest % shape[d])) return false;
      }
      return true;
    };
    int64_t in_need = 0, lacking = 0;
    for (int i = 0; i < b.size(); ++i) {
      const int rank = b.RankOf(i);
      const auto coordinate = b.Coordinate(rank);
      bool needs = has(to, rank);
      for (int axis : to.partial_axes()) {
        if (to.partial_op(axis) == ReduceOp::kAvg) continue;  // equal terms: all are in need
        needs &= coordinate[axis] == 0;
      }
      in_need += needs;
      lacking += needs && !has(from, rank);
    }
    messages += terms == 1 ? lacking : terms - 1 + in_need - 1 + (lacking == in_need);
  }
  return messages;
}

struct Meshes {
  absl::string_view from, to;
};

std::vector<Layout> LayoutsOn(absl::string_view mesh, const Dims& shape) {
  return AllLayouts(*DeviceMesh::Parse(mesh), shape, ReduceOp::kSum, ContiguousOrder());
}

class CrossMeshTransitionTest : public testing::TestWithParam<Meshes> {};

TEST_P(CrossMeshTransitionTest, PlansAreProvedAndMoveTheLeast) {
  for (const Dims& shape : {Dims{}, Dims{0}, Dims{5}, Dims{8}, Dims{3, 4}}) {
    for (const Layout& from : LayoutsOn(GetParam().from, shape)) {
      for (const Layout& to : LayoutsOn(GetParam().to, shape)) {
        DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                                RedistributionPlan::Create(from, to, shape, DType::kF32));
        ASSERT_THAT(plan.Verify(), IsOk());
        const int64_t least = 4 * LeastMessages(from, to, shape);
        ASSERT_EQ(plan.Bound().total, least) << plan.ToString();
        ASSERT_GE(plan.Bytes().busiest, plan.Bound().busiest) << plan.ToString();
        ASSERT_EQ(plan.Bytes().total, least) << plan.ToString();
      }
    }
  }
}

// Each rank holds index-coded elements (a term each, where partial), and finds them in its result.
absl::Status RunPair(const Layout& from, const Layout& to, const Dims& shape,
                     Communicator& communicator, Device& device) {
  DT_ASSIGN_OR_RETURN(RedistributionPlan plan,
                      RedistributionPlan::Create(from, to, shape, DType::kF32));
  const int rank = communicator.rank();
  const RankRedistributionPlan rank_plan(plan, rank);
  const auto numbers = [&](const Layout& layout) {
    std::vector<float> values;
    if (!layout.mesh().Contains(rank)) return values;
    std::vector<int64_t> all = {0};
    const Region region = Regions(layout, shape, layout.mesh().Coordinate(rank));
    for (size_t d = 0; d < shape.size(); ++d) {
      std::vector<int64_t> next;
      for (int64_t prefix : all) {
        for (int64_t i = 0; i < region[d].size(); ++i) {
          next.push_back(prefix * shape[d] + region[d].At(i));
        }
      }
      all = next;
    }
    for (int64_t number : all) values.push_back(static_cast<float>(number + 1));
    return values;
  };
  DT_ASSIGN_OR_RETURN(const Tensor source,
                      FromHost<float>(device, numbers(from), rank_plan.local_from()));
  communicator.ResetTraffic();
  DT_ASSIGN_OR_RETURN(const Tensor result, ExecutePlan(rank_plan, source, communicator, "Test"));
  DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToHost<float>(result));
  std::vector<float> want = numbers(to);
  float scale = 1;
  for (int axis : from.partial_axes()) scale *= from.mesh().axis_size(axis);
  if (!want.empty()) {
    const auto coordinate = to.mesh().Coordinate(rank);
    for (int axis : to.partial_axes()) scale *= coordinate[axis] == 0 ? 1 : 0;
  }
  for (float& value : want) value *= scale;
  int64_t bytes = 0;
  for (const auto& [key, traffic] : communicator.traffic()) bytes += traffic.bytes;
  if (got == want && bytes == plan.BytesReceived(rank)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(plan.ToString(), ": rank ", rank, " differs"));
}

TEST_P(CrossMeshTransitionTest, DataArrives) {
  const Dims shape = {3, 4};
  const auto from = LayoutsOn(GetParam().from, shape), to = LayoutsOn(GetParam().to, shape);
  SocketRanks sockets(6);
  DT_EXPECT_OK(RunLocalRanks(6, [&](Communicator& world, Device& device) -> absl::Status {
    SocketRank rank = sockets.Make(world, device);
    for (Communicator* communicator : {&world, &rank.communicator()}) {
      for (const Layout& a : from) {
        for (const Layout& b : to) {
          DT_RETURN_IF_ERROR(RunPair(a, b, shape, *communicator, device));
        }
      }
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Meshes, CrossMeshTransitionTest,
                         testing::Values(Meshes{"a=2", "b=2@2..3"},      // a pipeline's next stage
                                         Meshes{"a=2", "b=2,c=2@2..5"},  // of more ranks
                                         Meshes{"a=2,b=2@0,2,1,3", "c=2@4,5"},
                                         Meshes{"a=4",
                                                "b=2,c=2"},  // the same ranks in another shape
                                         Meshes{"a=2,b=2", "c=3"},         // fewer of them
                                         Meshes{"a=3@1..3", "b=2@3,5"}));  // one in common

DeviceMesh RandomMesh(std::mt19937_64& random) {
  const std::vector<std::string> shapes = {"a=2",     "a=3",     "a=4",         "a=6",
                                           "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2", "a=1,b=3"};
  const DeviceMesh mesh = DeviceMesh::Parse(shapes[random() % shapes.size()]).value();
  std::vector<int> ranks(9);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  ranks.resize(mesh.size());
  return mesh.OnRanks(ranks).value();
}

Layout RandomLayout(const DeviceMesh& mesh, const Dims& shape, std::mt19937_64& random) {
  const std::vector<ReduceOp> ops[] = {SumAndAverage(), {ReduceOp::kMax}, {ReduceOp::kMin}};
  const auto all =
      AllPlacements(static_cast<int>(shape.size()), ops[random() % std::size(ops)], AllOrders());
  return DrawLayout(mesh, shape, [&] {
    return all[random() % (random() % 2 == 0 ? std::min<size_t>(3, all.size()) : all.size())];
  });
}

// Any two meshes of a world of nine, ops, orders and shapes. DTENSOR_SEED and DTENSOR_PAIRS set
// what is drawn; the seed is printed.
// Each rank has what it needs, and looks at no other: at all of them, this would take 400 s.
TEST(CrossMeshTransition, NamingShardsAnewIsLinearInRanks) {
  const DeviceMesh line = DeviceMesh::Parse("a=65536").value();
  const DeviceMesh square = DeviceMesh::Parse("x=256,y=256").value();
  const Layout from = Layout::Parse(line, "[a]").value();
  const Layout to = Layout::Parse(square, "[x,y]").value();
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          RedistributionPlan::Create(from, to, {1 << 17}, DType::kF32));
  EXPECT_TRUE(plan.moves_nothing());
  EXPECT_TRUE(plan.is_view());
}

TEST(CrossMeshTransitionRandom, EveryPlanMovesTheLeast) {
  const char* const pairs_text = std::getenv("DTENSOR_PAIRS");
  const int pairs = pairs_text != nullptr ? std::atoi(pairs_text) : 4000;
  std::mt19937_64 random(TestSeed());
  int excess = 0, partial = 0;
  for (int i = 0; i < pairs; ++i) {
    const DeviceMesh a = RandomMesh(random), b = RandomMesh(random);
    if (a == b) continue;
    Dims shape;
    for (uint64_t d = random() % 4; d > 0; --d) shape.push_back(random() % 8);
    const Layout from = RandomLayout(a, shape, random), to = RandomLayout(b, shape, random);
    DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                            RedistributionPlan::Create(from, to, shape, DType::kF32));
    ASSERT_THAT(plan.Verify(), IsOk());
    const RedistributionBytes bytes = plan.Bytes(), bound = plan.Bound();
    const std::string text = absl::StrCat(plan.ToString(), ": ", bytes.total, " B");
    ASSERT_EQ(bound.total, 4 * LeastMessages(from, to, shape)) << text;
    ASSERT_GE(bytes.busiest, bound.busiest) << text;
    partial += from.is_partial();
    if (bytes.total != bound.total && ++excess == 1) ADD_FAILURE() << text;
  }
  EXPECT_EQ(excess, 0) << "of " << partial << " plans that reduce";
}

TEST(CrossMeshTransitionText, AnOwnerHoldsATermWhereOneInNeedDoes) {
  const DeviceMesh a = DeviceMesh::Parse("a=2,b=2@2,1,6,4").value();
  const DeviceMesh b = DeviceMesh::Parse("a=4@2,1,3,0").value();
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          RedistributionPlan::Create(Layout::Parse(a, "[] P(min: a)").value(),
                                                     Layout::Replicated(b, 1), {7}, DType::kBool));
  EXPECT_EQ(plan.Bytes().total, 28);
}

TEST(CrossMeshTransitionText, SaysWhatCrosses) {
  const auto plan = [](absl::string_view from_mesh, absl::string_view from,
                       absl::string_view to_mesh, absl::string_view to) {
    const DeviceMesh a = DeviceMesh::Parse(from_mesh).value();
    const DeviceMesh b = DeviceMesh::Parse(to_mesh).value();
    return RedistributionPlan::Create(Layout::Parse(a, from).value(), Layout::Parse(b, to).value(),
                                      {8, 4}, DType::kF32)
        ->ToString();
  };
  // Each byte crosses once; the target's ranks spread it.
  EXPECT_EQ(plan("tp=2", "[tp] []", "tp=2@2..3", "[] []"),
            "[tp] [] on [\"tp\"=2] -> [] [] on [\"tp\"=2]@2..3, [8, 4] f32: exchange(across) 64 B, "
            "all-gather(tp) 64 B");
  EXPECT_EQ(plan("tp=2", "[tp] []", "a=2", "[a] []"),
            "[tp] [] on [\"tp\"=2] -> [a] [] on [\"a\"=2], [8, 4] f32: view");
}

}  // namespace
}  // namespace dtensor
