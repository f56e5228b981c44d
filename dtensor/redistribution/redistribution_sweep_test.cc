// All pairs of layouts: each plan is proved on the region algebra, and moves what the oracle
// counts.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/redistribution_oracle.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// "" or what is wrong.
std::string CheckPlan(const RedistributionPlan& plan) {
  if (absl::Status status = plan.Verify(); !status.ok()) return status.ToString();
  for (size_t s = 0; s < plan.rounds().size(); ++s) {
    if (plan.rounds()[s].axes.empty()) continue;  // a copy before rounds
    if (plan.Bytes(static_cast<int>(s)).total == 0)
      return absl::StrCat(plan.ToString(), ": an empty round");
  }
  return "";
}

// The plan that nobody asked anything of: the bound, in two rounds.
std::string CheckDefault(const HeldLayout& from, const HeldLayout& to,
                         absl::Span<const int64_t> shape) {
  auto plan = RedistributionPlan::Create(from.layout, to.layout, shape, DType::kF32);
  if (!plan.ok()) return plan.status().ToString();
  const int64_t least = LeastMessages(from, to) * SizeOf(DType::kF32);
  const RedistributionBytes bytes = plan->Bytes(), bound = plan->Bound();
  if (bound.total != least || bytes.total != least || bytes.busiest < bound.busiest) {
    return absl::StrCat(plan->ToString(), ": moves ", bytes.total, ", bound ", bound.total,
                        ", least ", least, "; busiest ", bytes.busiest, ", bound ", bound.busiest);
  }
  if (plan->rounds().size() > 2) return absl::StrCat(plan->ToString(), ": too many rounds");
  return CheckPlan(*plan);
}

// Every objective, and links of which each axis in turn is slow: other plans, which are right too,
// and better by what was asked than the default.
std::string CheckChoices(const Layout& from, const Layout& to, absl::Span<const int64_t> shape) {
  const auto plan_for = [&](const RedistributionOptions& options) {
    return RedistributionPlan::Create(from, to, shape, DType::kF32, options).value();
  };
  const RedistributionPlan usual = plan_for({});
  const RedistributionPlan busiest = plan_for({.objective = RedistributionObjective::kBusiest});
  if (busiest.Bytes().busiest > usual.Bytes().busiest) return busiest.ToString() + " is no better";
  const RedistributionPlan latency = plan_for({.objective = RedistributionObjective::kLatency});
  if (latency.PredictedSeconds({}) > usual.PredictedSeconds({})) {
    return latency.ToString() + " is no faster";
  }
  const RedistributionPlan in_place = plan_for({.in_place = true});
  const RedistributionPlan narrowed = plan_for({.dtype = DType::kBF16});
  for (const RedistributionPlan* plan : {&busiest, &latency, &in_place, &narrowed}) {
    if (std::string wrong = CheckPlan(*plan); !wrong.empty()) return wrong;
  }
  for (const DeviceMesh::Axis& axis : from.mesh().axes()) {
    RedistributionOptions options;
    options.links.Set(axis.name, {10, 0.1});
    const RedistributionPlan plan = plan_for(options);
    if (plan.Bytes().total != plan.Bound().total) return plan.ToString() + " moves too much";
    if (plan.PredictedSeconds(options.links) > usual.PredictedSeconds(options.links)) {
      return plan.ToString() + " is no faster over slow links";
    }
    if (std::string wrong = CheckPlan(plan); !wrong.empty()) return wrong;
  }
  return "";
}

class Sweep {
 public:
  Sweep(absl::string_view mesh, Dims shape, const std::vector<ReduceOp>& ops,
        absl::Span<const ShardOrder> orders)
      : shape_(std::move(shape)) {
    for (const Layout& layout : AllLayouts(*DeviceMesh::Parse(mesh), shape_, ops, orders)) {
      layouts_.emplace_back(layout, shape_);
    }
  }
  Sweep(absl::string_view mesh, Dims shape, ReduceOp op, absl::Span<const ShardOrder> orders)
      : Sweep(mesh, std::move(shape), std::vector<ReduceOp>{op}, orders) {}

  void AllPairs() {
    for (const HeldLayout& from : layouts_) {
      for (const HeldLayout& to : layouts_) Run(from, to);
    }
  }

  void ChoicesOfAllPairs() {
    for (const HeldLayout& from : layouts_) {
      for (const HeldLayout& to : layouts_) {
        if (testing::Test::HasFailure()) return;
        EXPECT_EQ(CheckChoices(from.layout, to.layout, shape_), "");
      }
    }
  }

  void RandomPairs(int count, int seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < count; ++i) {
      const HeldLayout& from = layouts_[random() % layouts_.size()];
      Run(from, layouts_[random() % layouts_.size()]);
    }
  }

 private:
  void Run(const HeldLayout& from, const HeldLayout& to) {
    if (testing::Test::HasFailure()) return;  // one is enough to read
    EXPECT_EQ(CheckDefault(from, to, shape_), "");
  }

  Dims shape_;
  std::vector<HeldLayout> layouts_;
};

const std::vector<Dims>& SmallShapes() {
  static const auto* const shapes = new std::vector<Dims>{
      {},     {0},    {1},    {2},    {3},    {4},    {5},    {7},       {8},       {12},     {13},
      {4, 6}, {3, 5}, {1, 7}, {5, 2}, {0, 4}, {1, 1}, {8, 2}, {2, 3, 4}, {3, 1, 5}, {2, 0, 3}};
  return *shapes;
}

TEST(RedistributionSweepTest, OneAxis) {
  for (absl::string_view mesh : {"a=1", "a=2", "a=3", "a=4", "a=11"}) {
    for (const Dims& shape : SmallShapes())
      Sweep(mesh, shape, ReduceOp::kSum, AllOrders()).AllPairs();
  }
}

TEST(RedistributionSweepTest, OneAxisAverage) {
  for (const Dims& shape : SmallShapes())
    Sweep("a=3", shape, ReduceOp::kAvg, AllOrders()).AllPairs();
}

TEST(RedistributionSweepTest, TwoAxes) {
  for (absl::string_view mesh : {"a=2,b=2", "a=2,b=3"}) {
    for (const Dims& shape : SmallShapes()) {
      const auto orders = shape.size() < 3 ? AllOrders() : ContiguousOrder();
      Sweep(mesh, shape, ReduceOp::kSum, orders).AllPairs();
    }
  }
}

TEST(RedistributionSweepTest, TwoAxesAverage) {
  for (const Dims& shape : {Dims{}, Dims{5}, Dims{6}, Dims{4, 3}}) {
    Sweep("a=3,b=2", shape, ReduceOp::kAvg, ContiguousOrder()).AllPairs();
  }
}

TEST(RedistributionSweepTest, SumsBesideAverages) {
  for (const Dims& shape : {Dims{}, Dims{5}, Dims{6}, Dims{4, 3}}) {
    Sweep("a=3,b=2", shape, SumAndAverage(), ContiguousOrder()).AllPairs();
  }
  Sweep("a=2,b=2,c=2", {6}, SumAndAverage(), ContiguousOrder()).AllPairs();
  Sweep("a=3,b=2", {7}, SumAndAverage(), ContiguousOrder()).ChoicesOfAllPairs();
}

TEST(RedistributionSweepTest, AnAxisOfSizeOneAmongTwo) {
  for (const Dims& shape : {Dims{}, Dims{5}, Dims{4, 3}}) {
    Sweep("a=3,b=1", shape, ReduceOp::kSum, AllOrders()).AllPairs();
  }
}

TEST(RedistributionSweepTest, ThreeAxes) {
  for (const Dims& shape :
       {Dims{}, Dims{1}, Dims{3}, Dims{7}, Dims{8}, Dims{4, 6}, Dims{3, 5}, Dims{1, 7}}) {
    Sweep("a=2,b=2,c=2", shape, ReduceOp::kSum, ContiguousOrder()).AllPairs();
  }
}

TEST(RedistributionSweepTest, Choices) {
  Sweep("a=3", {7}, ReduceOp::kSum, AllOrders()).ChoicesOfAllPairs();
  Sweep("a=2,b=3", {}, ReduceOp::kSum, AllOrders()).ChoicesOfAllPairs();
  Sweep("a=2,b=3", {7}, ReduceOp::kSum, AllOrders()).ChoicesOfAllPairs();
  Sweep("a=2,b=2", {4, 6}, ReduceOp::kSum, ContiguousOrder()).ChoicesOfAllPairs();
  Sweep("a=3,b=2", {3, 5}, ReduceOp::kAvg, ContiguousOrder()).ChoicesOfAllPairs();
  Sweep("a=2,b=2,c=2", {8}, ReduceOp::kSum, ContiguousOrder()).ChoicesOfAllPairs();
}

bool MakesShardsPartial(const Layout& from, const Layout& to) {
  for (int axis : to.partial_axes()) {
    if (from.use(axis) == Layout::AxisUse::kShard) return true;
  }
  return false;
}

// How far the busiest rank is from its bound, at worst, over all pairs of sizes that divide: those
// in which an axis goes from Shard to Partial, or the others.
double WorstBusiest(absl::string_view mesh, const Dims& shape, bool shards_to_partial) {
  double worst = 1;
  const auto layouts =
      AllLayouts(*DeviceMesh::Parse(mesh), shape, ReduceOp::kSum, ContiguousOrder());
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      if (MakesShardsPartial(from, to) != shards_to_partial) continue;
      const auto plan = RedistributionPlan::Create(
          from, to, shape, DType::kF32, {.objective = RedistributionObjective::kBusiest});
      if (plan->moves_nothing()) continue;
      const double ratio =
          static_cast<double>(plan->Bytes().busiest) / static_cast<double>(plan->Bound().busiest);
      if (ratio > worst) GTEST_LOG_(INFO) << plan->ToString() << ": " << ratio;
      worst = std::max(worst, ratio);
    }
  }
  return worst;
}

TEST(RedistributionSweepTest, TheBusiestRankIsNearItsBound) {
  EXPECT_LE(WorstBusiest("a=2,b=2", {64, 64}, false), 1.34);
  EXPECT_LE(WorstBusiest("a=4,b=8", {64, 64}, false), 1.1);
  // A rank that makes an element without holding a term of it receives one message more than the
  // bound has.
  EXPECT_LE(WorstBusiest("a=2,b=2", {64, 64}, true), 1.34);
  EXPECT_LE(WorstBusiest("a=4,b=8", {64, 64}, true), 1.3);
}

TEST(RedistributionSweepTest, ThreeAxesSampled) {
  Sweep("a=2,b=2,c=2", {7}, ReduceOp::kSum, AllOrders()).RandomPairs(20000, 1);
  Sweep("a=2,b=2,c=2", {4, 5}, ReduceOp::kSum, AllOrders()).RandomPairs(20000, 2);
  Sweep("a=2,b=2,c=2", {2, 3, 4}, ReduceOp::kSum, ContiguousOrder()).RandomPairs(20000, 3);
}

TEST(RedistributionSweepTest, SlowTwoAxesOfRankThree) {
  for (absl::string_view mesh : {"a=2,b=2", "a=2,b=3"}) {
    for (const Dims& shape : {Dims{2, 3, 4}, Dims{3, 1, 5}, Dims{5, 4, 2}, Dims{2, 0, 3}}) {
      Sweep(mesh, shape, ReduceOp::kSum, AllOrders()).AllPairs();
    }
  }
}

TEST(RedistributionSweepTest, SlowThreeAxes) {
  for (const Dims& shape : SmallShapes()) {
    Sweep sweep("a=2,b=2,c=2", shape, ReduceOp::kSum,
                shape.size() < 2 ? AllOrders() : ContiguousOrder());
    sweep.AllPairs();
  }
}

TEST(RedistributionSweepTest, SlowRandomMeshes) {
  for (absl::string_view mesh :
       {"a=12", "a=3,b=4", "a=5,b=2", "a=2,b=3,c=2", "a=2,b=2,c=3", "a=2,b=2,c=2,d=2"}) {
    for (const Dims& shape : {Dims{11}, Dims{24}, Dims{5, 7}, Dims{4, 12}, Dims{3, 4, 5}}) {
      const auto orders = shape.size() == 1 ? AllOrders() : ContiguousOrder();
      Sweep(mesh, shape, ReduceOp::kSum, orders).RandomPairs(20000, 4);
    }
  }
}

}  // namespace
}  // namespace dtensor
