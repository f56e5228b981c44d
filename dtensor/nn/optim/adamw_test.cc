#include "dtensor/nn/optim/adamw.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

using Values = std::vector<double>;

// The formula of the header, step for step.
struct Reference {
  AdamWOptions options;
  Values p, exp_avg = Values(p.size()), exp_avg_sq = Values(p.size());

  void Step(int t, double lr, const Values& gradient) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i];
      exp_avg[i] = options.beta1 * exp_avg[i] + (1 - options.beta1) * g;
      exp_avg_sq[i] = options.beta2 * exp_avg_sq[i] + (1 - options.beta2) * g * g;
      const double m = exp_avg[i] / (1 - std::pow(options.beta1, t));
      const double v = exp_avg_sq[i] / (1 - std::pow(options.beta2, t));
      p[i] -= lr * (options.weight_decay * p[i] + m / (std::sqrt(v) + options.eps));
    }
  }
};

void ExpectNear(const DistributedTensor& tensor, const Values& want, double relative) {
  const auto values = SmallValues(tensor);
  ASSERT_THAT(values, IsOk());
  ASSERT_EQ(values->size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR((*values)[i], want[i], relative * (1 + std::abs(want[i]))) << i;
  }
}

// A matrix in a group with decay, and a vector in one of its own with half the rate.
absl::Status FollowGroups(Context& context, const SmallPlace& place) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor matrix,
                      SmallParameter(context, place, {4, 3}, DType::kF64, SomeValues(12, 1)));
  DT_ASSIGN_OR_RETURN(const DistributedTensor vector,
                      SmallParameter(context, place, {5}, DType::kF64, SomeValues(5, 2)));
  Reference a{{.beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.3}, SomeValues(12, 1)};
  Reference b{{.beta1 = 0.9, .eps = 1e-3, .weight_decay = 0.1}, SomeValues(5, 2)};
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({AdamWGroup{{matrix}, a.options},
                                                  AdamWGroup{{vector}, b.options, 0.5}}));
  for (int t = 1; t <= 5; ++t) {
    DT_RETURN_IF_ERROR(AddSmallGradient(matrix, SomeValues(12, 10 + t)));
    DT_RETURN_IF_ERROR(AddSmallGradient(vector, SomeValues(5, 20 + t)));
    DT_RETURN_IF_ERROR(adamw.Step(0.1));
    adamw.ClearGradients();
    a.Step(t, 0.1, SomeValues(12, 10 + t));
    b.Step(t, 0.05, SomeValues(5, 20 + t));
  }
  ExpectNear(matrix, a.p, 1e-12);
  ExpectNear(vector, b.p, 1e-12);
  DT_ASSIGN_OR_RETURN(const OptimizerState state, adamw.State(matrix));
  ExpectNear(state.at("exp_avg"), a.exp_avg, 1e-12);
  ExpectNear(state.at("exp_avg_sq"), a.exp_avg_sq, 1e-12);
  return absl::OkStatus();
}

TEST(AdamW, FollowsTheFormulaInGroupsOnEveryMesh) {
  for (const SmallPlace& place : SmallPlaces()) {
    SCOPED_TRACE(place.ToString());
    EXPECT_THAT(RunAt(place, [&](Context& context) { return FollowGroups(context, place); }),
                IsOk());
  }
}

TEST(AdamW, OneGroupDecaysMatricesAlone) {
  EXPECT_THAT(RunRanks(1,
                       [](Context& context) -> absl::Status {
                         const SmallPlace place{"tp=1", {Replicate()}};
                         for (const Dims& shape : {Dims{4}, Dims{4, 1}}) {
                           DT_ASSIGN_OR_RETURN(
                               const DistributedTensor p,
                               SmallParameter(context, place, shape, DType::kF64, Values(4, 1)));
                           DT_ASSIGN_OR_RETURN(AdamW adamw,
                                               AdamW::Create({p}, {.weight_decay = 0.5}));
                           DT_RETURN_IF_ERROR(AddSmallGradient(p, Values(4, 0)));
                           DT_RETURN_IF_ERROR(adamw.Step(0.1));
                           ExpectNear(p, Values(4, shape.size() == 1 ? 1 : 0.95), 1e-15);
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

// What bf16 holds of a parameter after steps that are smaller than its rounding.
absl::Status FollowMaster(Context& context, const SmallPlace& place, DType dtype, bool wide) {
  const Values first(12, 1);
  DT_ASSIGN_OR_RETURN(DistributedTensor with, SmallParameter(context, place, {4, 3}, dtype, first));
  DT_ASSIGN_OR_RETURN(DistributedTensor without,
                      SmallParameter(context, place, {4, 3}, dtype, first));
  if (wide) DT_RETURN_IF_ERROR(with.set_grad_dtype(DType::kF32));
  Reference want{{.weight_decay = 0}, first};
  AdamWOptions options = want.options;
  DT_ASSIGN_OR_RETURN(AdamW plain, AdamW::Create({without}, options));
  options.master_weights = true;
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({with}, options));
  for (int t = 1; t <= 40; ++t) {
    for (const DistributedTensor& p : {with, without}) {
      DT_RETURN_IF_ERROR(AddSmallGradient(p, Values(12, 0.5)));
    }
    DT_RETURN_IF_ERROR(adamw.Step(1e-4));
    DT_RETURN_IF_ERROR(plain.Step(1e-4));
    adamw.ClearGradients();
    plain.ClearGradients();
    want.Step(t, 1e-4, Values(12, 0.5));
  }
  DT_ASSIGN_OR_RETURN(const OptimizerState state, adamw.State(with));
  const DistributedTensor& master = state.at("master");
  EXPECT_EQ(master.dtype(), DType::kF32);
  EXPECT_EQ(master.layout(), with.layout());
  ExpectNear(master, want.p, 1e-6);
  DT_ASSIGN_OR_RETURN(const Values moved, SmallValues(with));
  DT_ASSIGN_OR_RETURN(const DistributedTensor rounded, Cast(master, dtype));
  EXPECT_THAT(SmallValues(rounded), IsOkAndHolds(moved));
  EXPECT_NEAR(moved[0], 1 - 0.004, 0.002);
  EXPECT_THAT(SmallValues(without), IsOkAndHolds(first));  // each of its steps is rounded away
  EXPECT_EQ(plain.State(without)->count("master"), 0);
  return absl::OkStatus();
}

TEST(AdamW, MasterWeightsKeepSmallSteps) {
  for (const SmallPlace& place : SmallPlaces()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const bool wide : {false, true}) {
        SCOPED_TRACE(place.ToString());
        EXPECT_THAT(
            RunAt(place,
                  [&](Context& context) { return FollowMaster(context, place, dtype, wide); }),
            IsOk());
      }
    }
  }
}

TEST(AdamW, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const AdamWOptions& options :
       {AdamWOptions{.beta1 = 1}, AdamWOptions{.beta2 = -0.1}, AdamWOptions{.eps = -1},
        AdamWOptions{.weight_decay = nan}, AdamWOptions{.beta1 = nan}}) {
    EXPECT_THAT(AdamW::Create(std::vector<DistributedTensor>(), options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AdamW: ")));
  }
  EXPECT_THAT(AdamW::Create({AdamWGroup{{}, {}, -1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lr_scale is -1")));
}

TEST(AdamW, RefusesPartialGradients) {
  const absl::Status status = RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=4"));
    DT_ASSIGN_OR_RETURN(DistributedTensor weight,
                        RandomNormal(context, mesh, {Replicate()}, {3, 2}, {.seed = 1}));
    DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Shard(0)}, {8, 2}, {.seed = 2}));
    DT_RETURN_IF_ERROR(Backward(Sum(Linear(x, weight), {0, 1})));
    EXPECT_TRUE(weight.grad().layout().is_partial());
    EXPECT_THAT(ClipByGlobalNorm({weight}, 1).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ReduceGradients")));
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({weight}, {}));
    return adamw.Step(0.1);
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ReduceGradients")));
}

TEST(AdamW, BackwardAfterAStepIsRefused) {
  const absl::Status status = RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
    DT_ASSIGN_OR_RETURN(DistributedTensor weight,
                        RandomNormal(context, mesh, {Replicate()}, {3, 2}, {.seed = 1}));
    DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
    DT_RETURN_IF_ERROR(Backward(Sum(weight, {0, 1})));
    const TensorOr stale = Sum(Mul(weight, weight), {0, 1});
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({weight}, {}));
    DT_RETURN_IF_ERROR(adamw.Step(0.1));
    return Backward(stale);
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was written after")));
}

}  // namespace
}  // namespace dtensor
