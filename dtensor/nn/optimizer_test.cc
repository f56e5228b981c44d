#include "dtensor/nn/optimizer.h"

#include <cmath>
#include <string>
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
using ::testing::HasSubstr;

// A weight [4, 3] on 2x2 ranks whose gradient is `scale * weight`: from 0.5 * scale * sum(w^2).
struct Model {
  DistributedTensor weight;

  static absl::StatusOr<Model> Make(Context& context, absl::Span<const Placement> placements) {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
    std::vector<double> values(12);
    for (int i = 0; i < 12; ++i) values[i] = 0.25 * (i - 5);
    Model model;
    DT_ASSIGN_OR_RETURN(model.weight,
                        Distribute<double>(context, mesh, placements, {4, 3}, values));
    DT_RETURN_IF_ERROR(model.weight.set_requires_grad(true));
    return model;
  }
  absl::Status Gradient(double scale) const {
    return Backward(Scale(Sum(Mul(weight, weight), {0, 1}), 0.5 * scale));
  }
};

const std::vector<Placements> kPlacements = {{Replicate(), Replicate()},
                                             {Shard(0), Replicate()},
                                             {Replicate(), Shard(1)},
                                             {Shard(0), Shard(1)},
                                             {Shard(0), Shard(0)}};

TEST(AdamW, FollowsTheFormulaOnEveryMesh) {
  const AdamWOptions options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  std::vector<double> expected(12), m(12), v(12);
  for (int i = 0; i < 12; ++i) expected[i] = 0.25 * (i - 5);
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < 12; ++i) {
      const double g = 2.0 * expected[i];
      m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
      v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
      const double mhat = m[i] / (1 - std::pow(options.beta1, step)),
                   vhat = v[i] / (1 - std::pow(options.beta2, step));
      expected[i] -=
          0.1 * (options.weight_decay * expected[i] + mhat / (std::sqrt(vhat) + options.eps));
    }
  }
  for (const Placements& placements : kPlacements) {
    EXPECT_THAT(RunRanks(4,
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(const Model model, Model::Make(context, placements));
                           DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({model.weight}, options));
                           for (int step = 0; step < 3; ++step) {
                             DT_RETURN_IF_ERROR(model.Gradient(2.0));
                             DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
                             DT_RETURN_IF_ERROR(adamw.Step(0.1));
                             adamw.ClearGradients();
                           }
                           DT_ASSIGN_OR_RETURN(const std::vector<double> values,
                                               ToGlobal<double>(model.weight));
                           for (int i = 0; i < 12; ++i)
                             EXPECT_NEAR(values[i], expected[i], 1e-12) << ToString(placements);
                           return absl::OkStatus();
                         }),
                IsOk());
  }
}

TEST(ClipByGlobalNorm, CountsEachElementOnce) {
  double squares = 0;
  for (int i = 0; i < 12; ++i) squares += 0.0625 * (i - 5) * (i - 5);
  for (const Placements& placements : kPlacements) {
    EXPECT_THAT(
        RunRanks(
            4,
            [&](Context& context) -> absl::Status {
              DT_ASSIGN_OR_RETURN(const Model a, Model::Make(context, placements));
              DT_ASSIGN_OR_RETURN(const Model b, Model::Make(context, {Replicate(), Shard(1)}));
              DT_RETURN_IF_ERROR(a.Gradient(1.0));
              DT_RETURN_IF_ERROR(b.Gradient(1.0));
              DT_RETURN_IF_ERROR(ReduceGradients({a.weight, b.weight}));
              DT_ASSIGN_OR_RETURN(const ClipResult clip,
                                  ClipByGlobalNorm({a.weight, b.weight}, 0.5));
              DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
              DT_ASSIGN_OR_RETURN(const double scale, Item(clip.scale));
              EXPECT_NEAR(norm, std::sqrt(2 * squares), 1e-12) << ToString(placements);
              EXPECT_NEAR(scale, 0.5 / (std::sqrt(2 * squares) + 1e-6), 1e-12);
              // What counting each replica, or one rank's shard alone, would give.
              EXPECT_GT(std::abs(norm - std::sqrt((4 + 2) * squares)), 0.1);
              return absl::OkStatus();
            }),
        IsOk());
  }
}

TEST(ClipByGlobalNorm, DoesNotScaleSmallGradients) {
  EXPECT_THAT(
      RunRanks(4,
               [&](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const Model model, Model::Make(context, {Shard(0), Shard(1)}));
                 DT_RETURN_IF_ERROR(model.Gradient(1e-3));
                 DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
                 for (const double max_norm : {100.0, 0.0}) {
                   DT_ASSIGN_OR_RETURN(const ClipResult clip,
                                       ClipByGlobalNorm({model.weight}, max_norm));
                   DT_ASSIGN_OR_RETURN(const double scale, Item(clip.scale));
                   EXPECT_EQ(scale, 1.0);
                 }
                 return absl::OkStatus();
               }),
      IsOk());
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

TEST(AdamW, RefusesOneTensorTwiceNamingBoth) {
  EXPECT_THAT(
      RunRanks(4,
               [](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const Model a, Model::Make(context, {Shard(0), Shard(1)}));
                 DT_ASSIGN_OR_RETURN(const Model b, Model::Make(context, {Shard(0), Shard(1)}));
                 DT_RETURN_IF_ERROR(a.Gradient(1.0));
                 DT_RETURN_IF_ERROR(b.Gradient(1.0));
                 const std::vector<DistributedTensor> twice = {a.weight, b.weight, b.weight};
                 for (const auto& [who, status] :
                      {std::pair{"AdamW", AdamW::Create(twice, {}).status()},
                       std::pair{"ClipByGlobalNorm", ClipByGlobalNorm(twice, 1).status()}}) {
                   EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                                AllOf(HasSubstr(who), HasSubstr("list it once"),
                                                      HasSubstr("parameters 1 and 2 are one"))));
                 }
                 return AdamW::Create({a.weight, b.weight}, {}).status();
               }),
      IsOk());
}

TEST(AdamW, RefusesParametersOfTwoContexts) {
  EXPECT_THAT(RunRanks(1,
                       [](Context& one) {
                         return RunRanks(1, [&](Context& other) -> absl::Status {
                           std::vector<DistributedTensor> weights;
                           const Layout layout = Layout::Replicated(*DeviceMesh::Parse("dp=1"), 1);
                           for (Context* context : {&one, &other}) {
                             DT_ASSIGN_OR_RETURN(weights.emplace_back(),
                                                 Full(*context, layout, {4}, DType::kF32, 1));
                             DT_RETURN_IF_ERROR(weights.back().set_requires_grad(true));
                           }
                           DT_RETURN_IF_ERROR(AdamW::Create({weights[1]}, {}).status());
                           return AdamW::Create(weights, {}).status();
                         });
                       }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("AdamW: parameters 0 and 1 belong to two Contexts")));
}

TEST(AdamW, RefusesAScaleThatDoesNotFit) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Model model, Model::Make(context, {Shard(0), Shard(1)}));
            const DeviceMesh& mesh = model.weight.mesh();
            DT_RETURN_IF_ERROR(model.Gradient(1.0));
            DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
            DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({model.weight}, {}));
            DT_ASSIGN_OR_RETURN(const std::vector<double> before, ToGlobal<double>(model.weight));
            const Placements whole = {Replicate(), Replicate()};
            const TensorOr scales[] = {
                Full(context, mesh, whole, {}, DType::kF32, 1),
                Full(context, mesh, whole, {2}, DType::kF64, 1),
                FromLocal(context, mesh, {Partial(), Replicate()}, {},
                          Full(context, mesh, whole, {}, DType::kF64, 1)->local())};
            for (const TensorOr& scale : scales) {
              DT_RETURN_IF_ERROR(scale.status());
              EXPECT_THAT(adamw.Step(0.1, *scale),
                          StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("needs a replicated f64 scalar")));
            }
            DT_ASSIGN_OR_RETURN(const std::vector<double> after, ToGlobal<double>(model.weight));
            EXPECT_EQ(after, before);
            return adamw.Step(0.1, *Full(context, mesh, whole, {}, DType::kF64, 1));
          }),
      IsOk());
}

TEST(ClipByGlobalNorm, RefusesWhatHasNoNorm) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Model wide, Model::Make(context, {Shard(0), Shard(1)}));
            const auto refuses = [](const char* why) {
              return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
            };
            EXPECT_THAT(ClipByGlobalNorm({}, 1), refuses("no parameters"));
            EXPECT_THAT(ClipByGlobalNorm({DistributedTensor()}, 1), refuses("undefined"));
            EXPECT_THAT(ClipByGlobalNorm({wide.weight}, 1), refuses("call Backward first"));
            DT_ASSIGN_OR_RETURN(DistributedTensor narrow,
                                Full(context, wide.weight.layout(), {4, 3}, DType::kF32, 1));
            DT_RETURN_IF_ERROR(narrow.set_requires_grad(true));
            DT_RETURN_IF_ERROR(wide.Gradient(1.0));
            DT_RETURN_IF_ERROR(Backward(Sum(narrow, {0, 1})));
            DT_RETURN_IF_ERROR(ReduceGradients({wide.weight, narrow}));
            EXPECT_THAT(ClipByGlobalNorm({wide.weight, narrow}, 1), refuses("clip them apart"));
            return absl::OkStatus();
          }),
      IsOk());
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
