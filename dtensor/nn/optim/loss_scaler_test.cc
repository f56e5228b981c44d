#include "dtensor/nn/optim/loss_scaler.h"

#include <cmath>
#include <limits>
#include <vector>

#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Values = std::vector<double>;
using State = LossScaler::State;

// An f16 parameter [4, 3] of ones, and its optimizer: steps of `lr` times the gradient.
struct Problem {
  DistributedTensor p;
  Sgd sgd;
  static absl::StatusOr<Problem> Make(Context& context, const SmallPlace& place) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                        SmallParameter(context, place, {4, 3}, DType::kF16, Values(12, 1)));
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({p}, {.momentum = 0.5, .master_weights = true}));
    return Problem{p, std::move(sgd)};
  }
  // As a rank has it that is not on the mesh.
  static absl::StatusOr<Problem> MakeElsewhere(Context& context, const DeviceMesh& mesh) {
    DT_ASSIGN_OR_RETURN(DistributedTensor p,
                        Full(context, Layout::Replicated(mesh, 2), {4, 3}, DType::kF16, 1));
    DT_RETURN_IF_ERROR(p.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({p}, {.momentum = 0.5, .master_weights = true}));
    return Problem{p, std::move(sgd)};
  }
  // The gradient is factors[i] times the loss scale, in f16.
  absl::Status AddGradient(const LossScaler& scaler, const Values& factors) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor c,
                        SmallTensor(p.context(), p.layout(), {4, 3}, DType::kF32, factors));
    DT_RETURN_IF_ERROR(Backward(scaler.Scale(Sum(Mul(Cast(p, DType::kF32), c), {0, 1}))));
    return ReduceGradients({p});
  }
};

void OnEveryMesh(absl::Status (*body)(Context&, Problem)) {
  for (const SmallPlace& place : SmallPlaces()) {
    SCOPED_TRACE(place.ToString());
    EXPECT_THAT(RunAt(place,
                      [&](Context& context) -> absl::Status {
                        DT_ASSIGN_OR_RETURN(Problem problem, Problem::Make(context, place));
                        return body(context, std::move(problem));
                      }),
                IsOk());
  }
}

// 2^-26 is 0 in f16.
TEST(LossScaler, KeepsSmallGradients) {
  OnEveryMesh([](Context&, Problem problem) -> absl::Status {
    const Values tiny(12, 0x1p-26);
    DT_ASSIGN_OR_RETURN(LossScaler one, LossScaler::Create({.initial_scale = 1}));
    DT_RETURN_IF_ERROR(problem.AddGradient(one, tiny));
    EXPECT_THAT(SmallValues(problem.p.grad()), IsOkAndHolds(Each(0)));
    problem.p.ClearGrad();
    DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create());
    EXPECT_EQ(scaler.scale(), 65536);
    DT_RETURN_IF_ERROR(problem.AddGradient(scaler, tiny));
    DT_ASSIGN_OR_RETURN(const auto result, scaler.Step(problem.sgd, 0x1p20));
    scaler.Update();
    EXPECT_TRUE(result.stepped);
    DT_ASSIGN_OR_RETURN(const double norm, Item(result.norm));
    EXPECT_NEAR(norm, 0x1p-26 * std::sqrt(12.0), 1e-6 * norm);
    EXPECT_THAT(SmallValues(problem.p), IsOkAndHolds(Each(1 - 0x1p-6)));
    return absl::OkStatus();
  });
}

TEST(LossScaler, ClipsWhatIsNotScaled) {
  OnEveryMesh([](Context&, Problem problem) -> absl::Status {
    DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create({.initial_scale = 1024}));
    DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, 2)));
    DT_RETURN_IF_ERROR(scaler.Step(problem.sgd, 1, /*max_norm=*/0.5).status());
    DT_ASSIGN_OR_RETURN(const OptimizerState state, problem.sgd.State(problem.p));
    DT_ASSIGN_OR_RETURN(const Values buffer, SmallValues(state.at("momentum_buffer")));
    for (const double b : buffer) EXPECT_NEAR(b, 0.5 / std::sqrt(12.0), 1e-6);
    return absl::OkStatus();
  });
}

// One element, which lies on some of the ranks alone.
TEST(LossScaler, SkipsTheStepOnEveryRankWhenOneElementOverflows) {
  OnEveryMesh([](Context&, Problem problem) -> absl::Status {
    DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create({.initial_scale = 4}));
    DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, 1)));
    DT_RETURN_IF_ERROR(scaler.Step(problem.sgd, 0.25).status());
    scaler.Update();
    problem.sgd.ClearGradients();
    EXPECT_EQ(scaler.state(), (State{4, 1}));
    DT_ASSIGN_OR_RETURN(const Values before, SmallValues(problem.p));
    EXPECT_THAT(before, Each(0.75));
    const double inf = std::numeric_limits<double>::infinity();
    double scale = 4;
    for (const double bad : {inf, -inf, std::nan(""), 1e6}) {  // the last is too large for f16
      Values factors(12, 1);
      factors[7] = bad;
      DT_RETURN_IF_ERROR(problem.AddGradient(scaler, factors));
      DT_ASSIGN_OR_RETURN(const auto result, scaler.Step(problem.sgd, 0.25));
      scaler.Update();
      problem.sgd.ClearGradients();
      EXPECT_FALSE(result.stepped) << bad;
      scale /= 2;
      EXPECT_EQ(scaler.state(), (State{scale, 0}));
      EXPECT_THAT(SmallValues(problem.p), IsOkAndHolds(before));
      DT_ASSIGN_OR_RETURN(const OptimizerState state, problem.sgd.State(problem.p));
      EXPECT_THAT(SmallValues(state.at("momentum_buffer")), IsOkAndHolds(Each(1)));
      EXPECT_THAT(ToGlobal<int64_t>(state.at("step")), IsOkAndHolds(std::vector<int64_t>{1}));
    }
    return absl::OkStatus();
  });
}

TEST(LossScaler, GrowsAsTorchDoes) {
  OnEveryMesh([](Context&, Problem problem) -> absl::Status {
    DT_ASSIGN_OR_RETURN(LossScaler scaler,
                        LossScaler::Create({.initial_scale = 8, .growth_interval = 3}));
    const auto step = [&](double gradient) -> absl::Status {
      DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, gradient)));
      DT_RETURN_IF_ERROR(scaler.Step(problem.sgd, 0.01).status());
      scaler.Update();
      problem.sgd.ClearGradients();
      return absl::OkStatus();
    };
    const double inf = std::numeric_limits<double>::infinity();
    const State want[] = {{8, 1}, {8, 2}, {4, 0}, {4, 1}, {4, 2}, {8, 0}, {4, 0}};
    const double gradients[] = {1, 1, inf, 1, 1, 1, inf};
    for (int i = 0; i < 7; ++i) {
      DT_RETURN_IF_ERROR(step(gradients[i]));
      EXPECT_EQ(scaler.state(), want[i]) << i;
    }
    return absl::OkStatus();
  });
}

// Two optimizers, one loss, as with torch.amp.GradScaler: what the first one's gradients do to the
// scale is for the next loss.
TEST(LossScaler, DividesTheGradientsOfTwoOptimizersByTheScaleOfTheirLoss) {
  OnEveryMesh([](Context& context, Problem first) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor p,
                        Full(context, first.p.layout(), {4, 3}, DType::kF16, 1));
    DT_RETURN_IF_ERROR(p.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({p}, {}));
    Problem second{p, std::move(sgd)};
    for (const bool overflows : {true, false}) {
      DT_ASSIGN_OR_RETURN(LossScaler scaler,
                          LossScaler::Create({.initial_scale = 8, .growth_interval = 1}));
      Values factors(12, 1);
      if (overflows) factors[7] = std::numeric_limits<double>::infinity();
      DT_ASSIGN_OR_RETURN(const Values before, SmallValues(second.p));
      DT_RETURN_IF_ERROR(first.AddGradient(scaler, factors));
      DT_RETURN_IF_ERROR(second.AddGradient(scaler, Values(12, 1)));
      DT_ASSIGN_OR_RETURN(const auto one, scaler.Step(first.sgd, 0.25));
      DT_ASSIGN_OR_RETURN(const auto two, scaler.Step(second.sgd, 0.25));
      EXPECT_EQ(scaler.scale(), 8);
      EXPECT_THAT(scaler.Step(first.sgd, 0.25).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call Update()")));
      scaler.Update();
      EXPECT_EQ(scaler.scale(), overflows ? 4 : 16);
      scaler.Update();  // nothing has stepped since
      EXPECT_EQ(scaler.scale(), overflows ? 4 : 16);
      EXPECT_EQ(one.stepped, !overflows);
      EXPECT_TRUE(two.stepped);
      EXPECT_THAT(SmallValues(second.p), IsOkAndHolds(Each(before[0] - 0.25)));
      first.sgd.ClearGradients();
      second.sgd.ClearGradients();
    }
    return absl::OkStatus();
  });
}

// One loss goes through all of them, so they divide by one scale; also a rank of none of them.
TEST(LossScaler, IsTheSameOnAllStagesOfAPipeline) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const bool is_idle = context.rank() == 3;
    const SmallPlace place = context.rank() < 2 ? SmallPlace{"tp=2@0..1", {Shard(0)}}
                                                : SmallPlace{"tp=1@2..2", {Replicate()}};
    DT_ASSIGN_OR_RETURN(const DeviceMesh last, DeviceMesh::Parse("tp=1@2..2"));
    DT_ASSIGN_OR_RETURN(Problem problem, is_idle ? Problem::MakeElsewhere(context, last)
                                                 : Problem::Make(context, place));
    DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create({.initial_scale = 4}));
    Values factors(12, 1);
    if (context.rank() < 2) factors[7] = std::numeric_limits<double>::infinity();
    if (!is_idle) DT_RETURN_IF_ERROR(problem.AddGradient(scaler, factors));
    DT_ASSIGN_OR_RETURN(const auto result, scaler.Step(problem.sgd, 0.25));
    scaler.Update();
    EXPECT_FALSE(result.stepped);
    EXPECT_EQ(scaler.state(), (State{2, 0})) << context.rank();
    if (!is_idle) {
      EXPECT_THAT(SmallValues(problem.p), IsOkAndHolds(Each(1)));
    }
    problem.sgd.ClearGradients();
    if (!is_idle) DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, 1)));
    DT_ASSIGN_OR_RETURN(const auto next, scaler.Step(problem.sgd, 0.25));
    scaler.Update();
    EXPECT_TRUE(next.stepped);
    EXPECT_EQ(next.norm.defined(), !is_idle);
    EXPECT_EQ(scaler.state(), (State{2, 1}));
    return absl::OkStatus();
  }));
}

// The factor is too large for f16, in which the loss is.
TEST(LossScaler, ScalesNarrowLossesInF32) {
  OnEveryMesh([](Context& context, Problem problem) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const LossScaler scaler, LossScaler::Create());
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss,
                        Full(context, Layout::Replicated(problem.p.mesh(), 0), {}, DType::kF16, 3));
    DT_ASSIGN_OR_RETURN(const DistributedTensor scaled, scaler.Scale(loss));
    EXPECT_EQ(scaled.dtype(), DType::kF32);
    EXPECT_THAT(Item(scaled), IsOkAndHolds(3 * 65536.0));
    return absl::OkStatus();
  });
}

// Two models, each with its scaler.
TEST(LossScaler, MayBeThatOfOneMesh) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const SmallPlace place{context.rank() == 0 ? "tp=1@0..0" : "tp=1@1..1", {Replicate()}};
    DT_ASSIGN_OR_RETURN(Problem problem, Problem::Make(context, place));
    DT_ASSIGN_OR_RETURN(LossScaler scaler,
                        LossScaler::Create({.initial_scale = 4, .of_world = false}));
    const double gradient = context.rank() == 0 ? std::nan("") : 1;
    DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, gradient)));
    DT_ASSIGN_OR_RETURN(const auto result, scaler.Step(problem.sgd, 0.25));
    scaler.Update();
    EXPECT_EQ(result.stepped, context.rank() == 1);
    EXPECT_EQ(scaler.scale(), context.rank() == 0 ? 2 : 4);
    return absl::OkStatus();
  }));
}

TEST(LossScaler, RunsOnMeta) {
  EXPECT_THAT(
      Simulate(1, 2,
               [](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(Problem problem, Problem::Make(context, {"tp=2", {Shard(0)}}));
                 DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create());
                 DT_RETURN_IF_ERROR(problem.AddGradient(scaler, Values(12, 1)));
                 DT_ASSIGN_OR_RETURN(const auto result, scaler.Step(problem.sgd, 1));
                 EXPECT_TRUE(result.stepped);
                 return absl::OkStatus();
               }),
      IsOk());
}

TEST(LossScaler, KeepsAStateAndRefusesOthers) {
  DT_ASSERT_OK_AND_ASSIGN(LossScaler scaler, LossScaler::Create());
  DT_EXPECT_OK(scaler.set_state({512, 7}));
  EXPECT_EQ(scaler.state(), (State{512, 7}));
  for (const State& bad : {State{0, 1}, State{HUGE_VAL, 0}, State{1, -1}}) {
    EXPECT_THAT(scaler.set_state(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LossScaler: a state")));
  }
  EXPECT_EQ(scaler.state(), (State{512, 7}));
  for (const LossScalerOptions& bad :
       {LossScalerOptions{.initial_scale = 0}, LossScalerOptions{.growth_factor = 0.5},
        LossScalerOptions{.backoff_factor = 2}, LossScalerOptions{.growth_interval = 0}}) {
    EXPECT_THAT(LossScaler::Create(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LossScaler: ")));
  }
}

}  // namespace
}  // namespace dtensor
