#include "dtensor/nn/optim/optimizer.h"

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/adopt.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Optimizer, RefusesOneTensorTwiceNamingBoth) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const OneWeight a, OneWeight::Make(context, {Shard(0), Shard(1)}));
            DT_ASSIGN_OR_RETURN(const OneWeight b, OneWeight::Make(context, {Shard(0), Shard(1)}));
            DT_RETURN_IF_ERROR(a.Gradient(1.0));
            DT_RETURN_IF_ERROR(b.Gradient(1.0));
            const std::vector<DistributedTensor> twice = {a.weight, b.weight, b.weight};
            for (const auto& [who, status] : {std::pair{"AdamW", AdamW::Create(twice, {}).status()},
                                              std::pair{"Sgd", Sgd::Create(twice, {}).status()}}) {
              EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr(who), HasSubstr("list it once"),
                                                 HasSubstr("parameters 1 and 2 are one"))));
            }
            return AdamW::Create({a.weight, b.weight}, {}).status();
          }),
      IsOk());
}

// A step with other numbers on one rank alone is found when its weight is next read.
TEST(Optimizer, TellsRanksThatStepOtherwise) {
  using Step = std::function<absl::Status(const OneWeight&, bool odd)>;
  const Step steps[] = {
      [](const OneWeight& one, bool odd) -> absl::Status {
        DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({one.weight}, {}));
        return adamw.Step(odd ? 0.1 : 0.2);
      },
      [](const OneWeight& one, bool odd) -> absl::Status {
        DT_ASSIGN_OR_RETURN(AdamW adamw,
                            AdamW::Create({one.weight}, {.weight_decay = odd ? 0.1 : 0.2}));
        return adamw.Step(0.1);
      },
      [](const OneWeight& one, bool odd) -> absl::Status {
        DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({{{one.weight}, {}, odd ? 0.5 : 1}}));
        return sgd.Step(0.1);
      },
      [](const OneWeight& one, bool odd) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const ClipResult clipped,
                            ClipByGlobalNorm({one.weight}, odd ? 1 : 0.5));
        DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({one.weight}, {}));
        return sgd.Step(0.1, clipped.scale);
      }};
  for (const Step& step : steps) {
    for (const bool differs : {false, true}) {
      const absl::Status status = RunRanks(4, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const OneWeight one, OneWeight::Make(context, {Shard(0), Replicate()}));
        DT_RETURN_IF_ERROR(one.Gradient(1.0));
        DT_RETURN_IF_ERROR(step(one, differs && context.rank() == 2));
        return one.weight.Redistribute({Replicate(), Replicate()}).status();
      });
      if (!differs) {
        DT_EXPECT_OK(status);
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("ranks disagree"), HasSubstr("rank 2"))));
      }
    }
  }
}

TEST(Optimizer, RefusesParametersOfTwoContexts) {
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

TEST(Optimizer, RefusesAScaleThatDoesNotFit) {
  EXPECT_THAT(RunRanks(4,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const OneWeight model,
                                             OneWeight::Make(context, {Shard(0), Shard(1)}));
                         const DeviceMesh& mesh = model.weight.mesh();
                         DT_RETURN_IF_ERROR(model.Gradient(1.0));
                         DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
                         DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({model.weight}, {}));
                         DT_ASSIGN_OR_RETURN(const std::vector<double> before,
                                             ToGlobal<double>(model.weight));
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
                         DT_ASSIGN_OR_RETURN(const std::vector<double> after,
                                             ToGlobal<double>(model.weight));
                         EXPECT_EQ(after, before);
                         return adamw.Step(0.1, *Full(context, mesh, whole, {}, DType::kF64, 1));
                       }),
              IsOk());
}

TEST(Optimizer, RefusesARateThatIsNone) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const OneWeight model, OneWeight::Make(context, {Shard(0), Shard(1)}));
    DT_RETURN_IF_ERROR(model.Gradient(1.0));
    DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({model.weight}, {}));
    DT_ASSIGN_OR_RETURN(const std::vector<double> before, ToGlobal<double>(model.weight));
    for (const double rate : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      EXPECT_THAT(adamw.Step(rate), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("AdamW: a learning rate of ")));
    }
    DT_ASSIGN_OR_RETURN(const std::vector<double> after, ToGlobal<double>(model.weight));
    EXPECT_EQ(after, before);
    return absl::OkStatus();
  }));
}

// As one stage of a pipeline would make it: others have none of its elements.
TEST(Optimizer, RefusesAScaleThatIsNotOnTheParametersRanks) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh first, DeviceMesh::Parse("tp=1@0..0"));
    DT_ASSIGN_OR_RETURN(const DeviceMesh second, DeviceMesh::Parse("tp=1@1..1"));
    DT_ASSIGN_OR_RETURN(DistributedTensor weight,
                        Full(context, second, {Replicate()}, {4}, DType::kF32, 1));
    DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({weight}, {}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor scale,
                        Full(context, first, {Replicate()}, {}, DType::kF32, 0.5));
    DT_RETURN_IF_ERROR(AddSmallGradient(weight, std::vector<double>(4, 1)));
    EXPECT_THAT(sgd.Step(0.1, scale),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("grad_scale is [] f32 on [\"tp\"=1]@0"),
                               HasSubstr("on the parameter's ranks"))));
    if (context.rank() == 0) return absl::OkStatus();
    EXPECT_THAT(SmallValues(weight), IsOkAndHolds(std::vector<double>(4, 1)));
    return absl::OkStatus();
  }));
}

// As ranks that run a whole pipeline do.
TEST(Optimizer, StepsOnOtherRanksChangeNothing) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1@1..1"));
    DT_ASSIGN_OR_RETURN(DistributedTensor weight,
                        Full(context, mesh, {Replicate()}, {4}, DType::kF64, 1));
    DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({weight}, {}));
    for (int i = 0; i < 2; ++i) {
      DT_RETURN_IF_ERROR(Backward(Sum(Mul(weight, weight), {0})));
      DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm({weight}, .5));
      EXPECT_EQ(clip.norm.local().numel(), context.rank());
      DT_RETURN_IF_ERROR(adamw.Step(0.1, clip.scale));
      adamw.ClearGradients();
    }
    return absl::OkStatus();
  }));
}

TEST(Optimizer, RefusesGroupsThatOverlapNamingThem) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const OneWeight a, OneWeight::Make(context, {Shard(0), Shard(1)}));
            DT_ASSIGN_OR_RETURN(const OneWeight b, OneWeight::Make(context, {Shard(0), Shard(1)}));
            const auto refuses = [](const char* why) {
              return StatusIs(absl::StatusCode::kInvalidArgument,
                              AllOf(HasSubstr(why), HasSubstr("list it once")));
            };
            EXPECT_THAT(
                AdamW::Create({AdamWGroup{{a.weight, b.weight}}, AdamWGroup{{b.weight}}}),
                refuses("AdamW: parameter 1 of group 0 and parameter 0 of group 1 are one"));
            EXPECT_THAT(Sgd::Create({SgdGroup{{a.weight}}, SgdGroup{{b.weight, b.weight}}}),
                        refuses("Sgd: parameter 0 of group 1 and parameter 1 of group 1 are one"));
            EXPECT_THAT(AdamW::Create({AdamWGroup{{a.weight}}, AdamWGroup{{{}}}}),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("parameter 0 of group 1 is undefined")));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(Optimizer, RefusesWhatItCannotStep) {
  EXPECT_THAT(
      RunRanks(
          2,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
            const auto refuses = [](const char* why) {
              return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
            };
            DT_ASSIGN_OR_RETURN(DistributedTensor tensor,
                                Full(context, mesh, {Replicate()}, {4, 2}, DType::kF32, 1));
            EXPECT_THAT(Sgd::Create({tensor}, {}), refuses("leaves that require gradients"));
            DT_ASSIGN_OR_RETURN(DistributedTensor broadcast,
                                FromLocal(context, mesh, {Replicate()}, {4, 2},
                                          tensor.local().Narrow(0, 0, 1).BroadcastTo({4, 2})));
            DT_RETURN_IF_ERROR(broadcast.set_requires_grad(true));
            EXPECT_THAT(
                Sgd::Create({broadcast}, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("one place in memory")));
            DT_ASSIGN_OR_RETURN(DistributedTensor reshaped, Reshape(Transpose(tensor, 0, 1), {8}));
            DT_RETURN_IF_ERROR(reshaped.set_requires_grad(true));
            EXPECT_THAT(Sgd::Create({reshaped}, {}),
                        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Sgd: [8] f32")));
            DT_ASSIGN_OR_RETURN(DistributedTensor partial,
                                FromLocal(context, mesh, {Partial()}, {4, 2}, tensor.local()));
            DT_RETURN_IF_ERROR(partial.set_requires_grad(true));
            EXPECT_THAT(Sgd::Create({partial}, {}), refuses("is Partial"));
            return absl::OkStatus();
          }),
      IsOk());
}

// A program's [5, 3] in columns (Fortran's order), split by rows. The last of three ranks and the
// last two of four have so few that the strides say nothing.
template <typename T>
absl::Status StepColumns(Context& context, const Layout& layout) {
  const Dims shape = {5, 3};
  DT_ASSIGN_OR_RETURN(const DistributedTensor rows,
                      Distribute<double>(context, layout, shape, SomeValues(15, 1)));
  DT_ASSIGN_OR_RETURN(std::vector<double> values, ToHost<double>(rows.local().Transpose(0, 1)));
  const int64_t n = rows.local().size(0);
  const auto memory = std::make_shared<std::vector<double>>(std::move(values));
  DT_ASSIGN_OR_RETURN(const Tensor columns,
                      AdoptSpan<double>(context.device(), absl::MakeSpan(*memory), {3, n},
                                        /*deleter=*/[memory] {}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor adopted,
                      FromLocal(context, layout, shape, columns.Transpose(0, 1)));
  std::vector<std::vector<double>> after;
  for (DistributedTensor parameter : {rows, adopted}) {
    DT_RETURN_IF_ERROR(parameter.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(T optimizer, T::Create({parameter}, {.weight_decay = 0.5}));
    for (int step = 0; step < 2; ++step) {
      DT_RETURN_IF_ERROR(AddSmallGradient(parameter, SomeValues(15, 2)));
      DT_RETURN_IF_ERROR(optimizer.Step(0.1));
    }
    DT_ASSIGN_OR_RETURN(after.emplace_back(), SmallValues(parameter));
  }
  EXPECT_NE(after[0], SomeValues(15, 1));
  EXPECT_EQ(after[1], after[0]);
  EXPECT_THAT(ToHost<double>(rows.local().Transpose(0, 1)), IsOkAndHolds(*memory))
      << "the program's own memory";
  return absl::OkStatus();
}

TEST(Optimizer, StepsColumnsAsItStepsRows) {
  for (const char* mesh : {"tp=1", "tp=2", "tp=3", "tp=4"}) {
    SCOPED_TRACE(mesh);
    const SmallPlace place = {mesh, {Shard(0)}};
    DT_ASSERT_OK_AND_ASSIGN(const Layout layout, SmallLayout(place, {5, 3}));
    const auto step = [&](auto step_columns) {
      EXPECT_THAT(RunAt(place, [&](Context& context) { return step_columns(context, layout); }),
                  IsOk());
    };
    step(StepColumns<AdamW>);
    step(StepColumns<Sgd>);
  }
}

// One step of each parameter that has a gradient, in which nothing else moves.
TEST(Optimizer, LeavesParametersWithoutGradientsAlone) {
  for (const SmallPlace& place : SmallPlaces()) {
    SCOPED_TRACE(place.ToString());
    EXPECT_THAT(
        RunAt(place,
              [&](Context& context) -> absl::Status {
                std::vector<DistributedTensor> both(2);
                for (DistributedTensor& p : both) {
                  DT_ASSIGN_OR_RETURN(
                      p, SmallParameter(context, place, {4, 3}, DType::kF64, SomeValues(12, 1)));
                }
                DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(both, {.weight_decay = 0.5}));
                Optimizer& optimizer = adamw;
                for (int step = 0; step < 2; ++step) {
                  DT_RETURN_IF_ERROR(AddSmallGradient(both[1], SomeValues(12, 2)));
                  DT_RETURN_IF_ERROR(optimizer.Step(0.1));
                  optimizer.ClearGradients();
                }
                EXPECT_THAT(SmallValues(both[0]), IsOkAndHolds(SomeValues(12, 1)));
                DT_ASSIGN_OR_RETURN(const OptimizerState idle, optimizer.State(both[0]));
                DT_ASSIGN_OR_RETURN(const OptimizerState moved, optimizer.State(both[1]));
                EXPECT_THAT(ToGlobal<int64_t>(idle.at("step")),
                            IsOkAndHolds(std::vector<int64_t>{0}));
                EXPECT_THAT(ToGlobal<int64_t>(moved.at("step")),
                            IsOkAndHolds(std::vector<int64_t>{2}));
                return absl::OkStatus();
              }),
        IsOk());
  }
}

// Random shapes, types, groups and gradients: the same numbers on every mesh. One parameter is
// used twice, some have no gradient now and then.
class RandomTraining {
 public:
  RandomTraining(Context& context, const SmallPlace& place, uint64_t seed)
      : context_(context), place_(place), random_(seed) {}

  absl::StatusOr<std::vector<std::vector<double>>> Run() {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer, Make());
    for (int step = 0; step < 5; ++step) {
      DT_RETURN_IF_ERROR(AddGradients());
      DT_RETURN_IF_ERROR(optimizer->Step(0.125));
      if (Draw(3) > 0) optimizer->ClearGradients();
    }
    std::vector<std::vector<double>> values;
    for (const DistributedTensor& p : optimizer->parameters()) {
      DT_ASSIGN_OR_RETURN(values.emplace_back(), SmallValues(p));
      DT_ASSIGN_OR_RETURN(const OptimizerState state, optimizer->State(p));
      for (const auto& [name, tensor] : state) {
        DT_ASSIGN_OR_RETURN(values.emplace_back(), SmallValues(tensor));
      }
    }
    return values;
  }

 private:
  int Draw(int n) { return static_cast<int>(random_() % n); }

  absl::StatusOr<std::unique_ptr<Optimizer>> Make() {
    const DType dtypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};
    std::vector<std::vector<DistributedTensor>> groups(1 + Draw(3));
    for (int i = 0; i < 6; ++i) {
      const Dims shape = Draw(2) == 0 ? Dims{Draw(6)} : Dims{Draw(4), 1 + Draw(3)};
      const int64_t n = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
      DT_ASSIGN_OR_RETURN(DistributedTensor p, SmallParameter(context_, place_, shape,
                                                              dtypes[Draw(4)], SomeValues(n, i)));
      if (Draw(2) == 0) DT_RETURN_IF_ERROR(p.set_grad_dtype(AccumulatorOf(p.dtype())));
      groups[Draw(static_cast<int>(groups.size()))].push_back(p);
      parameters_.push_back(p);
    }
    if (Draw(2) == 0)
      return MakeOf<AdamW, AdamWGroup>(groups, [&](AdamWOptions& options) {
        options = {.weight_decay = 0.1 * Draw(3), .master_weights = Draw(2) == 0};
      });
    return MakeOf<Sgd, SgdGroup>(groups, [&](SgdOptions& options) {
      options = {
          .momentum = 0.5 * Draw(2), .weight_decay = 0.1 * Draw(3), .master_weights = Draw(2) == 0};
      options.nesterov = options.momentum > 0 && Draw(2) == 0;
    });
  }

  template <typename T, typename Group, typename Fn>
  absl::StatusOr<std::unique_ptr<Optimizer>> MakeOf(
      const std::vector<std::vector<DistributedTensor>>& parameters, Fn set) {
    std::vector<Group> groups;
    for (const std::vector<DistributedTensor>& some : parameters) {
      groups.push_back({.parameters = some, .lr_scale = 0.5 * (1 + Draw(2))});
      set(groups.back().options);
    }
    DT_ASSIGN_OR_RETURN(T optimizer, T::Create(std::move(groups)));
    return std::make_unique<T>(std::move(optimizer));
  }

  absl::Status AddGradients() {
    for (const DistributedTensor& p : parameters_) {
      const int seed = Draw(100);
      if (seed < 30) continue;
      const auto n = static_cast<size_t>(NumElements(p.shape()));
      DT_RETURN_IF_ERROR(AddSmallGradient(p, SomeValues(n, seed)));
      if (seed > 80) DT_RETURN_IF_ERROR(AddSmallGradient(p, SomeValues(n, seed + 1)));
    }
    return absl::OkStatus();
  }

  Context& context_;
  const SmallPlace& place_;
  std::mt19937_64 random_;
  std::vector<DistributedTensor> parameters_;
};

TEST(Optimizer, RandomTrainingIsTheSameOnEveryMesh) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::vector<std::vector<double>> expected;
    for (const SmallPlace& place : SmallPlaces()) {
      SCOPED_TRACE(absl::StrCat(place.ToString(), ", seed ", seed));
      EXPECT_THAT(RunAt(place,
                        [&](Context& context) -> absl::Status {
                          DT_ASSIGN_OR_RETURN(const auto values,
                                              RandomTraining(context, place, seed).Run());
                          if (place.mesh == "tp=1") {
                            expected = values;
                          } else {
                            EXPECT_EQ(values, expected);  // bit by bit
                          }
                          return absl::OkStatus();
                        }),
                  IsOk());
    }
  }
}

}  // namespace
}  // namespace dtensor
