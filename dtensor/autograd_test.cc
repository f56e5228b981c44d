// What the tape keeps, refuses and remembers. Gradients of operators: ops_test.cc (values) and
// tests/op_rules_test.cc (placements).
#include "dtensor/autograd.h"

#include <functional>
#include <vector>

#include "dtensor/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

// Runs `fn` on two ranks, with x = {1, 2, 3, 4} split over them.
void WithX(const std::function<absl::Status(Context&, DistributedTensor x)>& fn) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(DistributedTensor x,
                        Distribute<float>(context, mesh, {Shard(0)}, {4}, {{1, 2, 3, 4}}));
    return fn(context, x);
  }));
}

absl::StatusOr<std::vector<float>> Gradient(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(ReduceGradients({x}));
  return ToGlobal<float>(x.grad());
}

TEST(Backward, RefusesWhatAnEarlierBackwardWalked) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    x.set_requires_grad(true);
    const TensorOr doubled = Scale(x, 2);
    const TensorOr loss = Sum(doubled, {0});
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_THAT(Backward(loss),
                StatusIs(kFailedPrecondition, HasSubstr("Backward: Sum was walked by an earlier")));
    // Nothing runs before the refusal, though this loss has nodes of its own.
    EXPECT_THAT(Backward(Sum(Add(x, doubled), {0})),
                StatusIs(kFailedPrecondition, HasSubstr("Backward: Scale was walked")));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
    EXPECT_THAT(gradient, ElementsAre(2, 2, 2, 2));
    return absl::OkStatus();
  });
}

TEST(Backward, WalksANodeThatTwoLossesShareOnce) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    x.set_requires_grad(true);
    const TensorOr doubled = Scale(x, 2);
    DT_RETURN_IF_ERROR(Backward(Add(Sum(doubled, {0}), Sum(Scale(doubled, 3), {0}))));
    DT_RETURN_IF_ERROR(Backward(Sum(x, {0})));  // another graph over the same leaf
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
    EXPECT_THAT(gradient, ElementsAre(9, 9, 9, 9));
    return absl::OkStatus();
  });
}

TEST(Redistribute, MadeWithoutRecordingItIsRecordedLater) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    x.set_requires_grad(true);
    DT_ASSIGN_OR_RETURN(const DistributedTensor doubled, Scale(x, 2));
    DistributedTensor before;
    {
      const NoGrad no_grad(context);
      DT_ASSIGN_OR_RETURN(before, doubled.Redistribute({Replicate()}));
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, doubled.Redistribute({Replicate()}));
    EXPECT_TRUE(whole.local().SharesStorageWith(before.local()));  // gathered once all the same
    EXPECT_THAT(Backward(Sum(before, {0})),
                StatusIs(kFailedPrecondition, HasSubstr("nothing was recorded")));
    DT_RETURN_IF_ERROR(Backward(Add(Sum(whole, {0}), Sum(x, {0}))));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
    EXPECT_THAT(gradient, ElementsAre(3, 3, 3, 3));
    return absl::OkStatus();
  });
}

TEST(Redistribute, MadeBeforeGradientsWereRequiredItIsRecordedLater) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor before, x.Redistribute({Replicate()}));
    x.set_requires_grad(true);
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute({Replicate()}));
    EXPECT_TRUE(whole.local().SharesStorageWith(before.local()));
    DT_RETURN_IF_ERROR(Backward(Add(Sum(whole, {0}), Sum(x, {0}))));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
    EXPECT_THAT(gradient, ElementsAre(2, 2, 2, 2));
    return absl::OkStatus();
  });
}

TEST(Redistribute, ALeafLetsGoOfItsCopies) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}).status());
    const int64_t remembering = context.device().memory().live_bytes;
    x.set_requires_grad(true);
    EXPECT_LT(context.device().memory().live_bytes, remembering);
    DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}).status());
    EXPECT_LT(context.device().memory().live_bytes, remembering);
    return absl::OkStatus();
  });
}

TEST(ReduceGradients, RefusesAnUndefinedLeaf) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    EXPECT_THAT(ReduceGradients({x, DistributedTensor()}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
