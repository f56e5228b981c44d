// Gradients that pass functions of a rank's shards (LocalMap).
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/local_map.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/testing/leaf.h"
#include "dtensor/tensor/testing/local_functions.h"
#include "dtensor/testing/all_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TensorOr SumOf(const TensorOr& y) {
  DT_RETURN_IF_ERROR(y.status());
  std::vector<int> dims;
  for (int d = 0; d < y->ndim(); ++d) dims.push_back(d);
  return Sum(y, dims);
}

// Whether a gradient would flow from it. A leaf may want one; an operator's result may not.
bool IsRecorded(DistributedTensor tensor) { return !tensor.set_requires_grad(false).ok(); }

TEST(LocalMapGradients, AReplicatedOperandGetsTheSumOfTheRanksGradients) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,tp=2");
    std::vector<double> expected;
    for (const bool local : {false, true}) {
      DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0), Replicate()}, {6, 4}, 1));
      DT_ASSIGN_OR_RETURN(auto w, Leaf(context, mesh, {Replicate(), Shard(1)}, {4, 5}, 2));
      const Dims shape = {6, 5};
      const Layout layout = *Layout::FromPlacements(mesh, {Shard(0), Shard(1)}, shape);
      TensorOr y;
      if (local) {
        DT_ASSIGN_OR_RETURN(const Tensors made,
                            LocalMap({x, w}, {{layout, shape}}, OneResult([](Shards shards) {
                                       return MatMul(shards[0], shards[1]);
                                     })));
        y = made[0];
      } else {
        y = MatMul(x, w);
      }
      DT_RETURN_IF_ERROR(Backward(SumOf(Mul(y, y))));
      if (local) {
        EXPECT_EQ(w.grad().layout().ToString(), "[] [tp] P(sum: dp)");
        EXPECT_EQ(x.grad().layout().ToString(), "[dp] [] P(sum: tp)");
      }
      DT_ASSIGN_OR_RETURN(std::vector<double> gradients, GradientOf(x));
      DT_ASSIGN_OR_RETURN(const std::vector<double> of_w, GradientOf(w));
      gradients.insert(gradients.end(), of_w.begin(), of_w.end());
      if (!local) expected = gradients;
      EXPECT_EQ(gradients, expected);
    }
    return absl::OkStatus();
  }));
}

// Where all ranks compute the same, each has the whole gradient: nothing is reduced.
TEST(LocalMapGradients, WhatAllRanksComputeHasAReplicatedGradient) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=3");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Replicate()}, {4}, 1));
    DT_ASSIGN_OR_RETURN(
        const Tensors y,
        LocalMap({x}, {Like(x)}, OneResult([](Shards shard) { return Scale(shard[0], 3); })));
    const TrafficTable before = context.communicator().traffic();
    DT_RETURN_IF_ERROR(Backward(SumOf(y[0])));
    EXPECT_EQ(context.communicator().traffic(), before);
    EXPECT_TRUE(x.grad().layout().is_replicated());
    EXPECT_THAT(*ToGlobal<double>(x.grad()), Each(3));
    return absl::OkStatus();
  }));
}

// One result is computed by all ranks, another by shards. The gradient that arrives through the
// first one counts once, and not once for each rank.
TEST(LocalMapGradients, AReplicatedResultBesideAShardedOneCountsOnce) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=3");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {5, 2}, 1));
    DT_ASSIGN_OR_RETURN(auto w, Leaf(context, mesh, {Replicate()}, {2}, 2));
    // Another operand comes first, which wants no gradient.
    DT_ASSIGN_OR_RETURN(const auto ids, Full(context, mesh, {Shard(0)}, {5}, DType::kI64, 0));
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({ids, x, w}, {Like(x), Like(w)}, [](Shards given) -> TensorsOr {
                          const Shards shards = given.subspan(1);
                          DT_ASSIGN_OR_RETURN(auto product, Mul(shards[0], shards[1]));
                          DT_ASSIGN_OR_RETURN(auto scaled, Scale(shards[1], 10));
                          return Tensors{product, scaled};
                        }));
    DT_RETURN_IF_ERROR(Backward(Add(SumOf(y[0]), SumOf(y[1]))));
    DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(w));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(x));
    for (int j = 0; j < 2; ++j) {
      double expected = 10;
      for (int i = 0; i < 5; ++i) expected += values[i * 2 + j];
      EXPECT_NEAR(gradient[j], expected, 1e-12);
    }
    EXPECT_THAT(*GradientOf(x), testing::SizeIs(10));
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, AResultMayBePartial) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=3");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {7, 2}, 1));
    const Dims shape = {2};
    const Layout sum = *Layout::FromPlacements(mesh, {Partial()}, shape);
    DT_ASSIGN_OR_RETURN(const Tensors y, LocalMap({x}, {{sum, shape}}, OneResult([](Shards shard) {
                                                    return Sum(Mul(shard[0], shard[0]), {0});
                                                  })));
    EXPECT_EQ(y[0].layout(), sum);
    DT_ASSIGN_OR_RETURN(const auto expected, Sum(Mul(x.Detach(), x.Detach()), {0}));
    EXPECT_EQ(*ToGlobal<double>(y[0]), *ToGlobal<double>(expected));
    DT_RETURN_IF_ERROR(Backward(SumOf(y[0])));
    DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(x));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(x));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(gradient[i], 2 * values[i]);
    return absl::OkStatus();
  }));
}

// Random layouts of the operands: gradients are those of the operators that do the same.
TEST(LocalMapGradients, GradientsAreThoseOfOperatorsInRandomLayouts) {
  for (int seed = 0; seed < 60; ++seed) {
    DT_EXPECT_OK(RunRanks(6, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse(seed % 2 == 0 ? "dp=2,tp=3" : "a=3,b=1,c=2");
      std::mt19937 random(seed);
      const auto draw = [&](std::vector<Placement> from) { return from[random() % from.size()]; };
      const Dims shape = {static_cast<int64_t>(1 + random() % 7),
                          static_cast<int64_t>(1 + random() % 5)};
      const Dims row = {shape[1]};
      const std::vector<Placement> whole = {Replicate(), Shard(0), Shard(1),
                                            Shard(0, ShardOrder::Cyclic(2))};
      const Layout layout = DrawLayout(mesh, shape, [&] { return draw(whole); });
      // The bias is sharded where the columns are.
      DT_ASSIGN_OR_RETURN(const Layout row_layout, Layout::Create(mesh, {layout.dim(1)}));
      const bool also_rows = random() % 2 == 0;
      std::vector<std::vector<double>> expected;
      for (const bool local : {false, true}) {
        DT_ASSIGN_OR_RETURN(auto x, Leaf(context, layout, shape, 1));
        DT_ASSIGN_OR_RETURN(auto b, Leaf(context, row_layout, row, 2));
        Tensors results;
        const auto fn = [&](Shards shards) -> TensorsOr {
          Tensors made;
          DT_ASSIGN_OR_RETURN(auto y, Mul(Tanh(Mul(shards[0], shards[1])), shards[0]));
          made.push_back(y);
          if (!also_rows) return made;
          DT_ASSIGN_OR_RETURN(auto rows, Mul(shards[1], shards[1]));
          made.push_back(rows);
          return made;
        };
        if (local) {
          std::vector<LocalMapResult> like = {Like(x)};
          if (also_rows) like.push_back(Like(b));
          DT_ASSIGN_OR_RETURN(results, LocalMap({x, b}, like, fn));
        } else {
          DT_ASSIGN_OR_RETURN(results, fn({x, b}));
        }
        TensorOr loss = SumOf(Mul(results[0], results[0]));
        if (also_rows) loss = Add(loss, SumOf(results[1]));
        DT_RETURN_IF_ERROR(Backward(loss));
        for (const DistributedTensor& leaf : {x, b}) {
          DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(leaf));
          if (!local) expected.push_back(gradient);
          if (!local) continue;
          const std::vector<double>& same = leaf.ndim() == 2 ? expected[0] : expected[1];
          for (size_t i = 0; i < gradient.size(); ++i) {
            EXPECT_NEAR(gradient[i], same[i], 1e-12)
                << seed << " " << x.ToString() << ", " << leaf.ToString();
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

// The function ignores its operand on one rank, and records more operators on another.
TEST(LocalMapGradients, RanksMayDoOtherThings) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=3");
    DT_ASSIGN_OR_RETURN(auto w, Leaf(context, mesh, {Shard(0)}, {6}, 1));
    DT_ASSIGN_OR_RETURN(auto before, Scale(w, 2));
    const Layout whole = Layout::Replicated(mesh, 1);
    const int rank = context.rank();
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({before}, {Like(before)}, OneResult([&](Shards shard) -> TensorOr {
                                   if (rank == 0) return Scale(shard[0], 3);
                                   if (rank == 1) {
                                     return Full(context, shard[0].layout(), shard[0].shape(),
                                                 DType::kF64, 7);
                                   }
                                   TensorOr y = shard[0];
                                   for (int i = 0; i < 5; ++i) y = Scale(y, 2);
                                   return y;
                                 })));
    // The gradients of `before` are gathered on the way: all ranks have to do that.
    DT_ASSIGN_OR_RETURN(const auto gathered, before.Redistribute(whole));
    DT_RETURN_IF_ERROR(Backward(Add(SumOf(y[0]), SumOf(Mul(gathered, gathered)))));
    DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(w));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(before));
    const double slopes[] = {3, 0, 32};
    for (int i = 0; i < 6; ++i)
      EXPECT_NEAR(gradient[i], 2 * (slopes[i / 2] + 2 * values[i]), 1e-12);
    return absl::OkStatus();
  }));
}

// The same where the gradient of the operand must be reduced in the middle of the walk.
TEST(LocalMapGradients, AGradientThatNoRankButOneHasIsReducedOnAll) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Replicate()}, {4}, 1));
    DT_ASSIGN_OR_RETURN(const auto tanh, Tanh(x));  // wants its gradient replicated
    const Dims shape = {4};
    const Layout sharded = *Layout::FromPlacements(mesh, {Shard(0)}, shape);
    DT_ASSIGN_OR_RETURN(
        const Tensors y,
        LocalMap({tanh}, {{sharded, shape}}, OneResult([&](Shards shard) -> TensorOr {
                   if (context.rank() == 0) return Slice(shard[0], 0, 0, 2);
                   return Full(context, shard[0].layout(), {2}, DType::kF64, 1);
                 })));
    DT_RETURN_IF_ERROR(Backward(SumOf(y[0])));
    DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(x));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(tanh));
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(gradient[i], i < 2 ? 1 - values[i] * values[i] : 0, 1e-12);
    }
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, OperandsComeInTheLayoutsAskedFor) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4, 6}, 1));
    const Layout columns = *Layout::FromPlacements(mesh, {Shard(1)}, x.shape());
    // The mean of each column: the rows have to be whole.
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({x}, {{columns, x.shape()}}, OneResult([](Shards shard) {
                                   EXPECT_EQ(shard[0].shape(), (Dims{4, 3}));
                                   return Sub(shard[0], Mean(shard[0], {0}));
                                 }),
                                 {.operand_layouts = {columns}}));
    DT_ASSIGN_OR_RETURN(const auto same, Sub(x.Detach(), Mean(x.Detach(), {0})));
    DT_RETURN_IF_ERROR(Backward(SumOf(Mul(y[0], y[0]))));
    DT_ASSIGN_OR_RETURN(const std::vector<double> gradient, GradientOf(x));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(y[0]));
    DT_ASSIGN_OR_RETURN(const std::vector<double> expected, ToGlobal<double>(same));
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], expected[i], 1e-12);
      EXPECT_NEAR(gradient[i], 2 * values[i], 1e-12);
    }
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, AFunctionThatIsLinearMayGetTerms) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4, 3}, 1));
    DT_ASSIGN_OR_RETURN(const auto sum, Sum(x, {0}));
    EXPECT_TRUE(sum.layout().is_partial());
    const auto scale = OneResult([](Shards shard) { return Scale(shard[0], 5); });
    DT_ASSIGN_OR_RETURN(const Tensors y, LocalMap({sum}, {Like(sum)}, scale));
    DT_RETURN_IF_ERROR(Backward(SumOf(y[0])));
    EXPECT_THAT(*GradientOf(x), Each(5));
    EXPECT_THAT(LocalMap({sum}, {{Layout::Replicated(mesh, 1), sum.shape()}}, scale),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("operand 0 is"), HasSubstr("Partial(sum) over tp"),
                               HasSubstr("give operand_layouts"))));
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, WorksInsideAndAroundRecompute) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    const auto local = [](Shards x) -> TensorsOr {
      return LocalMap(x, {Like(x[0])}, OneResult([](Shards s) { return Mul(Exp(s[0]), s[1]); }));
    };
    const auto around = [&](Shards x) -> TensorsOr {
      return LocalMap(x, {Like(x[0])}, [](Shards shards) -> TensorsOr {
        return Recompute(shards, OneResult([](Shards s) { return Mul(Exp(s[0]), s[1]); }));
      });
    };
    std::vector<double> expected;
    for (int kind = 0; kind < 3; ++kind) {
      DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4, 2}, 1));
      DT_ASSIGN_OR_RETURN(auto w, Leaf(context, mesh, {Replicate()}, {2}, 2));
      TensorsOr y = kind == 0   ? local({x, w})
                    : kind == 1 ? Recompute({x, w}, local)
                                : around({x, w});
      DT_RETURN_IF_ERROR(y.status());
      DT_RETURN_IF_ERROR(Backward(SumOf((*y)[0])));
      DT_ASSIGN_OR_RETURN(std::vector<double> gradients, GradientOf(x));
      DT_ASSIGN_OR_RETURN(const std::vector<double> of_w, GradientOf(w));
      gradients.insert(gradients.end(), of_w.begin(), of_w.end());
      if (kind == 0) expected = gradients;
      EXPECT_EQ(gradients, expected) << kind;
    }
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, IsWalkedTwiceIfTheTapeIsRetainedAndToTensorsAlone) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    DT_ASSIGN_OR_RETURN(auto before, Scale(x, 2));
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({before}, {Like(before)},
                                 OneResult([](Shards shard) { return Scale(shard[0], 3); })));
    const TensorOr loss = SumOf(y[0]);
    DT_ASSIGN_OR_RETURN(const Tensors gradients,
                        GradientsOf(loss, {before, y[0]}, {.retain_graph = true}));
    EXPECT_THAT(*ToGlobal<double>(gradients[0]), Each(3));
    EXPECT_THAT(*ToGlobal<double>(gradients[1]), Each(1));
    DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = true}));
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_THAT(*GradientOf(x), Each(12));
    EXPECT_THAT(Backward(loss), StatusIs(absl::StatusCode::kFailedPrecondition));
    return absl::OkStatus();
  }));
}

// A shard that led to no result is visited with the others, and has no gradient all the same.
TEST(LocalMapGradients, AShardThatIsNotReadHasNoGradient) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    Tensors kept;
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({x, x}, {Like(x)}, OneResult([&](Shards shards) -> TensorOr {
                                   kept.assign(shards.begin(), shards.end());
                                   return Scale(shards[1], 3);
                                 })));
    const TensorOr loss = SumOf(y[0]);
    EXPECT_THAT(GradientsOf(loss, {kept[0]}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not depend")));
    DT_ASSIGN_OR_RETURN(const Tensors gradients, GradientsOf(loss, {kept[1], x}));
    EXPECT_THAT(*ToGlobal<double>(gradients[0]), Each(3));
    EXPECT_THAT(*ToGlobal<double>(gradients[1]), Each(3));
    return absl::OkStatus();
  }));
}

TEST(LocalMapGradients, RecordsNothingThatNobodyWants) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    const auto twice = OneResult([](Shards shard) { return Scale(shard[0], 2); });
    DT_ASSIGN_OR_RETURN(const Tensors of_constant, LocalMap({x.Detach()}, {Like(x)}, twice));
    EXPECT_FALSE(IsRecorded(of_constant[0]));
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const Tensors unrecorded, LocalMap({x}, {Like(x)}, twice));
    EXPECT_FALSE(IsRecorded(unrecorded[0]));
    return absl::OkStatus();
  }));
}

// An operator without a backward inside: Backward says so, as it does outside.
TEST(LocalMapGradients, TellsWhereRecordingStopped) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4, 3}, 1));
    const Dims shape = {4};
    const Layout layout = *Layout::FromPlacements(mesh, {Shard(0)}, shape);
    DT_ASSIGN_OR_RETURN(
        const Tensors index,
        LocalMap({x}, {{layout, shape}}, OneResult([](Shards s) { return ArgMax(s[0], 1); })));
    EXPECT_EQ(index[0].dtype(), DType::kI64);
    EXPECT_FALSE(IsRecorded(index[0]));
    EXPECT_EQ(*ToGlobal<int64_t>(index[0]), *ToGlobal<int64_t>(*ArgMax(x, 1)));
    DT_ASSIGN_OR_RETURN(const auto floats, Cast(index[0], DType::kF64));
    EXPECT_THAT(Backward(SumOf(floats)),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ArgMax")));
    return absl::OkStatus();
  }));
}

// A function that runs again makes the same tensors, so that what was communicated of them is kept.
TEST(LocalMapGradients, KeepsCollectivesOfItsResults) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    const auto scaled = [&](double factor) {
      return LocalMap({x}, {Like(x)}, OneResult([=](Shards s) { return Scale(s[0], factor); }));
    };
    const auto fn = [&](Shards) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(const Tensors twice, scaled(2));
      DT_ASSIGN_OR_RETURN(const Tensors thrice, scaled(3));
      DT_ASSIGN_OR_RETURN(const auto a, twice[0].Redistribute({Replicate()}));
      DT_ASSIGN_OR_RETURN(const auto b, thrice[0].Redistribute({Replicate()}));
      DT_ASSIGN_OR_RETURN(const auto c, Clamp(x, -.5, .5));
      DT_ASSIGN_OR_RETURN(const auto d, c.Redistribute({Replicate()}));
      DT_ASSIGN_OR_RETURN(auto y, Mul(Add(Mul(a, a), b), d));
      return Tensors{std::move(y)};
    };
    DT_ASSIGN_OR_RETURN(const auto plain, fn({}));
    DT_ASSIGN_OR_RETURN(const Tensors expected, GradientsOf(SumOf(plain[0]), {x}));
    for (const bool keeps : {false, true}) {
      DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({x}, fn, {.keep_collectives = keeps}));
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const Tensors gradients, GradientsOf(SumOf(y[0]), {x}));
      int64_t messages = 0;
      for (const auto& [key, traffic] : context.communicator().traffic()) messages += traffic.calls;
      EXPECT_EQ(messages, keeps ? 0 : 3);
      EXPECT_EQ(*ToGlobal<double>(gradients[0]), *ToGlobal<double>(expected[0]));
    }
    return absl::OkStatus();
  }));
}

// A leaf of this rank alone that the function reads gets its gradient too.
TEST(LocalMapGradients, AFunctionMayReadLeavesOfItsOwn) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    DT_ASSIGN_OR_RETURN(const DeviceMesh mine, LocalMesh(context));
    DT_ASSIGN_OR_RETURN(auto scale, Full(context, mine, {Replicate()}, {1}, DType::kF64, 2));
    DT_RETURN_IF_ERROR(scale.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(
        const Tensors y,
        LocalMap({x}, {Like(x)}, OneResult([&](Shards shard) { return Mul(shard[0], scale); })));
    DT_RETURN_IF_ERROR(Backward(SumOf(y[0])));
    EXPECT_THAT(*GradientOf(x), Each(2));
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(x));
    const double expected = values[2 * context.rank()] + values[2 * context.rank() + 1];
    EXPECT_NEAR((*GradientOf(scale))[0], expected, 1e-12);
    const auto times = OneResult([&](Shards shard) { return Mul(shard[0], scale); });
    EXPECT_THAT(LocalMap({x.Detach()}, {Like(x)}, times),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("wants a gradient, which none of the operands does")));
    const NoGrad no_grad(context);
    DT_EXPECT_OK(LocalMap({x.Detach()}, {Like(x)}, times).status());
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
