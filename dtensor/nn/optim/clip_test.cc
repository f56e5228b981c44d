#include "dtensor/nn/optim/clip.h"

#include <cmath>
#include <string>
#include <vector>

#include "dtensor/nn/optim/sgd.h"
#include "dtensor/nn/testing/small_problem.h"
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

const std::vector<Placements> kPlacements = {{Replicate(), Replicate()},
                                             {Shard(0), Replicate()},
                                             {Replicate(), Shard(1)},
                                             {Shard(0), Shard(1)},
                                             {Shard(0), Shard(0)}};

TEST(ClipByGlobalNorm, CountsEachElementOnce) {
  double squares = 0;
  for (int i = 0; i < 12; ++i) squares += 0.0625 * (i - 5) * (i - 5);
  for (const Placements& placements : kPlacements) {
    EXPECT_THAT(RunRanks(4,
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(const OneWeight a,
                                               OneWeight::Make(context, placements));
                           DT_ASSIGN_OR_RETURN(const OneWeight b,
                                               OneWeight::Make(context, {Replicate(), Shard(1)}));
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
  EXPECT_THAT(RunRanks(4,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const OneWeight model,
                                             OneWeight::Make(context, {Shard(0), Shard(1)}));
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

TEST(ClipByGlobalNorm, RefusesWhatHasNoNorm) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const OneWeight wide,
                                OneWeight::Make(context, {Shard(0), Shard(1)}));
            const auto refuses = [](const char* why) {
              return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
            };
            EXPECT_THAT(ClipByGlobalNorm({}, 1), refuses("no parameters"));
            EXPECT_THAT(ClipByGlobalNorm({wide.weight}, std::nan("")), refuses("max_norm is NaN"));
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

// As in PyTorch, where it makes all gradients NaN: a step must not pass for one that was clipped.
TEST(ClipByGlobalNorm, ScalesByNaNWhereTheNormIs) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      const SmallPlace place{"dp=2,tp=2", {Shard(0), Replicate()}};
      std::vector<double> values(12, 1);
      DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                          SmallParameter(context, place, {4, 3}, DType::kF32, values));
      values[7] = bad;
      DT_RETURN_IF_ERROR(AddSmallGradient(p, values));
      DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm({p}, 0.5));
      DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
      DT_ASSIGN_OR_RETURN(const double scale, Item(clip.scale));
      EXPECT_FALSE(std::isfinite(norm));
      EXPECT_TRUE(std::isnan(bad) ? std::isnan(scale) : scale == 0) << scale;
      return absl::OkStatus();
    }));
  }
}

// Of gradients that are 8 times too large.
TEST(ClipByGlobalNorm, MeansGradientsTimesAFactor) {
  EXPECT_THAT(RunRanks(4,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const OneWeight model,
                                             OneWeight::Make(context, {Shard(0), Replicate()}));
                         DT_RETURN_IF_ERROR(model.Gradient(1));
                         DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
                         DT_ASSIGN_OR_RETURN(const ClipResult want,
                                             ClipByGlobalNorm({model.weight}, 0.5));
                         DT_ASSIGN_OR_RETURN(const double norm, Item(want.norm));
                         DT_ASSIGN_OR_RETURN(const double scale, Item(want.scale));
                         DistributedTensor weight = model.weight;
                         weight.ClearGrad();
                         DT_RETURN_IF_ERROR(model.Gradient(8));
                         DT_RETURN_IF_ERROR(ReduceGradients({model.weight}));
                         DT_ASSIGN_OR_RETURN(const ClipResult clip,
                                             ClipByGlobalNorm({model.weight}, 0.5, 1.0 / 8));
                         EXPECT_THAT(Item(clip.norm), IsOkAndHolds(norm));
                         EXPECT_THAT(Item(clip.scale), IsOkAndHolds(scale / 8));
                         return absl::OkStatus();
                       }),
              IsOk());
}

// A gradient may be kept in f32 where its parameter is narrower.
TEST(ClipByGlobalNorm, MixesGradientsOf16And32Bits) {
  for (const SmallPlace& place : SmallPlaces()) {
    EXPECT_THAT(RunAt(place,
                      [&](Context& context) -> absl::Status {
                        std::vector<DistributedTensor> both(2);
                        for (DistributedTensor& p : both) {
                          DT_ASSIGN_OR_RETURN(p,
                                              SmallParameter(context, place, {4, 3}, DType::kBF16,
                                                             std::vector<double>(12, 1)));
                        }
                        DT_RETURN_IF_ERROR(both[1].set_grad_dtype(DType::kF32));
                        for (const DistributedTensor& p : both) {
                          DT_RETURN_IF_ERROR(AddSmallGradient(p, std::vector<double>(12, 2)));
                        }
                        DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(both, 0));
                        DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
                        EXPECT_NEAR(norm, std::sqrt(24 * 4.0), 1e-5);
                        return absl::OkStatus();
                      }),
                IsOk());
  }
}

TEST(ClipByGlobalNorm, JoinsGradientsOfTwoMeshes) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    std::vector<DistributedTensor> all;
    for (const char* const mesh : {"a=2@1..2", "b=1@0..0", "a=2@1..2"}) {
      const SmallPlace place{mesh, {mesh[0] == 'a' ? Shard(0) : Replicate()}};
      DT_ASSIGN_OR_RETURN(all.emplace_back(), SmallParameter(context, place, {4}, DType::kF32,
                                                             std::vector<double>(4, 1)));
      DT_RETURN_IF_ERROR(AddSmallGradient(all.back(), std::vector<double>(4, 1)));
    }
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(all, 2));
    EXPECT_EQ(clip.norm.mesh().ToString(), R"(["all"=3]@0..2)");
    DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
    DT_ASSIGN_OR_RETURN(const double scale, Item(clip.scale));
    EXPECT_NEAR(norm, std::sqrt(12.0), 1e-6);
    EXPECT_NEAR(scale, 2 / std::sqrt(12.0), 1e-5);
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create(all, {}));
    DT_RETURN_IF_ERROR(sgd.Step(1, clip.scale));
    const DistributedTensor& mine = context.rank() == 0 ? all[1] : all[2];
    DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(mine));
    EXPECT_NEAR(values[3], 1 - scale, 1e-6);
    return absl::OkStatus();
  }));
}

// As of a pipeline of which all stages but one are frozen: the others read the norm, too.
TEST(ClipByGlobalNorm, JoinsMeshesWithoutGradients) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    std::vector<DistributedTensor> all;
    for (const char* const mesh : {"b=1@0..0", "a=2@1..2"}) {
      const SmallPlace place{mesh, {Replicate()}};
      DT_ASSIGN_OR_RETURN(all.emplace_back(), SmallParameter(context, place, {4}, DType::kF32,
                                                             std::vector<double>(4, 1)));
    }
    DT_RETURN_IF_ERROR(AddSmallGradient(all[1], std::vector<double>(4, 1)));
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(all, 1));
    EXPECT_THAT(Item(clip.norm), IsOkAndHolds(2.0));
    return absl::OkStatus();
  }));
}

TEST(ClipByGlobalNorm, RefusesOneTensorTwiceNamingBoth) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const OneWeight a, OneWeight::Make(context, {Shard(0), Shard(1)}));
            DT_ASSIGN_OR_RETURN(const OneWeight b, OneWeight::Make(context, {Shard(0), Shard(1)}));
            EXPECT_THAT(ClipByGlobalNorm({a.weight, b.weight, b.weight}, 1),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("ClipByGlobalNorm: parameters 1 and"
                                                 " 2 are one tensor"),
                                       HasSubstr("list it once"))));
            return absl::OkStatus();
          }),
      IsOk());
}

}  // namespace
}  // namespace dtensor
