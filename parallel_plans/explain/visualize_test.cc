#include "dtensor/parallel_plans/explain/visualize.h"

#include <memory>
#include <string>

#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TwoLayers : public Module {
 public:
  TwoLayers() : up_(4, 8, 0.1), down_(8, 4, 0.1) {
    AddChild("up", &up_);
    AddChild("down", &down_);
  }

 private:
  TensorOr Forward(const DistributedTensor& x) override { return down_(up_(x)); }
  LinearLayer up_, down_;
};

int Count(absl::string_view text, absl::string_view word) {
  int count = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(VisualizePlanTest, DrawsEdgesAndParameters) {
  DT_EXPECT_OK(Simulate(0, 4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
    TwoLayers model;
    const ParallelPlan plan(
        {{"up", Colwise("tp")}, {"down", Rowwise("tp", Shard(1))}, {"", DataParallel("dp")}});
    EXPECT_THAT(VisualizePlan(model), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("up.weight has no place")));
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
    EXPECT_THAT(VisualizePlan(model), IsOkAndHolds("(model)\n"
                                                   "  in  S(0) on dp\n"
                                                   "up\n"
                                                   "  in      R on tp\n"
                                                   "  weight  [8, 4] as R,S(0)\n"
                                                   "down\n"
                                                   "  weight  [4, 8] as R,S(1)\n"
                                                   "  out     S(1) on tp\n"));
    DT_ASSIGN_OR_RETURN(const std::string svg, VisualizePlanSvg(model));
    EXPECT_EQ(Count(svg, "<rect "), 4);  // two halves of each weight
    EXPECT_THAT(svg, HasSubstr("<title>weight [4, 8] as R,S(1)</title>"));
    return absl::OkStatus();
  }));
}

// Of many layers one is drawn, and a mesh of thousands of ranks is no obstacle.
TEST(VisualizePlanTest, FoldsLayers) {
  DT_EXPECT_OK(Simulate(0, 4096, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=1024,tp=4"));
    TransformerConfig config;
    config.layers = 12;
    Transformer model(config);
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, PresetPlan("fsdp+tp+sp", mesh));
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.allow_uneven = true}));
    DT_ASSIGN_OR_RETURN(const std::string text, VisualizePlan(model));
    EXPECT_THAT(text, HasSubstr("model.layers.0..11.mlp.down_proj x12\n"));
    EXPECT_THAT(text, HasSubstr(", used as "));
    EXPECT_THAT(text, Not(HasSubstr("layers.1.")));
    DT_ASSIGN_OR_RETURN(const std::string svg, VisualizePlanSvg(model));
    EXPECT_LT(svg.size(), 100'000u);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
