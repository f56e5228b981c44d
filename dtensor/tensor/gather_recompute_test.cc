// Gather groups and Recompute: a leaf that is read in both, or in several recomputed parts, is
// gathered each time it is read. Its group is reduced once, when the last gradient is ready.
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDim = 4;

int64_t Calls(Context& context, CollectiveKind kind) {
  int64_t calls = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    if (key.second == kind) calls += traffic.calls;
  }
  return calls;
}

struct Outcome {
  std::vector<float> w, v;  // gradients
  int64_t reductions = 0;   // of Backward
};

// Two leaves [4, 4] in one group, which rest as S(0).
class Leaves {
 public:
  static absl::StatusOr<Leaves> Make(Context& context) {
    Leaves leaves;
    DT_ASSIGN_OR_RETURN(leaves.mesh, DeviceMesh::Parse("dp=2"));
    leaves.groups_ = GatherGroups::New();
    const auto group = leaves.groups_->Add(ShardLevel::kParameters);
    for (DistributedTensor* leaf : {&leaves.w, &leaves.v}) {
      std::vector<float> values(kDim * kDim);
      std::iota(values.begin(), values.end(), leaf == &leaves.w ? -5.0f : -7.0f);
      DT_ASSIGN_OR_RETURN(*leaf, Distribute<float>(context, leaves.mesh, {Shard(0)}, {kDim, kDim},
                                                   absl::MakeConstSpan(values)));
      leaf->set_pinned(true);
      DT_RETURN_IF_ERROR(leaf->set_requires_grad(true));
      DT_RETURN_IF_ERROR(group->Add(*leaf, Layout::Replicated(leaves.mesh, 2)));
    }
    return leaves;
  }
  TensorOr X(Context& context) const {
    return Full(context, mesh, {Shard(0)}, {2, kDim}, DType::kF32, 1);
  }

  DeviceMesh mesh;
  DistributedTensor w, v;

 private:
  std::shared_ptr<GatherGroups> groups_;
};

// The gradients of sum(((x w) v) w) v), the halves of which may run again.
absl::StatusOr<Outcome> RunChain(Context& context, bool first, bool second) {
  DT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Make(context));
  const auto half = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
    DT_ASSIGN_OR_RETURN(DistributedTensor y,
                        MatMul(MatMul(x[0], ForUse(leaves.w)), ForUse(leaves.v)));
    return std::vector<DistributedTensor>{std::move(y)};
  };
  DT_ASSIGN_OR_RETURN(const DistributedTensor x, leaves.X(context));
  DT_ASSIGN_OR_RETURN(const auto h, first ? Recompute({x}, half) : half({x}));
  DT_ASSIGN_OR_RETURN(const auto y, second ? Recompute(h, half) : half(h));
  context.communicator().ResetTraffic();
  DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0, 1})));
  Outcome outcome;
  outcome.reductions = Calls(context, CollectiveKind::kReduceScatter);
  EXPECT_EQ(leaves.w.grad().layout(), leaves.w.layout());
  EXPECT_EQ(leaves.v.grad().layout(), leaves.v.layout());
  DT_ASSIGN_OR_RETURN(outcome.w, ToGlobal<float>(leaves.w.grad()));
  DT_ASSIGN_OR_RETURN(outcome.v, ToGlobal<float>(leaves.v.grad()));
  return outcome;
}

TEST(GatherRecompute, AGroupIsReducedOnceWhicheverPartsRunAgain) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const Outcome plain, RunChain(context, false, false));
                         EXPECT_EQ(plain.reductions, 1);
                         for (const int again : {1, 2, 3}) {
                           DT_ASSIGN_OR_RETURN(const Outcome outcome,
                                               RunChain(context, again % 2 == 1, again > 1));
                           EXPECT_EQ(outcome.w, plain.w) << again;
                           EXPECT_EQ(outcome.v, plain.v) << again;
                           EXPECT_EQ(outcome.reductions, 1) << again;
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

// The gathers of Backward for x w[0] ... w[n - 1], each of a group of its own, all of which runs
// again.
absl::StatusOr<int64_t> GathersOfBackward(Context& context, int n) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
  const auto groups = GatherGroups::New();
  std::vector<std::shared_ptr<GatherGroup>> group;
  std::vector<DistributedTensor> w;
  for (int i = 0; i < n; ++i) {
    DT_ASSIGN_OR_RETURN(w.emplace_back(), RandomNormal(context, mesh, {Shard(0)}, {kDim, kDim},
                                                       {.seed = 1 + static_cast<uint64_t>(i)}));
    DT_RETURN_IF_ERROR(w[i].set_requires_grad(true));
    group.push_back(groups->Add(ShardLevel::kParameters));
    DT_RETURN_IF_ERROR(group[i]->Add(w[i], Layout::Replicated(mesh, 2)));
  }
  const auto chain = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
    std::vector<DistributedTensor> y = {x[0]};
    for (int i = 0; i < n; ++i) {
      const GatherScope scope(group[i].get());
      DT_RETURN_IF_ERROR(scope.status());
      DT_ASSIGN_OR_RETURN(y[0], MatMul(y[0], ForUse(w[i])));
    }
    return y;
  };
  DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                      Full(context, mesh, {Shard(0)}, {2, kDim}, DType::kF32, 1));
  DT_ASSIGN_OR_RETURN(const auto y, Recompute({x}, chain));
  context.communicator().ResetTraffic();
  DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0, 1})));
  return Calls(context, CollectiveKind::kAllGather);
}

TEST(GatherRecompute, TwoGroupsAreGatheredOnceAndMoreOfThemTwice) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         for (const auto& [n, gathers] : {std::pair(1, 1), {2, 2}, {3, 6}}) {
                           EXPECT_THAT(GathersOfBackward(context, n), IsOkAndHolds(gathers)) << n;
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

// A function gives w back, whose gradient then arrives in two layouts along one edge.
TEST(GatherRecompute, AGroupWaitsForAllThatComesAlongAnEdge) {
  EXPECT_THAT(
      RunRanks(
          2,
          [](Context& context) -> absl::Status {
            const auto itself = [](absl::Span<const DistributedTensor> x) -> TensorsOr {
              return std::vector<DistributedTensor>(x.begin(), x.end());
            };
            std::vector<float> w[2], v[2];
            int64_t reductions[2];
            for (const bool again : {false, true}) {
              DT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Make(context));
              DT_ASSIGN_OR_RETURN(const auto x, leaves.X(context));
              const TensorOr h = MatMul(x, ForUse(leaves.v));  // walked last
              DT_ASSIGN_OR_RETURN(const auto whole, ForUse(leaves.w));
              DT_ASSIGN_OR_RETURN(const auto y,
                                  again ? Recompute({whole}, itself) : itself({whole}));
              const TensorOr loss = Add(Sum(MatMul(h, y[0]), {0, 1}), Sum(Mul(y[0], y[0]), {0, 1}));
              DT_RETURN_IF_ERROR(loss.status());
              context.communicator().ResetTraffic();
              DT_RETURN_IF_ERROR(Backward(loss));
              reductions[again] = Calls(context, CollectiveKind::kReduceScatter);
              EXPECT_EQ(leaves.w.grad().layout(), leaves.w.layout());
              EXPECT_EQ(leaves.v.grad().layout(), leaves.v.layout());
              DT_ASSIGN_OR_RETURN(w[again], ToGlobal<float>(leaves.w.grad()));
              DT_ASSIGN_OR_RETURN(v[again], ToGlobal<float>(leaves.v.grad()));
            }
            EXPECT_EQ(w[1], w[0]);
            EXPECT_EQ(v[1], v[0]);
            EXPECT_EQ(reductions[1], reductions[0]);
            return absl::OkStatus();
          }),
      IsOk());
}

// v leads to a result that nobody uses: its group does not wait for it.
TEST(GatherRecompute, AGroupDoesNotWaitForWhatGetsNoGradient) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Make(context));
                         const auto two = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
                           DT_ASSIGN_OR_RETURN(auto y, MatMul(x[0], ForUse(leaves.w)));
                           DT_ASSIGN_OR_RETURN(auto unused, MatMul(x[0], ForUse(leaves.v)));
                           return std::vector<DistributedTensor>{y, unused};
                         };
                         DT_ASSIGN_OR_RETURN(const DistributedTensor x, leaves.X(context));
                         DT_ASSIGN_OR_RETURN(const auto y, Recompute({x}, two));
                         context.communicator().ResetTraffic();
                         DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0, 1})));
                         EXPECT_EQ(Calls(context, CollectiveKind::kReduceScatter), 1);
                         EXPECT_EQ(leaves.w.grad().layout(), leaves.w.layout());
                         EXPECT_FALSE(leaves.v.grad().defined());
                         EXPECT_THAT(ToGlobal<float>(leaves.w.grad()),
                                     IsOkAndHolds(std::vector<float>(kDim * kDim, 2)));
                         return absl::OkStatus();
                       }),
              IsOk());
}

// w is complete when the walk meets the function, whose first run it did not lead to a result.
TEST(GatherRecompute, ALeafThatWantsAGradientOnlyWhenAFunctionRunsAgainIsRefused) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(Leaves leaves, Leaves::Make(context));
                         const auto part = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
                           DT_ASSIGN_OR_RETURN(auto y, MatMul(x[0], ForUse(leaves.w)));
                           return std::vector<DistributedTensor>{std::move(y)};
                         };
                         DT_RETURN_IF_ERROR(leaves.w.set_requires_grad(false));
                         DT_ASSIGN_OR_RETURN(const DistributedTensor x, leaves.X(context));
                         DT_ASSIGN_OR_RETURN(const auto h, MatMul(x, ForUse(leaves.v)));
                         DT_ASSIGN_OR_RETURN(const auto y, Recompute({h}, part));
                         DT_RETURN_IF_ERROR(leaves.w.set_requires_grad(true));
                         const TensorOr z = MatMul(y[0], ForUse(leaves.w));
                         EXPECT_THAT(Backward(Sum(z, {0, 1})),
                                     StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("other leaves when it ran again")));
                         EXPECT_FALSE(leaves.v.grad().defined());
                         // All ranks say so, and go on.
                         return ToGlobal<float>(leaves.w).status();
                       }),
              IsOk());
}

// Of each part only the product with w is asked for. Operators of a part that has run again are
// gone when the next one runs, and its operators may take their addresses.
TEST(GatherRecompute, GradientsOfOneLeafPassByTheOthers) {
  EXPECT_THAT(
      RunRanks(2,
               [](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Make(context));
                 const auto part = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
                   TensorOr y = MatMul(x[0], ForUse(leaves.w));
                   TensorOr side = leaves.X(context);
                   for (int i = 0; i < 3; ++i) side = MatMul(side, ForUse(leaves.v));
                   DT_ASSIGN_OR_RETURN(auto sum, Add(side, y));
                   return std::vector<DistributedTensor>{std::move(sum)};
                 };
                 std::vector<float> gradients[2];
                 for (const bool again : {false, true}) {
                   DT_ASSIGN_OR_RETURN(DistributedTensor h, leaves.X(context));
                   for (int i = 0; i < 4; ++i) {
                     DT_ASSIGN_OR_RETURN(const auto y, again ? Recompute({h}, part) : part({h}));
                     h = y[0];
                   }
                   DT_ASSIGN_OR_RETURN(const auto asked, GradientsOf(Sum(h, {0, 1}), {leaves.w}));
                   DT_ASSIGN_OR_RETURN(gradients[again], ToGlobal<float>(asked[0]));
                 }
                 EXPECT_EQ(gradients[1], gradients[0]);
                 return absl::OkStatus();
               }),
      IsOk());
}

// Nor do operators that are gone though nobody walked them: a function did not use what they gave.
TEST(GatherRecompute, GradientsOfOneLeafPassByWhatIsGone) {
  EXPECT_THAT(
      RunRanks(2,
               [](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Make(context));
                 const auto part = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
                   TensorOr side = leaves.X(context);
                   for (int i = 0; i < 3; ++i) side = MatMul(side, ForUse(leaves.v));
                   DT_ASSIGN_OR_RETURN(auto sum, Add(side, MatMul(x[0], ForUse(leaves.w))));
                   return std::vector<DistributedTensor>{std::move(sum)};
                 };
                 const auto first = [](absl::Span<const DistributedTensor> x) -> TensorsOr {
                   return std::vector<DistributedTensor>{x[0]};
                 };
                 std::vector<float> gradients[2];
                 for (const bool again : {false, true}) {
                   DT_ASSIGN_OR_RETURN(DistributedTensor h, leaves.X(context));
                   for (int i = 0; i < 3; ++i) {
                     DT_ASSIGN_OR_RETURN(const auto y, again ? Recompute({h}, part) : part({h}));
                     DT_ASSIGN_OR_RETURN(const auto unused, MatMul(h, ForUse(leaves.w)));
                     DT_ASSIGN_OR_RETURN(const auto one, again ? Recompute({y[0], unused}, first)
                                                               : first({y[0], unused}));
                     h = one[0];
                   }
                   DT_ASSIGN_OR_RETURN(const auto asked, GradientsOf(Sum(h, {0, 1}), {leaves.w}));
                   DT_ASSIGN_OR_RETURN(gradients[again], ToGlobal<float>(asked[0]));
                 }
                 EXPECT_EQ(gradients[1], gradients[0]);
                 return absl::OkStatus();
               }),
      IsOk());
}

}  // namespace
}  // namespace dtensor
