// Convolutional networks under plans: features sharded as in linear layers, images in strips of
// rows, whose halos follow; the same outputs, gradients and weights as on one rank.
#include "dtensor/nn/conv.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/plans/train_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int64_t kFeatures = 4;
const ConvOptions kSame = {.before = {1}, .after = {1}};

// A bottleneck as in ResNet: 3 x 3, then 1 x 1 back to the features, beside the images themselves.
class Bottleneck : public Module {
 public:
  Bottleneck() : up_({kFeatures, 6, {3, 3}}, 0.3, kSame), down_({6, kFeatures, {1, 1}}, 0.3) {
    AddChild("up", &up_);
    AddChild("down", &down_);
  }

 private:
  TensorOr Forward(const DistributedTensor& x) override { return Add(x, down_(Relu(up_(x)))); }
  ConvLayer up_, down_;
};

// [b, height, width, features] -> [b, features].
class SmallNetwork : public Module {
 public:
  SmallNetwork()
      : stem_({kFeatures, kFeatures, {3, 3}}, 0.3, {.stride = {2}, .before = {1}, .after = {1}}),
        depthwise_({kFeatures, kFeatures, {3, 1}}, 0.3,
                   {.before = {1, 0}, .after = {1, 0}, .groups = kFeatures}) {
    AddChild("stem", &stem_);
    AddChild("block", &block_);
    AddChild("depthwise", &depthwise_);
    VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(1);
    });
  }

 private:
  TensorOr Forward(const DistributedTensor& x) override {
    const PoolOptions pool = {.size = {3, 3}, .stride = {1}, .before = {1}, .after = {1}};
    return Mean(depthwise_(MaxPool(block_(Relu(stem_(x))), pool)), {1, 2});
  }
  ConvLayer stem_;
  Bottleneck block_;
  ConvLayer depthwise_;
};

ModuleRun NetworkRun() {
  return {.make = [] { return std::make_unique<SmallNetwork>(); }, .x = {2, 12, 5, kFeatures}};
}

constexpr char kFeaturesSharded[] = R"(
{"stem", Colwise("tp", out R)}
{"block.up", Colwise("tp")}
{"block.down", Rowwise("tp")}
{"depthwise", Replicated("tp")}
)";
constexpr char kStrips[] = "{\"\", Edges(\"cp\", in S(1))}\n";

TEST(Conv, IsTheSameOnEveryMesh) {
  ModuleRun run = NetworkRun();
  const std::vector<MeshAndPlan> places = {
      {"dp=2", "{\"\", DataParallel(\"dp\")}"},
      {"tp=2", kFeaturesSharded},
      {"tp=3", kFeaturesSharded},
      {"cp=2", kStrips},
      {"cp=3", kStrips},
      {"cp=4", kStrips},
      {"cp=2,tp=2", std::string(kFeaturesSharded) + kStrips},
      {"fsdp=2", "{\"*\", FullyShard(\"fsdp\")}\n{\"\", FullyShard(\"fsdp\")}"},
  };
  ExpectAsOnOneRank(run, places);
  run.recomputed = {"block", "depthwise"};
  ExpectAsOnOneRank(run, places);
}

// Of grouped features no rank would have what another needs.
TEST(Conv, OfGroupsIsNotRowwise) {
  const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    ConvLayer layer({4, 4, {3}}, 0.1, {.groups = 2});
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse("{\"\", Rowwise(\"tp\")}"));
    EXPECT_THAT(plan.Apply(layer, context, mesh, {}), Refuses(HasSubstr("nothing to split")));
    return absl::OkStatus();
  }));
}

// One all-reduce for the pair of convolutions, as for a pair of linear layers.
TEST(Conv, ReducesOnceThoughItHasBiases) {
  const ModuleRun run = {.make = [] { return std::make_unique<Bottleneck>(); },
                         .x = {2, 4, 5, kFeatures}};
  const auto forward =
      TrainModuleOn(run, {"tp=2", "{\"up\", Colwise(\"tp\")}\n{\"down\", Rowwise(\"tp\")}"})
          .forward;
  std::vector<std::pair<CollectiveKind, int64_t>> calls;
  for (const auto& [key, traffic] : forward) calls.emplace_back(key.second, traffic.calls);
  EXPECT_THAT(calls, ElementsAre(Pair(CollectiveKind::kAllReduce, 1)));
}

// Strips of images: what moves in forward is one row from each neighbour.
TEST(Conv, MovesTheHaloAlone) {
  const ModuleRun run = {.make = [] { return std::make_unique<Bottleneck>(); },
                         .x = {2, 8, 5, kFeatures}};
  const auto forward =
      TrainModuleOn(run, {"cp=2", "{\"\", Edges(\"cp\", in S(1), out S(1))}"}).forward;
  ASSERT_EQ(forward.size(), 1);
  EXPECT_EQ(forward.begin()->first.second, CollectiveKind::kExchange);
  EXPECT_EQ(forward.begin()->second.bytes, 2 * 1 * 5 * kFeatures * 8);
}

}  // namespace
}  // namespace dtensor
