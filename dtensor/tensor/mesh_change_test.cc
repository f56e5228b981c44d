// Gradients of programs whose tensors change the mesh on the way: Redistribute() between meshes of
// the same ranks.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/testing/leaf.h"
#include "dtensor/testing/all_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Tensors = std::vector<DistributedTensor>;

DeviceMesh Reversed(const DeviceMesh& mesh) {
  std::vector<int> ranks;
  for (int rank = mesh.size() - 1; rank >= 0; --rank) ranks.push_back(rank);
  return *mesh.OnRanks(ranks);
}

TEST(MeshChange, ALeafIsReadOnAnotherMesh) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const DeviceMesh grid = *DeviceMesh::Parse("dp=2,tp=2"), line = *DeviceMesh::Parse("ep=4");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, grid, {Shard(0), Shard(1)}, {4, 6}, 1));
    DT_ASSIGN_OR_RETURN(const auto y,
                        x.Redistribute(*Layout::FromPlacements(line, {Shard(0)}, x.shape())));
    DT_RETURN_IF_ERROR(Backward(Scale(Sum(Mul(y, y), {0, 1}), .5)));
    EXPECT_EQ(*GradientOf(x), *ToGlobal<double>(x));
    return absl::OkStatus();
  }));
}

// Only what ranks exchange something for counts as a change: Recompute() goes by that.
TEST(MeshChange, CountsWhereRanksExchangeSomething) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2"), stage = *mesh.At("pp", 0);
    const auto changes = [&](const Placement& placement) -> absl::StatusOr<uint64_t> {
      DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {placement}, {4}, DType::kI64, 3));
      const uint64_t before = context.mesh_changes();
      DT_ASSIGN_OR_RETURN(const Layout there, x.layout().OnMesh(stage));
      DT_RETURN_IF_ERROR(x.Redistribute(there).status());
      return context.mesh_changes() - before;
    };
    EXPECT_THAT(changes(Replicate()), IsOkAndHolds(0));
    EXPECT_THAT(changes(Shard(0)), IsOkAndHolds(1));
    return absl::OkStatus();
  }));
}

// What the program computes does not depend on where it changes the mesh.
struct Program {
  DeviceMesh first, second;
  bool recompute = false;
};
absl::StatusOr<std::vector<std::vector<double>>> GradientsOnMeshes(Context& context, int seed,
                                                                   const Program& program) {
  std::mt19937 random(seed);
  const auto draw = [&](std::vector<Placement> from) { return from[random() % from.size()]; };
  const Dims shape = {static_cast<int64_t>(1 + random() % 6), 4}, square = {4, 4};
  const auto layout = [&](const DeviceMesh& mesh, const Dims& dims, bool may_be_partial) {
    std::vector<Placement> from = {Replicate(), Shard(0), Shard(1),
                                   Shard(0, ShardOrder::Cyclic(2))};
    if (may_be_partial) from.push_back(Partial());
    return DrawLayout(mesh, dims, [&] { return draw(from); });
  };
  DT_ASSIGN_OR_RETURN(auto x, Leaf(context, layout(program.first, shape, false), shape, 1));
  DT_ASSIGN_OR_RETURN(auto w, Leaf(context, layout(program.first, square, false), square, 2));
  DT_ASSIGN_OR_RETURN(auto v, Leaf(context, layout(program.second, square, false), square, 3));
  const Layout moved = layout(program.second, shape, true);
  const Layout moved_weight = layout(program.second, square, false);
  const Layout home = layout(program.first, shape, false);
  const auto run = [&](absl::Span<const DistributedTensor> in) -> TensorsOr {
    DT_ASSIGN_OR_RETURN(const auto y, MatMul(Tanh(in[0]), w));
    DT_ASSIGN_OR_RETURN(const auto z, y.Redistribute(moved));
    DT_ASSIGN_OR_RETURN(const auto w_there, w.Redistribute(moved_weight));
    DT_ASSIGN_OR_RETURN(const auto t, MatMul(Mul(z, z), Add(v, w_there)));
    DT_ASSIGN_OR_RETURN(const auto back, t.Redistribute(home));
    DT_ASSIGN_OR_RETURN(auto result, Add(Mul(back, in[0]), y));
    return Tensors{std::move(result)};
  };
  TensorsOr results = program.recompute ? Recompute({x}, run) : run({x});
  DT_RETURN_IF_ERROR(results.status());
  DT_RETURN_IF_ERROR(Backward(Sum(Mul((*results)[0], (*results)[0]), {0, 1})));
  std::vector<std::vector<double>> gradients;
  for (const DistributedTensor& leaf : {x, w, v}) {
    DT_ASSIGN_OR_RETURN(std::vector<double> values, GradientOf(leaf));
    gradients.push_back(std::move(values));
  }
  return gradients;
}

TEST(MeshChange, GradientsAreThoseOfOneMeshInRandomLayouts) {
  const std::vector<std::string> meshes = {"a=6", "a=2,b=3", "x=3,y=2", "x=3,y=1,z=2"};
  for (int seed = 0; seed < 40; ++seed) {
    DT_EXPECT_OK(RunRanks(6, [&](Context& context) -> absl::Status {
      const DeviceMesh first = *DeviceMesh::Parse(meshes[seed % 4]);
      const DeviceMesh second = Reversed(*DeviceMesh::Parse(meshes[seed / 4 % 4]));
      DT_ASSIGN_OR_RETURN(const auto expected,
                          GradientsOnMeshes(context, seed, {first, first, false}));
      for (const bool recompute : {false, true}) {
        DT_ASSIGN_OR_RETURN(const auto gradients,
                            GradientsOnMeshes(context, seed, {first, second, recompute}));
        for (size_t i = 0; i < expected.size(); ++i) {
          for (size_t j = 0; j < expected[i].size(); ++j) {
            EXPECT_NEAR(gradients[i][j], expected[i][j], 1e-9 * (1 + std::abs(expected[i][j])))
                << "seed " << seed << ", leaf " << i;
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(MeshChange, TheLossAndItsGradientMayBeOnTheOtherMesh) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh one = *DeviceMesh::Parse("dp=2"), other = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, one, {Shard(0)}, {4}, 1));
    DT_ASSIGN_OR_RETURN(const auto twice, Scale(x, 2));
    const Layout there = *Layout::FromPlacements(other, {Shard(0)}, x.shape());
    DT_ASSIGN_OR_RETURN(const auto y, twice.Redistribute(there));
    DT_ASSIGN_OR_RETURN(const auto gradient, FullLike(y, 5));
    DT_ASSIGN_OR_RETURN(const Tensors of_twice,
                        GradientsOf(y, {twice}, {.gradient = gradient, .retain_graph = true}));
    EXPECT_EQ(of_twice[0].mesh(), one);
    EXPECT_THAT(*ToGlobal<double>(of_twice[0]), Each(5));
    // The gradient of what was moved is that of its source, on its own mesh.
    DT_ASSIGN_OR_RETURN(const Tensors of_y, GradientsOf(Sum(Mul(y, y), {0}), {y}));
    EXPECT_EQ(of_y[0].mesh(), other);
    EXPECT_EQ(*ToGlobal<double>(of_y[0]), *ToGlobal<double>(*Scale(y, 2)));
    DT_RETURN_IF_ERROR(Backward(y, {.gradient = gradient}));
    EXPECT_THAT(*GradientOf(x), Each(10));
    return absl::OkStatus();
  }));
}

TEST(MeshChange, AnAsynchronousMoveHasTheSameGradient) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const DeviceMesh grid = *DeviceMesh::Parse("dp=2,tp=2"), line = *DeviceMesh::Parse("ep=4");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, grid, {Shard(0), Replicate()}, {5}, 1));
    DT_ASSIGN_OR_RETURN(
        const auto y,
        x.Redistribute(*Layout::FromPlacements(line, {Shard(0)}, x.shape()), {.async = true}));
    DT_RETURN_IF_ERROR(Backward(Scale(Sum(Mul(y, y), {0}), .5), {.bucket_bytes = kBucketBytes}));
    EXPECT_EQ(*GradientOf(x), *ToGlobal<double>(x));
    return absl::OkStatus();
  }));
}

// The ranks' terms of a gradient, 256 and 1, are bf16, and their sum is not.
TEST(MeshChange, GradientsOf16BitsAreAddedUpInF32IfTheyAreKeptSo) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh one = *DeviceMesh::Parse("dp=2"), other = *DeviceMesh::Parse("tp=2");
    const Dims shape = {4};
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, *Layout::FromPlacements(one, {Shard(0)}, shape),
                                     shape, 1, DType::kBF16));
    DT_RETURN_IF_ERROR(x.set_grad_dtype(DType::kF32));
    DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute(Layout::Replicated(other, 1)));
    const Layout rows = *Layout::FromPlacements(other, {Shard(0)}, {{2, 4}});
    const std::vector<BFloat16> values = {BFloat16(256), BFloat16(256), BFloat16(256),
                                          BFloat16(256), BFloat16(1),   BFloat16(1),
                                          BFloat16(1),   BFloat16(1)};
    DT_ASSIGN_OR_RETURN(const auto slopes, Distribute<BFloat16>(context, rows, {2, 4}, values));
    DT_RETURN_IF_ERROR(Backward(Sum(Mul(slopes, y), {0, 1})));
    DT_RETURN_IF_ERROR(ReduceGradients({x}));
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
    EXPECT_THAT(*ToGlobal<float>(x.grad()), Each(257));
    return absl::OkStatus();
  }));
}

// The axes of the two meshes have the same numbers.
TEST(MeshChange, NoGradientPassesAMaximum) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh one = *DeviceMesh::Parse("dp=2"), other = *DeviceMesh::Parse("tp=2");
    const Dims shape = {2};
    DT_ASSIGN_OR_RETURN(auto x, FromLocal(context, one, {Partial(ReduceOp::kMax)}, shape,
                                          *FromHost<float>(context.device(), {{1, 2}}, {2})));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    for (const Placement to : {Partial(ReduceOp::kMax), Replicate()}) {
      EXPECT_THAT(x.Redistribute(*Layout::FromPlacements(other, {to}, shape)),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("passes none on")));
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
