// Programs whose tensors are on meshes of part of the ranks, which every rank of the world runs:
// ranks that are not on an operator's mesh only learn what its results are.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/tensor_impl.h"
#include "dtensor/tensor/testing/leaf.h"
#include "dtensor/testing/all_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

using Tensors = std::vector<DistributedTensor>;
using Values = std::vector<double>;

DeviceMesh Mesh(const std::string& text) { return *DeviceMesh::Parse(text); }

// All elements, on every rank of the world.
absl::StatusOr<Values> Everywhere(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh line,
                      DeviceMesh::Create({{"all", x.context().world_size()}}));
  const NoGrad no_grad(x.context());
  DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute(Layout::Replicated(line, x.ndim())));
  return ToGlobal<double>(whole);
}

TEST(Stages, AnOperatorComputesNothingOnOtherRanks) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = Mesh("tp=2@0,2");
    const bool on_mesh = context.rank() != 1;
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {4, 6}, 1));
    DT_ASSIGN_OR_RETURN(const auto w, Leaf(context, mesh, {Shard(1)}, {6, 8}, 2));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto y, MatMul(Transpose(Tanh(x), 0, 1), x));
    DT_ASSIGN_OR_RETURN(const auto z, Softmax(MatMul(x, w)));
    EXPECT_EQ(y.layout(), *Layout::Parse(mesh, "[] [] P(sum: tp)"));
    EXPECT_EQ(z.shape(), (Dims{4, 8}));
    EXPECT_EQ(z.local().numel() > 0, on_mesh);
    DT_RETURN_IF_ERROR(Backward(Add(Sum(Mul(y, y), {0, 1}), Sum(Mul(z, z), {0, 1}))));
    EXPECT_EQ(x.grad().local().numel() > 0, on_mesh);
    DT_RETURN_IF_ERROR(ReduceGradients({x, w}));
    EXPECT_EQ(context.communicator().traffic().empty(), !on_mesh);
    return absl::OkStatus();
  }));
}

// Runs fn on 3 ranks, with a mesh of ranks 0 and 2. It returns an error, the same on all.
using Refused = std::function<absl::Status(Context& context, const DeviceMesh& mesh)>;
std::string Refusal(const Refused& fn) {
  std::vector<std::string> heard(3);
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) {
    heard[context.rank()] = fn(context, Mesh("tp=2@0,2")).ToString();
    return absl::OkStatus();
  }));
  EXPECT_EQ(heard[1], heard[0]);
  EXPECT_EQ(heard[2], heard[0]);
  return heard[0];
}

TEST(Stages, ARefusalIsTheSameOnAllRanks) {
  EXPECT_THAT(Refusal([](Context& context, const DeviceMesh& mesh) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {4, 6}, 1));
                return MatMul(x, x).status();
              }),
              HasSubstr("MatMul"));
  const auto reads_what_is_no_more = [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {4, 4}, 1));
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const auto terms, MatMul(Transpose(x, 0, 1), x));
    const RedistributionOptions in_place{.in_place = true};
    DT_RETURN_IF_ERROR(terms.Redistribute({Replicate()}, {.plan = in_place}).status());
    return Add(terms, terms).status();
  };
  EXPECT_THAT(Refusal(reads_what_is_no_more), HasSubstr("was redistributed in place"));
  const auto writes_to_a_copy = [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, mesh, {Shard(0)}, {4, 6}, 1));
    DT_ASSIGN_OR_RETURN(const auto y, Reshape(Transpose(x.Detach(), 0, 1), {3, 2, 4}));
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    EXPECT_EQ(y.local().numel() > 0, mesh.Contains(context.rank()));  // made again
    return BeforeWrite(y);
  };
  EXPECT_THAT(Refusal(writes_to_a_copy),
              HasSubstr("is a Reshape of a tensor that is not row-major"));
}

// A rank that is on the source's mesh alone waits for its part of the move at the same place.
TEST(Stages, AnAsynchronousMoveEndsWhereItsResultIsUsed) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, Mesh("tp=1@0"), {Shard(0)}, {4}, 1));
    const Layout there = Layout::Replicated(Mesh("tp=1@1"), 1);
    DT_ASSIGN_OR_RETURN(const auto y, x.Detach().Redistribute(there, {.async = true}));
    EXPECT_NE(y.impl()->unsettled, nullptr);
    DT_RETURN_IF_ERROR(Scale(y, 2).status());
    EXPECT_EQ(y.impl()->unsettled, nullptr);
    return absl::OkStatus();
  }));
}

// Rank 1 begins to gather both leaves for the operator that reads one of them, and so do ranks that
// only have the other.
TEST(Stages, AGroupIsGatheredAgainAtOneTimeOnAllRanks) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh all = Mesh("tp=3"), part = Mesh("tp=2@1..2");
    DT_ASSIGN_OR_RETURN(const auto on_all, Leaf(context, all, {Shard(0)}, {6, 6}, 1));
    DT_ASSIGN_OR_RETURN(const auto on_part, Leaf(context, part, {Shard(0)}, {6, 6}, 2));
    const auto groups = GatherGroups::New();
    const auto group = groups->Add(ShardLevel::kParameters);
    DT_RETURN_IF_ERROR(group->Add(on_all, Layout::Replicated(all, 2)));
    DT_RETURN_IF_ERROR(group->Add(on_part, Layout::Replicated(part, 2)));
    DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, all, {Shard(0)}, {6, 6}, 3));
    DT_ASSIGN_OR_RETURN(const auto h, Tanh(MatMul(x, ForUse(on_all))));
    const Layout rows = *Layout::FromPlacements(part, {Shard(0)}, h.shape());
    DT_ASSIGN_OR_RETURN(const auto there, h.Redistribute(rows));
    DT_RETURN_IF_ERROR(Backward(Sum(Tanh(MatMul(there, ForUse(on_part))), {0, 1})));
    EXPECT_EQ(on_all.grad().layout(), on_all.layout());
    EXPECT_EQ(on_part.grad().layout(), on_part.layout());
    return absl::OkStatus();
  }));
}

// As each stage's own optimizer does: its states are made, and its weights written to, on the
// ranks of the stage alone.
TEST(Stages, OthersNeedNotMakeOrWriteWhatTheyDoNotHave) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const DeviceMesh first = Mesh("tp=2@0,1"), second = Mesh("tp=2@2,1");
    DT_ASSIGN_OR_RETURN(const auto w, Leaf(context, first, {Shard(1)}, {4, 4}, 2));
    DT_ASSIGN_OR_RETURN(const auto v, Leaf(context, second, {Shard(0)}, {4, 4}, 3));
    const Layout there = *Layout::FromPlacements(second, {Shard(1)}, Dims{4, 4});
    for (int step = 0; step < 2; ++step) {
      for (const DistributedTensor& weight : {w, v}) {
        if (!weight.mesh().Contains(context.rank())) continue;
        DT_RETURN_IF_ERROR(FullLike(weight, 0).status());
        DT_RETURN_IF_ERROR(BeforeWrite(weight));
      }
      DT_ASSIGN_OR_RETURN(const auto x, Leaf(context, first, {Shard(0)}, {4, 4}, step));
      DT_ASSIGN_OR_RETURN(const auto h, Tanh(MatMul(x, w)));
      DT_ASSIGN_OR_RETURN(const auto moved, h.Redistribute(there));
      const TensorOr loss = Sum(Tanh(MatMul(moved, v)), {0, 1});
      DT_ASSIGN_OR_RETURN(const auto gradients,
                          GradientsOf(loss, {moved, x}, {.retain_graph = true}));
      EXPECT_EQ(gradients[0].mesh(), second);
      EXPECT_EQ(gradients[1].mesh(), first);
      DT_RETURN_IF_ERROR(Backward(loss));
      DT_RETURN_IF_ERROR(ReduceGradients({w, v, x}));
    }
    return absl::OkStatus();
  }));
}

// x on the first mesh, weights on both. The result is that of one mesh.
struct Program {
  std::vector<DeviceMesh> stages;
  bool recompute = false;
  bool buckets = false;
};
absl::StatusOr<std::vector<Values>> Train(Context& context, int seed, const Program& program) {
  std::mt19937 random(seed);
  const Dims shape = {static_cast<int64_t>(2 + random() % 5), 4}, square = {4, 4};
  const auto layout = [&](const DeviceMesh& mesh, const Dims& dims, bool may_be_partial) {
    std::vector<Placement> from = {Replicate(), Shard(0), Shard(1),
                                   Shard(0, ShardOrder::Cyclic(2))};
    if (may_be_partial) from.push_back(Partial());
    return DrawLayout(mesh, dims, [&] { return from[random() % from.size()]; });
  };
  DT_ASSIGN_OR_RETURN(const auto x,
                      Leaf(context, layout(program.stages[0], shape, false), shape, 100));
  Tensors leaves = {x};
  for (size_t s = 0; s < program.stages.size(); ++s) {
    DT_ASSIGN_OR_RETURN(leaves.emplace_back(),
                        Leaf(context, layout(program.stages[s], square, false), square, s));
  }
  TensorOr loss;
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    TensorOr h = Scale(x, 1 + micro_batch);
    for (size_t s = 0; s < program.stages.size(); ++s) {
      const auto stage = [&, s](absl::Span<const DistributedTensor> in) -> TensorsOr {
        DT_ASSIGN_OR_RETURN(const auto here, in[0].Redistribute(layout(program.stages[s], shape,
                                                                       /*may_be_partial=*/true)));
        DT_ASSIGN_OR_RETURN(auto y, Tanh(MatMul(here, leaves[s + 1])));
        return Tensors{y, std::move(y)};
      };
      DT_RETURN_IF_ERROR(h.status());
      const std::mt19937 before = random;  // a recomputed stage draws the same layouts
      const auto again = [&, before, stage](absl::Span<const DistributedTensor> in) {
        const std::mt19937 now = std::exchange(random, before);
        TensorsOr results = stage(in);
        random = now;
        return results;
      };
      TensorsOr results = program.recompute ? Recompute({*h}, again) : again({*h});
      DT_RETURN_IF_ERROR(results.status());
      random.discard(20);
      h = (*results)[0];
    }
    const TensorOr more = Sum(Mul(h, h), {0, 1});
    loss = loss.ok() && loss->defined() ? Add(loss, more) : more;
  }
  DT_RETURN_IF_ERROR(loss.status());
  DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = program.buckets ? 64 : 0}));
  DT_RETURN_IF_ERROR(ReduceGradients(leaves));
  std::vector<Values> values;
  DT_ASSIGN_OR_RETURN(values.emplace_back(), Everywhere(*loss));
  for (const DistributedTensor& leaf : leaves) {
    EXPECT_EQ(leaf.grad().layout(), leaf.layout());
    DT_ASSIGN_OR_RETURN(values.emplace_back(), Everywhere(leaf.grad()));
  }
  return values;
}

// A mesh of some of the ranks, in any order.
DeviceMesh DrawMesh(std::mt19937& random, int world) {
  const std::vector<std::string> grids = {"a=1", "a=2", "a=3", "a=2,b=2", "b=1,a=2", "a=2,b=3"};
  const DeviceMesh grid = Mesh(grids[random() % grids.size()]);
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  ranks.resize(grid.size());
  return *grid.OnRanks(ranks);
}

TEST(Stages, GradientsAreThoseOfOneMesh) {
  for (int seed = 0; seed < 60; ++seed) {
    DT_EXPECT_OK(RunRanks(6, [&](Context& context) -> absl::Status {
      std::mt19937 random(seed);
      Program program;
      const int stages = 1 + static_cast<int>(random() % 3);
      for (int s = 0; s < stages; ++s) program.stages.push_back(DrawMesh(random, 6));
      program.recompute = random() % 2 == 0;
      program.buckets = random() % 2 == 0;
      const Program on_one = {std::vector<DeviceMesh>(stages, Mesh("a=6"))};
      DT_ASSIGN_OR_RETURN(const auto expected, Train(context, seed, on_one));
      DT_ASSIGN_OR_RETURN(const auto values, Train(context, seed, program));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_THAT(values[i], Pointwise(DoubleNear(1e-9), expected[i]))
            << "seed " << seed << ", value " << i;
      }
      return absl::OkStatus();
    }));
  }
}

// y is read twice on the second mesh, where its gradients are added up before they move.
TEST(Stages, AGradientMovesBackOnce) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh first = Mesh("tp=1@0"), second = Mesh("tp=1@1");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, first, {Replicate()}, {64}, 1));
    DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute(Layout::Replicated(second, 1)));
    for (const bool again : {false, true}) {  // a redistribution is not consumed
      context.communicator().ResetTraffic();
      DT_RETURN_IF_ERROR(Backward(Sum(Add(Mul(y, y), Scale(y, 3)), {0})));
      int64_t calls = 0, bytes = 0;
      for (const auto& [key, traffic] : context.communicator().traffic()) {
        calls += traffic.calls;
        bytes += traffic.bytes;
      }
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(bytes, context.rank() == 0 ? 64 * 8 : 0);
      DT_ASSIGN_OR_RETURN(const Values values, Everywhere(x));
      DT_ASSIGN_OR_RETURN(const Values gradient, Everywhere(x.grad()));
      for (int i = 0; i < 64; ++i) {
        EXPECT_NEAR(gradient[i], (again ? 2 : 1) * (2 * values[i] + 3), 1e-12);
      }
    }
    return absl::OkStatus();
  }));
}

// Rank 1 has a stand-in for x, of which it wants no gradient.
TEST(Stages, RanksThatDisagreeOnWhetherAGradientIsWantedAreTold) {
  std::vector<std::string> heard(2);
  const absl::Status status = RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, Mesh("tp=1@0"), {Replicate()}, {4}, 1));
    if (context.rank() == 1) DT_RETURN_IF_ERROR(x.set_requires_grad(false));
    // Rank 0 only sends, and is told when it next waits.
    absl::Status result = x.Redistribute(Layout::Replicated(Mesh("tp=1@1"), 1)).status();
    if (result.ok()) result = context.FinishBegun();
    heard[context.rank()] = std::string(result.message());
    return result;
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("disagree")));
  for (const std::string& message : heard) {
    EXPECT_THAT(message, AllOf(HasSubstr("Redistribute with a gradient"), HasSubstr("[4] f64")));
  }
}

}  // namespace
}  // namespace dtensor
