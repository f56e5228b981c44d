// Recompute: the same gradients as without it, bit for bit, while only its operands are kept.
#include "dtensor/tensor/recompute.h"

#include <stdexcept>
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

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tensors = std::vector<DistributedTensor>;

// Weights [8, 8] split by rows and columns: what they make is Partial in between.
struct Layers {
  DistributedTensor x, w1, w2;
};
absl::StatusOr<Layers> MakeLayers(Context& context, const DeviceMesh& mesh) {
  Layers layers;
  const auto leaf = [&](std::vector<Placement> placements, Dims shape, uint64_t seed) -> TensorOr {
    DT_ASSIGN_OR_RETURN(auto made, RandomNormal(context, mesh, placements, shape, {.seed = seed}));
    DT_RETURN_IF_ERROR(made.set_requires_grad(true));
    return made;
  };
  DT_ASSIGN_OR_RETURN(layers.x, leaf({Shard(0)}, {4, 8}, 1));
  DT_ASSIGN_OR_RETURN(layers.w1, leaf({Shard(1)}, {8, 8}, 2));
  DT_ASSIGN_OR_RETURN(layers.w2, leaf({Shard(0)}, {8, 8}, 3));
  return layers;
}

// x -> silu(gather(x) w1) w2, scattered again; and the hidden features' sum.
TensorsOr Mlp(const Layers& layers, const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute({Replicate()}));
  DT_ASSIGN_OR_RETURN(const auto hidden, Silu(MatMul(whole, layers.w1)));
  DT_ASSIGN_OR_RETURN(const auto product, MatMul(hidden, layers.w2));
  DT_ASSIGN_OR_RETURN(auto y, product.Redistribute({Shard(0)}));
  DT_ASSIGN_OR_RETURN(auto sum, Sum(hidden, {0, 1}));
  return Tensors{std::move(y), std::move(sum)};
}

absl::StatusOr<std::vector<std::vector<float>>> Gradients(const Layers& layers) {
  DT_RETURN_IF_ERROR(ReduceGradients({layers.x, layers.w1, layers.w2}));
  std::vector<std::vector<float>> all;
  for (const DistributedTensor& leaf : {layers.x, layers.w1, layers.w2}) {
    DT_ASSIGN_OR_RETURN(std::vector<float> values, ToGlobal<float>(leaf.grad()));
    all.push_back(std::move(values));
  }
  return all;
}

absl::StatusOr<DistributedTensor> LossOf(const TensorsOr& results) {
  DT_RETURN_IF_ERROR(results.status());
  return Add(Sum(Mul((*results)[0], (*results)[0]), {0, 1}), (*results)[1]);
}

RecomputedFunction MlpOf(const Layers& layers) {
  return [&layers](absl::Span<const DistributedTensor> x) { return Mlp(layers, x[0]); };
}

absl::Status OnMeshes(const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
  for (const std::string text : {"tp=1", "tp=2", "tp=3"}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_RETURN_IF_ERROR(RunRanks(mesh.size(), [&](Context& context) { return fn(context, mesh); }));
  }
  return absl::OkStatus();
}

TEST(Recompute, GivesTheSameGradientsBitForBit) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Layers plain, MakeLayers(context, mesh));
    DT_RETURN_IF_ERROR(Backward(LossOf(Mlp(plain, plain.x))));
    DT_ASSIGN_OR_RETURN(const auto expected, Gradients(plain));
    DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
    DT_RETURN_IF_ERROR(Backward(LossOf(Recompute({layers.x}, MlpOf(layers)))));
    EXPECT_THAT(Gradients(layers), IsOkAndHolds(expected));
    return absl::OkStatus();
  }));
}

TEST(Recompute, GoesOnToWhatMadeItsOperands) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    std::vector<std::vector<float>> expected;
    for (const bool recompute : {false, true}) {
      DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
      DT_ASSIGN_OR_RETURN(const auto before, Scale(layers.x, 2));
      const auto twice = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
        DT_ASSIGN_OR_RETURN(const Tensors once, Mlp(layers, x[0]));
        return recompute ? Recompute({once[0]}, MlpOf(layers)) : Mlp(layers, once[0]);
      };
      DT_RETURN_IF_ERROR(
          Backward(LossOf(recompute ? Recompute({before}, twice) : twice({before}))));
      DT_ASSIGN_OR_RETURN(const auto gradients, Gradients(layers));
      if (!recompute) expected = gradients;
      EXPECT_EQ(gradients, expected);
    }
    return absl::OkStatus();
  }));
}

TEST(Recompute, KeepsItsOperandsAlone) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    int64_t kept[2];
    for (const bool recompute : {false, true}) {
      DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
      DT_ASSIGN_OR_RETURN(const auto x, Scale(layers.x, 1));
      const int64_t before = context.device().memory().live_bytes;
      DT_ASSIGN_OR_RETURN(Tensors y, recompute ? Recompute({x}, MlpOf(layers)) : Mlp(layers, x));
      kept[recompute] = context.device().memory().live_bytes - before;
      y.clear();
    }
    // Results: y, of as many elements as x has here, and a number. Not: whole, hidden,
    // silu(hidden).
    EXPECT_LT(kept[1] + 4 * 8 * 4, kept[0]);
    return absl::OkStatus();
  }));
}

TEST(Recompute, RefusesWhatWasWrittenSince) {
  for (const bool operand : {false, true}) {
    DT_EXPECT_OK(OnMeshes([&](Context& context, const DeviceMesh& mesh) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
      DT_ASSIGN_OR_RETURN(const auto loss, LossOf(Recompute({layers.x}, MlpOf(layers))));
      DT_RETURN_IF_ERROR(BeforeWrite(operand ? layers.x : layers.w2));
      EXPECT_THAT(Backward(loss),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of Recompute")));
      return absl::OkStatus();
    }));
  }
}

TEST(Recompute, DrawsTheSameSeedsAgain) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    context.random() = {7, 0};
    std::vector<uint64_t> seeds;
    DT_ASSIGN_OR_RETURN(auto x, Full(context, DeviceMesh(), {}, {}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    context.NextSeed();
    const auto fn = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
      seeds.push_back(context.NextSeed());
      DT_ASSIGN_OR_RETURN(auto y, Mul(x[0], x[0]));
      return Tensors{y};
    };
    DT_ASSIGN_OR_RETURN(const auto y, Recompute({x}, fn));
    const uint64_t next = context.NextSeed();
    DT_RETURN_IF_ERROR(Backward(y[0]));
    EXPECT_EQ(seeds.size(), 2);
    EXPECT_EQ(seeds[0], seeds[1]);
    EXPECT_NE(seeds[0], next);
    EXPECT_EQ(context.random().drawn, 3);  // Backward drew none
    EXPECT_THAT(ToGlobal<float>(x.grad()), IsOkAndHolds(ElementsAre(6)));
    return absl::OkStatus();
  }));
}

TEST(Recompute, RunsAgainForEachBackwardOverARetainedTape) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
    int runs = 0;
    const auto counted = [&](absl::Span<const DistributedTensor> x) {
      ++runs;
      return Mlp(layers, x[0]);
    };
    DT_ASSIGN_OR_RETURN(const auto loss, LossOf(Recompute({layers.x}, counted)));
    // Of a leaf within, and of an operand, by a walk that goes to these alone.
    DT_ASSIGN_OR_RETURN(const Tensors asked,
                        GradientsOf(loss, {layers.w1, layers.x}, {.retain_graph = true}));
    EXPECT_EQ(runs, 2);
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_EQ(runs, 3);
    for (const auto& [gradient, leaf] : {std::pair(asked[0], layers.w1), {asked[1], layers.x}}) {
      DT_ASSIGN_OR_RETURN(const std::vector<float> expected, ToGlobal<float>(leaf.grad()));
      EXPECT_THAT(ToGlobal<float>(gradient), IsOkAndHolds(expected));
    }
    EXPECT_THAT(Backward(loss), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("walked by an earlier Backward")));
    return absl::OkStatus();
  }));
}

TEST(Recompute, PassesOperandsThroughAndNeedsNoGradientOfThem) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto w, Full(context, DeviceMesh(), {}, {}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, DeviceMesh(), {}, {}, DType::kF32, 5));
    const auto fn = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Mul(x[0], w));
      return Tensors{x[0], y, w};
    };
    DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({x}, fn));
    EXPECT_THAT(Backward(y[0]),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing was recorded")));
    DT_RETURN_IF_ERROR(Backward(Add(y[1], y[2])));
    EXPECT_THAT(ToGlobal<float>(w.grad()), IsOkAndHolds(ElementsAre(6)));
    return absl::OkStatus();
  }));
}

// In whose order terms are added: 1e8 + 1 is 1e8 in f32.
TEST(Recompute, WhatItPassesThroughHasTheGradientThatItHasWithout) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    std::vector<std::vector<float>> gradients;
    for (const bool recomputes : {false, true}) {
      DT_ASSIGN_OR_RETURN(auto w, Full(context, mesh, {Replicate()}, {2}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(w.set_requires_grad(true));
      DT_ASSIGN_OR_RETURN(const auto x, Scale(w, 1));
      const auto fn = [&](absl::Span<const DistributedTensor> given) -> TensorsOr {
        DT_ASSIGN_OR_RETURN(const auto moved, given[0].Redistribute({Shard(0)}));
        DT_ASSIGN_OR_RETURN(const auto twice, Scale(given[0], 2));
        return Tensors{given[0], moved, twice, w};
      };
      DT_ASSIGN_OR_RETURN(const auto y, recomputes ? Recompute({x}, fn) : fn({{x}}));
      const auto sum = [](const TensorOr& term, double factor) {
        return Sum(Scale(term, factor), {0});
      };
      DT_RETURN_IF_ERROR(Backward(AddN({sum(y[0], -1e8), sum(x, 1), sum(y[1], 1e8), sum(y[2], 1),
                                        sum(y[3], -1e8), sum(w, 1), sum(y[3], 1e8)})));
      DT_RETURN_IF_ERROR(ReduceGradients({w}));
      DT_ASSIGN_OR_RETURN(gradients.emplace_back(), ToGlobal<float>(w.grad()));
    }
    EXPECT_EQ(gradients[0], gradients[1]);
    return absl::OkStatus();
  }));
}

// Whose functions hold the tensor before them: dropped without a Backward, or walked.
TEST(Recompute, MayBeALongChain) {
  for (const bool walks : {false, true}) {
    DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(auto w, Full(context, DeviceMesh(), {}, {}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(w.set_requires_grad(true));
      DT_ASSIGN_OR_RETURN(DistributedTensor x, Scale(w, 1));
      for (int i = 0; i < 50000; ++i) {
        const auto fn = [before = x](absl::Span<const DistributedTensor> given) -> TensorsOr {
          DT_ASSIGN_OR_RETURN(auto y, Mul(given[0], before.Detach()));
          return Tensors{y};
        };
        DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({x}, fn));
        x = y[0];
      }
      return walks ? Backward(x) : absl::OkStatus();
    }));
  }
}

TEST(Recompute, RunsOnceWhereNothingIsRecorded) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Layers layers, MakeLayers(context, mesh));
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({layers.x}, MlpOf(layers)));
    EXPECT_FALSE(y[0].requires_grad());
    EXPECT_THAT(Backward(y[1]),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing was recorded")));
    return absl::OkStatus();
  }));
}

TEST(Recompute, RefusesAFunctionThatDoesSomethingElseAgain) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Full(context, DeviceMesh(), {}, {2}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    int runs = 0;
    const auto fn = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, ++runs == 1 ? Scale(x[0], 2) : Sum(x[0], {0}));
      return Tensors{y};
    };
    DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({x}, fn));
    EXPECT_THAT(Backward(Sum(y[0], {0})),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the same both times")));
    EXPECT_FALSE(x.grad().defined());
    return absl::OkStatus();
  }));
}

// Without Recompute, what a leaf wanted when it was read would count.
TEST(Recompute, RefusesAFunctionThatOtherLeavesLeadToItsResultsAgain) {
  DT_EXPECT_OK(OnMeshes([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const bool wanted : {false, true}) {
      DT_ASSIGN_OR_RETURN(Layers layers, MakeLayers(context, mesh));
      DT_RETURN_IF_ERROR(layers.w1.set_requires_grad(wanted));
      DT_ASSIGN_OR_RETURN(const auto loss, LossOf(Recompute({layers.x}, MlpOf(layers))));
      DT_RETURN_IF_ERROR(layers.w1.set_requires_grad(!wanted));
      EXPECT_THAT(Backward(loss, {.retain_graph = true}),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("other leaves when it ran again: [8, 8] f32"),
                                 HasSubstr(wanted ? "is none any more" : "is one more"),
                                 HasSubstr("set_requires_grad() "))));
      EXPECT_FALSE(layers.w2.grad().defined());
      // An operand's way was fixed when it was handed over.
      DT_RETURN_IF_ERROR(layers.x.set_requires_grad(false));
      DT_RETURN_IF_ERROR(layers.w1.set_requires_grad(wanted));
      DT_RETURN_IF_ERROR(Backward(loss));
      EXPECT_TRUE(layers.x.grad().defined() && layers.w2.grad().defined());
      EXPECT_EQ(layers.w1.grad().defined(), wanted);
    }
    return absl::OkStatus();
  }));
}

// What an operand's gradient goes to was recorded while that wanted one.
TEST(Recompute, AnOperandMayLeadToALeafThatWantsNoGradientAnyMore) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(auto w, Full(context, mesh, {Shard(0)}, {2}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto whole, w.Redistribute({Replicate()}));
    const auto square = [](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Mul(x[0], x[0]));
      return Tensors{y};
    };
    const auto twice = [&](absl::Span<const DistributedTensor> x) { return Recompute(x, square); };
    DT_ASSIGN_OR_RETURN(const Tensors before, Recompute({whole}, twice));
    DT_RETURN_IF_ERROR(w.set_requires_grad(false));
    DT_ASSIGN_OR_RETURN(const Tensors after, Recompute({whole}, twice));
    DT_RETURN_IF_ERROR(Backward(Sum(Add(before[0], after[0]), {0})));
    DT_RETURN_IF_ERROR(ReduceGradients({w}));
    EXPECT_THAT(ToGlobal<float>(w.grad()), IsOkAndHolds(ElementsAre(12, 12)));
    return absl::OkStatus();
  }));
}

TEST(Recompute, AnExceptionOfTheFunctionLeavesTheContextAsItWas) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Full(context, DeviceMesh(), {}, {}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    bool throws = false;
    const auto fn = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
      context.NextSeed();
      if (throws) throw std::runtime_error("no such weather");
      DT_ASSIGN_OR_RETURN(auto y, Mul(x[0], x[0]));
      return Tensors{y};
    };
    DT_ASSIGN_OR_RETURN(const Tensors y, Recompute({x}, fn));
    context.random() = {7, 5};
    throws = true;
    {
      const NoGrad no_grad(context);
      EXPECT_THROW(Backward(y[0], {.retain_graph = true}).IgnoreError(), std::runtime_error);
      EXPECT_FALSE(context.recording());
    }
    EXPECT_EQ(context.random().seed, 7);
    EXPECT_EQ(context.random().drawn, 5);
    throws = false;
    DT_RETURN_IF_ERROR(Backward(y[0]));
    EXPECT_THAT(ToGlobal<float>(x.grad()), IsOkAndHolds(ElementsAre(6)));
    return absl::OkStatus();
  }));
}

TEST(Recompute, RefusesOperandsThatAreMissing) {
  const auto fn = [](absl::Span<const DistributedTensor>) -> TensorsOr { return Tensors(); };
  EXPECT_THAT(Recompute({}, fn), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Recompute({DistributedTensor()}, fn),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("operand 0 is undefined")));
}

}  // namespace
}  // namespace dtensor
