// Law 7: an axis of size 1 costs nothing and changes nothing; a world of 1 issues no collective.
#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;

struct Case {
  std::string mesh;
  std::vector<std::string> with_ones;  // the same, and axes of size 1
};

// Losses, gradients, parameters, layouts and the traffic of a step, all of them.
TEST(AxisOfOne, ChangesNothingInATrainingStep) {
  for (const auto& [mesh, with_ones] :
       std::vector<Case>{{"tp=2", {"dp=1,tp=2", "tp=2,dp=1", "x=1,tp=2,y=1"}},
                         {"dp=2", {"dp=2,tp=1", "tp=1,dp=2"}},
                         {"dp=2,tp=2", {"dp=2,x=1,tp=2", "x=1,dp=2,tp=2,y=1"}},
                         {"cp=2", {"cp=2,tp=1", "dp=1,cp=2"}},
                         {"tp=1", {"dp=1,tp=1", "dp=1", "x=1", "cp=1"}}}) {
    for (const bool sequence_parallel : {false, true}) {
      DT_ASSERT_OK_AND_ASSIGN(const Trained without,
                              Train({.mesh = mesh, .sequence_parallel = sequence_parallel}));
      for (const std::string& more : with_ones) {
        DT_ASSERT_OK_AND_ASSIGN(const Trained with,
                                Train({.mesh = more, .sequence_parallel = sequence_parallel}));
        EXPECT_EQ(with.layouts, without.layouts) << mesh << " and " << more;
        EXPECT_EQ(with.traffic, without.traffic) << mesh << " and " << more;
        EXPECT_TRUE(with == without) << mesh << " and " << more;
      }
    }
  }
}

TEST(AxisOfOne, AWorldOfOneTrainsWithoutACollective) {
  for (const bool sequence_parallel : {false, true}) {
    DT_ASSERT_OK_AND_ASSIGN(const Trained one,
                            Train({.mesh = "dp=1,tp=1", .sequence_parallel = sequence_parallel}));
    EXPECT_TRUE(one.traffic.empty());
    DT_ASSERT_OK_AND_ASSIGN(const Trained two,
                            Train({.mesh = "dp=1,tp=2", .sequence_parallel = sequence_parallel}));
    EXPECT_FALSE(two.traffic.empty());
  }
}

std::vector<std::string> LayoutTexts(const std::string& mesh) {
  std::vector<std::string> texts;
  const std::vector<int64_t> shape = {5, 4};
  for (const Layout& layout :
       AllLayouts(*DeviceMesh::Parse(mesh), shape, ReduceOp::kSum, AllOrders())) {
    texts.push_back(layout.ToString());
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

TEST(AxisOfOne, HasNoLayoutsOfItsOwn) {
  EXPECT_THAT(LayoutTexts("a=1"), ElementsAre("[] []"));
  EXPECT_THAT(LayoutTexts("a=1,b=1"), ElementsAre("[] []"));
  EXPECT_EQ(LayoutTexts("a=2,one=1"), LayoutTexts("a=2"));
  EXPECT_EQ(LayoutTexts("one=1,a=2"), LayoutTexts("a=2"));
  EXPECT_GT(LayoutTexts("a=2").size(), 8u);
}

// A Partial over one rank is whole; a tensor that need not move is not copied.
TEST(AxisOfOne, RedistributesWithoutACopy) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("one=1,tp=2"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Replicate(), Shard(0)}, {5, 4}, {.seed = 1}));
    for (const Placement& on_one : AllPlacements(2, ReduceOp::kSum, AllOrders())) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute({on_one, Shard(0)}));
      EXPECT_TRUE(y.local().SharesStorageWith(x.local())) << on_one.ToString();
    }
    EXPECT_TRUE(context.communicator().traffic().empty());
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
