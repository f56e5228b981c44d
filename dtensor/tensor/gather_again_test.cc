#include "dtensor/tensor/gather_again.h"

#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 5, kColumns = 4;  // shards of 2, 2 and 1 rows

int64_t Gathers(Context& context) {
  int64_t calls = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    calls += key.second == CollectiveKind::kAllGather ? traffic.calls : 0;
  }
  context.communicator().ResetTraffic();
  return calls;
}

absl::StatusOr<DistributedTensor> Leaf(Context& context, const DeviceMesh& mesh,
                                       std::vector<Placement> placements, Dims shape,
                                       uint64_t seed) {
  DT_ASSIGN_OR_RETURN(auto leaf, RandomNormal(context, mesh, placements, shape, {.seed = seed}));
  DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
  return leaf;
}

absl::Status OnRanks(const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
  return RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=3"));
    return fn(context, mesh);
  });
}

// silu(x), gathered for two products, and its gradients: of x and of both weights.
absl::StatusOr<std::vector<std::vector<float>>> TwoProducts(Context& context,
                                                            const DeviceMesh& mesh, bool keeps,
                                                            int64_t backward_gathers) {
  DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {kRows, kColumns}, 1));
  DT_ASSIGN_OR_RETURN(const auto a, Leaf(context, mesh, {Replicate()}, {kColumns, 3}, 2));
  DT_ASSIGN_OR_RETURN(const auto b, Leaf(context, mesh, {Replicate()}, {kColumns, 3}, 3));
  Gathers(context);
  const int64_t before = context.device().memory().live_bytes;
  DistributedTensor loss;
  {
    DT_ASSIGN_OR_RETURN(const DistributedTensor h, Silu(x));
    const auto whole = [&]() -> TensorOr {
      const Layout layout = Layout::Replicated(mesh, 2);
      return keeps ? h.Redistribute(layout) : RedistributeForUse(h, layout);
    };
    DT_ASSIGN_OR_RETURN(loss, Sum(Mul(MatMul(whole(), a), MatMul(whole(), b)), {0, 1}));
  }
  EXPECT_EQ(Gathers(context), 1);
  const int64_t saved = context.device().memory().live_bytes - before;
  for (const bool retain : {true, false}) {
    DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = retain}));
    EXPECT_EQ(Gathers(context), backward_gathers);
    const int64_t gradients = context.device().memory().live_bytes - before - saved;
    if (!retain) continue;
    EXPECT_LT(gradients, 4 * 3 * (2 * kColumns) + 4 * kRows * kColumns + 256);
  }
  DT_RETURN_IF_ERROR(ReduceGradients({x, a, b}));
  std::vector<std::vector<float>> gradients;
  for (const DistributedTensor& leaf : {x, a, b}) {
    DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(leaf.grad()));
    gradients.push_back(std::move(values));
  }
  gradients.push_back({static_cast<float>(saved)});
  return gradients;
}

TEST(RedistributeForUse, SavesTheShardAndGathersItOnceForAllWhoReadIt) {
  DT_EXPECT_OK(OnRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto kept, TwoProducts(context, mesh, /*keeps=*/true, 0));
    DT_ASSIGN_OR_RETURN(auto again, TwoProducts(context, mesh, /*keeps=*/false, 1));
    // The shard is silu's, and of the same size as its operand, which is x.
    const int64_t rows = context.rank() < 2 ? 2 : 1;
    EXPECT_EQ(kept.back()[0] - again.back()[0], (kRows - rows) * kColumns * sizeof(float));
    kept.pop_back();
    again.pop_back();
    EXPECT_EQ(again, kept);
    return absl::OkStatus();
  }));
}

TEST(RedistributeForUse, ChainsAreGatheredFromTheFirst) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0), Shard(1)}, {4, 4}, 1));
    DT_ASSIGN_OR_RETURN(const auto w, Leaf(context, mesh, {Replicate(), Replicate()}, {4, 2}, 2));
    DT_ASSIGN_OR_RETURN(const Layout half,
                        Layout::FromPlacements(mesh, {Shard(0), Replicate()}, {4, 4}));
    DT_ASSIGN_OR_RETURN(const auto h, RedistributeForUse(x, half));
    DT_ASSIGN_OR_RETURN(const auto whole, RedistributeForUse(h, Layout::Replicated(mesh, 2)));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(Sum(MatMul(whole, w), {0, 1})));
    EXPECT_EQ(Gathers(context), 1);
    DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(x));
    DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<float>(w.grad()));
    float sum = 0;
    for (int i = 0; i < 16; i += 4) sum += values[i];
    EXPECT_FLOAT_EQ(gradient[0], sum);
    return absl::OkStatus();
  }));
}

TEST(RedistributeForUse, RefusesBackwardAfterItsSourceWasWritten) {
  DT_EXPECT_OK(OnRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {kRows, kColumns}, 1));
    DT_ASSIGN_OR_RETURN(const auto w, Leaf(context, mesh, {Replicate()}, {kColumns, 3}, 2));
    const TensorOr y = MatMul(RedistributeForUse(x, Layout::Replicated(mesh, 2)), w);
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    EXPECT_THAT(Backward(Sum(y, {0, 1})),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was written")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
