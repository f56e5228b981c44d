// A Context's caches are bounded, and evicting entries does not change communication.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kMany = 3 * Context::kDecisions;

TensorOr Zeros(Context& context, int64_t n) {
  const DeviceMesh mesh = DeviceMesh::Parse("one=1").value().OnRanks({context.rank()}).value();
  return Full(context, mesh, {Replicate()}, {n}, DType::kF32, 0);
}

void OnOneRank(const std::function<absl::Status(Context&)>& fn) {
  EXPECT_THAT(RunRanks(1, fn), IsOk());
}

// Calls an operator with so many shapes that everything which nobody uses is forgotten.
absl::Status ForgetAll(Context& context) {
  DT_ASSIGN_OR_RETURN(const auto x, Zeros(context, kMany));
  const NoGrad no_grad(context);
  for (int64_t n = 1; n < kMany; ++n) DT_RETURN_IF_ERROR(Slice(x, 0, 0, n).status());
  return absl::OkStatus();
}

TEST(CachesTest, AreBounded) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_RETURN_IF_ERROR(ForgetAll(context));
    const Context::CacheSizes sizes = context.cache_sizes();
    EXPECT_LE(sizes.decisions, Context::kDecisions);
    EXPECT_GE(sizes.decisions, Context::kDecisions * 7 / 8);  // an eighth goes at once
    // Of each decision there is a spec that no other has.
    EXPECT_GE(sizes.specs, sizes.decisions);
    EXPECT_LE(sizes.specs, 2 * Context::kDecisions + 2);
    return absl::OkStatus();
  });
}

TEST(CachesTest, OptionsAreBounded) {
  OnOneRank([](Context& context) -> absl::Status {
    const DeviceMesh mesh = DeviceMesh::Parse("a=1").value();
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {Shard(0)}, {8}, DType::kF32, 0));
    for (int i = 0; i < 1000; ++i) {
      DT_RETURN_IF_ERROR(context.set_redistribution_options({.max_extra_bytes = 100 + i}));
      const RedistributionOptions options{.max_extra_bytes = 10000 + i};
      DT_RETURN_IF_ERROR(context.Plan(&x.spec(), &x.spec(), &options).status());
    }
    EXPECT_EQ(context.redistribution_options().max_extra_bytes, 1099);
    EXPECT_EQ(context.cache_sizes().options, Context::kOptions);
    EXPECT_EQ(context.cache_sizes().plans, 1000);
    return absl::OkStatus();
  });
}

// A ring keeps a turn for each pair of its ranks, and packed sequences make other documents at each
// step.
TEST(CachesTest, RingsAreBoundedByTheirBytes) {
  constexpr int kRanks = 128, kSteps = 44;
  constexpr int64_t kLength = 8 * kRanks;
  DT_EXPECT_OK(Simulate(0, kRanks, [](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    const DeviceMesh mesh = DeviceMesh::Parse("cp=128").value();
    DT_ASSIGN_OR_RETURN(const auto x,
                        Full(context, mesh, {Shard(1)}, {1, kLength, 1, 4}, DType::kF32, 0));
    for (int64_t i = 1; i <= kSteps; ++i) {
      const AttentionOptions options = {.mask = AttentionMask::Documents({0, i}).value(),
                                        .plan = AttentionPlanKind::kRing};
      DT_RETURN_IF_ERROR(Attention(x, x, x, options).status());
    }
    // Each has 128 * 128 turns of 112 bytes and more, and 64 MiB are kept.
    EXPECT_LE(context.cache_sizes().decisions, 36);
    EXPECT_GE(context.cache_sizes().decisions, 16);
    return absl::OkStatus();
  }));
}

TEST(CachesTest, ARefusedCallLeavesNothingBehind) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Zeros(context, 8));
    for (int i = 1; i < 100; ++i) EXPECT_FALSE(Rope(x, i).ok());
    EXPECT_EQ(context.cache_sizes().decisions, 0);
    return absl::OkStatus();
  });
}

TEST(CachesTest, ATensorKeepsItsSpec) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto kept, Zeros(context, 7));
    const std::string text = kept.ToString();
    DT_RETURN_IF_ERROR(ForgetAll(context));
    EXPECT_EQ(kept.ToString(), text);
    DT_ASSIGN_OR_RETURN(const auto again, Zeros(context, 7));
    EXPECT_EQ(&again.spec(), &kept.spec());
    return absl::OkStatus();
  });
}

TEST(CachesTest, ARecordedOperatorKeepsItsDecision) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Zeros(context, 5));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const TensorOr loss = Sum(Mul(Scale(Slice(x, 0, 1, 3), 3), Slice(x, 0, 2, 4)), {0});
    DT_RETURN_IF_ERROR(loss.status());
    const TensorOr linear = Sum(Scale(x, 3), {0});
    DT_RETURN_IF_ERROR(ForgetAll(context));
    DT_RETURN_IF_ERROR(Backward(Add(loss, linear)));
    DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<float>(x.grad()));
    EXPECT_THAT(gradient, testing::Each(3));
    return absl::OkStatus();
  });
}

TEST(CachesTest, ANaNIsFoundAgain) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Zeros(context, 4));
    for (int i = 0; i < 10; ++i) {
      DT_RETURN_IF_ERROR(RmsNorm(x, x, std::numeric_limits<double>::quiet_NaN()).status());
    }
    EXPECT_EQ(context.cache_sizes().decisions, 1);
    return absl::OkStatus();
  });
}

// What varies from call to call and decides nothing is no part of a key.
TEST(CachesTest, FactorsAndOffsetsShareADecision) {
  OnOneRank([](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Distribute<float>(context, DeviceMesh(), {}, {4}, {1, 2, 3, 4}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    TensorOr loss = Sum(Scale(x, 0.5), {0});
    for (int i = 0; i < 4; ++i) {
      DT_ASSIGN_OR_RETURN(const auto part, Slice(x, 0, i, i + 1));
      EXPECT_THAT(ToGlobal<float>(part).value(), testing::ElementsAre(i + 1));
      loss = Add(loss, Sum(Scale(part, i), {0}));
    }
    // Scale, Slice, Scale of what it gives, two Sums, Add.
    EXPECT_EQ(context.cache_sizes().decisions, 6);
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<float>(x.grad()));
    EXPECT_THAT(gradient, testing::ElementsAre(0.5, 1.5, 2.5, 3.5));
    return absl::OkStatus();
  });
}

// One rank forgets between the calls, the other does not.
TEST(CachesTest, ForgettingChangesNoCommunication) {
  const auto run = [](bool forget, TrafficTable& traffic) {
    return RunRanks(2, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = DeviceMesh::Parse("tp=2").value();
      DT_ASSIGN_OR_RETURN(auto x, RandomNormal(context, mesh, {Shard(1)}, {6, 4}, {.seed = 1}));
      DT_ASSIGN_OR_RETURN(auto w, RandomNormal(context, mesh, {Shard(0)}, {4, 6}, {.seed = 2}));
      DT_RETURN_IF_ERROR(w.set_requires_grad(true));
      for (int i = 0; i < 3; ++i) {
        const TensorOr y = Silu(MatMul(x, w));
        if (forget && context.rank() == 1) DT_RETURN_IF_ERROR(ForgetAll(context));
        DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1})));
        const DistributedTensor leaves[] = {w};
        DT_RETURN_IF_ERROR(ReduceGradients(leaves));
      }
      if (context.rank() == 1) traffic = context.communicator().traffic();
      return absl::OkStatus();
    });
  };
  TrafficTable remembering, forgetting;
  ASSERT_THAT(run(false, remembering), IsOk());
  ASSERT_THAT(run(true, forgetting), IsOk());
  EXPECT_FALSE(remembering.empty());
  EXPECT_EQ(remembering, forgetting);
}

}  // namespace
}  // namespace dtensor
