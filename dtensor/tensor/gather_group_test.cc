#include "dtensor/tensor/gather_group.h"

#include <algorithm>
#include <functional>
#include <numeric>
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

constexpr int kRanks = 2;
constexpr int64_t kDim = 4;
constexpr int64_t kBytes = kDim * kDim * sizeof(float);

// A mesh of two ranks, and leaves [4, 4] that rest as S(0), in groups that use them whole.
class Ranks {
 public:
  Ranks(Context& context, ShardLevel level)
      : context(context), mesh(*DeviceMesh::Parse("dp=2")), level_(level) {}

  // A leaf in `group`, or in a new one.
  DistributedTensor Leaf(float first, std::shared_ptr<GatherGroup> group = nullptr) {
    std::vector<float> values(kDim * kDim);
    std::iota(values.begin(), values.end(), first);
    DistributedTensor leaf =
        *Distribute<float>(context, mesh, {Shard(0)}, {kDim, kDim}, absl::MakeConstSpan(values));
    leaf.set_pinned(true);
    EXPECT_THAT(leaf.set_requires_grad(true), IsOk());
    if (group == nullptr) group = NewGroup();
    EXPECT_THAT(group->Add(leaf, Layout::Replicated(mesh, 2)), IsOk());
    return leaf;
  }
  std::shared_ptr<GatherGroup> NewGroup() {
    groups.push_back(all->Add(level_));
    return groups.back();
  }
  TensorOr X() { return Full(context, mesh, {Shard(0)}, {2, kDim}, DType::kF32, 1); }
  // Calls and bytes of all-gathers since the last call.
  CommunicatorTraffic Gathers() {
    CommunicatorTraffic sum;
    for (const auto& [key, traffic] : context.communicator().traffic()) {
      if (key.second != CollectiveKind::kAllGather) continue;
      sum.calls += traffic.calls;
      sum.bytes += traffic.bytes;
    }
    context.communicator().ResetTraffic();
    return sum;
  }
  int64_t live() const { return context.device().memory().live_bytes; }

  Context& context;
  const DeviceMesh mesh;
  const std::shared_ptr<GatherGroups> all = GatherGroups::New();
  std::vector<std::shared_ptr<GatherGroup>> groups;

 private:
  const ShardLevel level_;
};

void OnRanks(const std::function<absl::Status(Ranks&)>& test,
             ShardLevel level = ShardLevel::kParameters) {
  EXPECT_THAT(RunRanks(kRanks,
                       [&](Context& context) {
                         Ranks ranks(context, level);
                         return test(ranks);
                       }),
              IsOk());
}

// sum(x w): the gradient of w is the number of rows everywhere.
TensorOr Loss(Ranks& ranks, const TensorOr& w) { return Sum(MatMul(ranks.X(), w), {0, 1}); }

TEST(GatherGroup, GathersALeafThatIsUsedOutsideOfItsGroup) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor w = ranks.Leaf(0);
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, ForUse(w));
    EXPECT_TRUE(whole.layout().is_replicated());
    EXPECT_EQ(UsedLayout(w), whole.layout());
    DT_ASSIGN_OR_RETURN(const std::vector<float> used, ToGlobal<float>(whole));
    DT_ASSIGN_OR_RETURN(const std::vector<float> rest, ToGlobal<float>(w));
    EXPECT_EQ(used, rest);
    DT_RETURN_IF_ERROR(Backward(Loss(ranks, whole)));
    EXPECT_EQ(w.grad().layout(), w.layout());  // reduced already
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(w.grad()));
    EXPECT_EQ(gradient, std::vector<float>(kDim * kDim, 2));
    return absl::OkStatus();
  });
}

TEST(GatherGroup, ALeafThatIsReadDirectlyGivesTheSame) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor w = ranks.Leaf(0);
    DT_ASSIGN_OR_RETURN(const double direct, Item(Loss(ranks, w)->Detach()));
    DT_ASSIGN_OR_RETURN(const double used, Item(Loss(ranks, ForUse(w))->Detach()));
    EXPECT_EQ(direct, used);
    DT_RETURN_IF_ERROR(Backward(Loss(ranks, w)));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(w.grad()));
    EXPECT_EQ(gradient, std::vector<float>(kDim * kDim, 2));
    return absl::OkStatus();
  });
}

// A call of the model: the first group, and in it the others in the given order.
absl::Status CallModel(Ranks& ranks, const std::vector<int>& order,
                       const std::vector<DistributedTensor>& leaves) {
  const GatherScope model(ranks.groups[0].get());
  DT_RETURN_IF_ERROR(model.status());
  for (int i : order) {
    const GatherScope scope(ranks.groups[i].get());
    DT_RETURN_IF_ERROR(scope.status());
    DT_RETURN_IF_ERROR(ForUse(leaves[i - 1]).status());
  }
  return absl::OkStatus();
}

TEST(GatherGroup, GathersOneAheadInTheOrderOfTheLastCall) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    ranks.NewGroup();
    const std::vector<DistributedTensor> leaves = {ranks.Leaf(0), ranks.Leaf(100), ranks.Leaf(200)};
    const int64_t before = ranks.live();
    const auto gathers = [&](const std::vector<int>& order) -> absl::StatusOr<int64_t> {
      ranks.context.device().ResetPeak();
      ranks.Gathers();
      DT_RETURN_IF_ERROR(CallModel(ranks, order, leaves));
      EXPECT_EQ(ranks.live(), before);
      EXPECT_LE(ranks.context.device().memory().peak_bytes, before + 2 * kBytes);
      return ranks.Gathers().calls;
    };
    const std::vector<std::pair<std::vector<int>, int64_t>> calls = {
        {{1, 2, 3}, 3},  // as they were added
        {{3, 2, 1}, 4},  // 1 was expected
        {{3, 2, 1}, 3},
        {{1, 1, 2}, 4},  // 3 was expected; 1 is gathered twice before it is known to come again
        {{1, 1, 2}, 2},
        {{1}, 1},  // another call of it was expected
        {{1}, 1},
        {{1, 2}, 2},
    };
    for (const auto& [order, expected] : calls) {
      DT_ASSIGN_OR_RETURN(const int64_t counted, gathers(order));
      EXPECT_EQ(counted, expected) << ::testing::PrintToString(order);
    }
    return absl::OkStatus();
  });
}

TEST(GatherGroup, AGroupOutsideOfTheModelGathersNothingAhead) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor of_model = ranks.Leaf(2, ranks.NewGroup());
    const DistributedTensor a = ranks.Leaf(0), b = ranks.Leaf(1);
    const int64_t before = ranks.live();
    {
      const GatherScope scope(ranks.groups[1].get());
      DT_RETURN_IF_ERROR(scope.status());
      EXPECT_EQ(ranks.live(), before + kBytes);
    }
    EXPECT_EQ(ranks.live(), before);
    return absl::OkStatus();
  });
}

TEST(GatherGroup, OneExchangeGathersAllOfAGroup) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const auto group = ranks.NewGroup();
    const DistributedTensor a = ranks.Leaf(0, group), b = ranks.Leaf(1, group);
    ranks.Gathers();
    const GatherScope scope(group.get());
    DT_RETURN_IF_ERROR(scope.status());
    const CommunicatorTraffic traffic = ranks.Gathers();
    EXPECT_EQ(traffic.calls, 1);
    EXPECT_EQ(traffic.bytes, 2 * kBytes / kRanks);
    DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(*ForUse(b)));
    EXPECT_EQ(values[kDim * kDim - 1], kDim * kDim);
    return absl::OkStatus();
  });
}

TEST(GatherGroup, WhatWasGatheredWithoutRecordingServesARecordedCall) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor w = ranks.Leaf(0);
    const GatherScope scope(ranks.groups[0].get());
    DT_RETURN_IF_ERROR(scope.status());
    {
      const NoGrad no_grad(ranks.context);
      DT_RETURN_IF_ERROR(Loss(ranks, ForUse(w)).status());
    }
    DT_RETURN_IF_ERROR(Backward(Loss(ranks, ForUse(w))));
    EXPECT_TRUE(w.grad().defined());
    return absl::OkStatus();
  });
}

absl::Status Write(const DistributedTensor& w, float value) {
  DT_RETURN_IF_ERROR(BeforeWrite(w));
  std::fill_n(w.local().data<float>(), w.spec().local_numel, value);
  return absl::OkStatus();
}

TEST(GatherGroup, RefusesBackwardAfterTheLeafWasWritten) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor w = ranks.Leaf(0);
    DT_ASSIGN_OR_RETURN(DistributedTensor x, ranks.X());
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const TensorOr loss = Sum(MatMul(x, ForUse(w)), {0, 1});
    DT_RETURN_IF_ERROR(Write(w, 1));
    EXPECT_THAT(Backward(loss),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was written after")));
    return absl::OkStatus();
  });
}

TEST(GatherGroup, LevelsOneAndTwoKeepWhatWasGatheredUntilTheLeafIsWritten) {
  for (const ShardLevel level : {ShardLevel::kOptimizer, ShardLevel::kGradients}) {
    OnRanks(
        [](Ranks& ranks) -> absl::Status {
          const DistributedTensor w = ranks.Leaf(0);
          const auto forward = [&]() -> absl::StatusOr<double> {
            const GatherScope scope(ranks.groups[0].get());
            DT_RETURN_IF_ERROR(scope.status());
            DT_ASSIGN_OR_RETURN(const DistributedTensor whole, ForUse(w));
            DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(whole));
            return values[0];
          };
          ranks.Gathers();
          EXPECT_THAT(forward(), IsOkAndHolds(0));
          EXPECT_EQ(ranks.Gathers().calls, 1);
          EXPECT_THAT(forward(), IsOkAndHolds(0));
          EXPECT_EQ(ranks.Gathers().calls, 0);
          DT_RETURN_IF_ERROR(Write(w, 7));
          EXPECT_THAT(forward(), IsOkAndHolds(7));
          EXPECT_EQ(ranks.Gathers().calls, 1);
          return absl::OkStatus();
        },
        level);
  }
}

TEST(GatherGroup, LevelOneLeavesGradientsToReduceGradients) {
  OnRanks(
      [](Ranks& ranks) -> absl::Status {
        const DistributedTensor w = ranks.Leaf(0);
        for (int micro = 0; micro < 2; ++micro) {
          DT_RETURN_IF_ERROR(Backward(Loss(ranks, ForUse(w))));
          EXPECT_TRUE(w.grad().layout().is_partial());
        }
        DT_RETURN_IF_ERROR(ReduceGradients({w}));
        EXPECT_EQ(w.grad().layout(), w.layout());
        DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(w.grad()));
        EXPECT_EQ(gradient, std::vector<float>(kDim * kDim, 4));
        return absl::OkStatus();
      },
      ShardLevel::kOptimizer);
}

TEST(GatherGroup, AFrozenLeafIsNotKeptWholeForBackward) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    DistributedTensor w = ranks.Leaf(0);
    DT_RETURN_IF_ERROR(w.set_requires_grad(false));
    DT_ASSIGN_OR_RETURN(DistributedTensor x, ranks.X());
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const int64_t before = ranks.live();
    const TensorOr loss = Sum(MatMul(x, ForUse(w)), {0, 1});
    EXPECT_LT(ranks.live() - before, kBytes);
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(x.grad()));
    EXPECT_EQ(gradient[0], 0 + 1 + 2 + 3);
    EXPECT_EQ(gradient[3], 12 + 13 + 14 + 15);
    EXPECT_FALSE(w.grad().defined());
    return absl::OkStatus();
  });
}

TEST(GatherGroup, AGradientThatIsWholeOnEachRankIsNotKeptWhole) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const DistributedTensor w = ranks.Leaf(0);
    const int64_t before = ranks.live();
    const TensorOr x = Full(ranks.context, ranks.mesh, {Replicate()}, {2, kDim}, DType::kF32, 1);
    DT_RETURN_IF_ERROR(Backward(Sum(MatMul(x, ForUse(w)), {0, 1})));
    EXPECT_EQ(ranks.live() - before - x->local().bytes(), kBytes / kRanks);
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(w.grad()));
    EXPECT_EQ(gradient, std::vector<float>(kDim * kDim, 2));
    return absl::OkStatus();
  });
}

TEST(GatherGroup, NothingIsLeftBehind) {
  for (const ShardLevel level : {ShardLevel::kOptimizer, ShardLevel::kParameters}) {
    EXPECT_THAT(RunRanks(kRanks,
                         [&](Context& context) -> absl::Status {
                           const int64_t before = context.device().memory().live_bytes;
                           {
                             Ranks ranks(context, level);
                             const DistributedTensor w = ranks.Leaf(0);
                             const GatherScope scope(ranks.groups[0].get());
                             DT_RETURN_IF_ERROR(scope.status());
                             // A graph that nobody walks.
                             DT_RETURN_IF_ERROR(Loss(ranks, ForUse(w)).status());
                           }
                           context.ForgetReads();  // the Context keeps the last one's source
                           EXPECT_EQ(context.device().memory().live_bytes, before);
                           return absl::OkStatus();
                         }),
                IsOk());
  }
}

TEST(GatherGroup, RefusesWhatCannotBeGathered) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const auto group = ranks.NewGroup();
    const Layout whole = Layout::Replicated(ranks.mesh, 2);
    const DistributedTensor w = ranks.Leaf(0);
    const auto refuses = [&](const DistributedTensor& leaf, const Layout& used, const char* why) {
      EXPECT_THAT(group->Add(leaf, used),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
    };
    refuses({}, whole, "undefined");
    refuses(w, whole, "in a group already");
    refuses(*MatMul(ranks.X(), w), whole, "no leaf");
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, ranks.X());
    DT_ASSIGN_OR_RETURN(const Layout partial, whole.WithPartial({0}));
    refuses(x, partial, "not Partial");
    DT_ASSIGN_OR_RETURN(const DeviceMesh other, DeviceMesh::Parse("tp=2"));
    refuses(x, Layout::Replicated(other, 2), "a layout of its mesh");
    return absl::OkStatus();
  });
}

// Its memory was given away: by a leaf that is Partial, which is gathered as a sum.
TEST(GatherGroup, RefusesALeafThatIsNoMore) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto ones, Full(ranks.context, ranks.mesh, {Replicate()},
                                              {kDim, kDim}, DType::kF32, 1));
    const RedistributeOptions in_place{.plan = RedistributionOptions{.in_place = true}};
    const auto gone = StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("was redistributed in place, and is no more"));
    DT_ASSIGN_OR_RETURN(auto leaf, ones.Redistribute({Partial()}));
    leaf = leaf.Detach();
    DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
    const auto group = ranks.NewGroup();
    DT_RETURN_IF_ERROR(group->Add(leaf, Layout::Replicated(ranks.mesh, 2)));
    DT_ASSIGN_OR_RETURN(const auto used, ForUse(leaf));
    const TensorOr loss = Loss(ranks, used);
    DT_RETURN_IF_ERROR(leaf.Redistribute({Replicate()}, in_place).status());
    EXPECT_THAT(ForUse(leaf), gone);
    EXPECT_THAT(Backward(loss), gone);
    EXPECT_THAT(GatherScope(group.get()).status(), gone);
    return absl::OkStatus();
  });
}

// The exchange of a group is on one communicator.
TEST(GatherGroup, RefusesLeavesOfTwoContexts) {
  OnRanks([](Ranks& ranks) -> absl::Status {
    const auto group = ranks.NewGroup();
    const DistributedTensor first = ranks.Leaf(0, group);
    Context other(ranks.context.communicator(), ranks.context.device());
    DT_ASSIGN_OR_RETURN(const auto leaf,
                        Full(other, ranks.mesh, {Shard(0)}, {kDim, kDim}, DType::kF32, 1));
    EXPECT_THAT(
        group->Add(leaf, Layout::Replicated(ranks.mesh, 2)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("belongs to another Context")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
