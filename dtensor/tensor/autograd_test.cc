// What the autograd tape keeps, refuses and remembers. Gradients of operators: ops_test.cc (values)
// and tests/op_rules_test.cc (placements).
#include "dtensor/tensor/autograd.h"

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
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
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
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
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
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
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
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
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute({Replicate()}));
    EXPECT_THAT(ToGlobal<float>(before), IsOkAndHolds(ElementsAre(1, 2, 3, 4)));
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
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    EXPECT_LT(context.device().memory().live_bytes, remembering);
    DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}).status());
    EXPECT_LT(context.device().memory().live_bytes, remembering);
    return absl::OkStatus();
  });
}

// A tensor of one element that is Partial: every rank holds `term`.
absl::StatusOr<DistributedTensor> Terms(Context& context, Placement placement, double term) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
  DT_ASSIGN_OR_RETURN(const Tensor local, Tensor::Empty(context.device(), DType::kF32, {1}));
  DT_RETURN_IF_ERROR(kernels::Fill(context.device(), local, term));
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, {placement}, {1}));
  return FromLocal(context, layout, {1}, local);
}

// The leaf x stands for 3, y = {1, 2, 3, 4}, loss = sum_i x y_i = 30. Where y is sharded, the
// gradient arrives as Partial(sum).
void DifferentiatePartialLeaf(Placement leaf, double term, bool partial_gradient) {
  SCOPED_TRACE(absl::StrCat(leaf.ToString(), partial_gradient ? " by a partial gradient" : ""));
  WithX([&](Context& context, DistributedTensor y) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Terms(context, leaf, term));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    if (!partial_gradient) {
      DT_ASSIGN_OR_RETURN(y, y.Redistribute({Replicate()}));
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute({Replicate()}));
    for (int pass = 1; pass <= 2; ++pass) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Sum(Mul(whole, y), {0}));
      EXPECT_THAT(Item(loss), IsOkAndHolds(30));
      DT_RETURN_IF_ERROR(Backward(loss));
      EXPECT_EQ(x.grad().spec().layout.is_partial(), partial_gradient || pass > 1);
      DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
      EXPECT_EQ(x.grad().spec().layout, x.spec().layout);
      EXPECT_THAT(gradient, ElementsAre(10 * pass));
    }
    return absl::OkStatus();
  });
}

TEST(ReduceGradients, MeetPartialLeaves) {
  for (const bool partial_gradient : {false, true}) {
    DifferentiatePartialLeaf(Partial(ReduceOp::kSum), 1.5, partial_gradient);
    DifferentiatePartialLeaf(Partial(ReduceOp::kAvg), 3, partial_gradient);
  }
}

// The gradient of what is averaged is an average: P(avg) arrives at a leaf that is P(sum).
TEST(ReduceGradients, MeetAveragedGradients) {
  WithX([](Context& context, DistributedTensor) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Terms(context, Partial(ReduceOp::kSum), 3));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute({Replicate()}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor averages,
                        Terms(context, Partial(ReduceOp::kAvg), 5));
    DT_RETURN_IF_ERROR(Backward(Sum(Mul(whole, averages), {0})));
    EXPECT_EQ(x.grad().spec().layout.ToString(), "[] P(avg: tp)");
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Gradient(x));
    EXPECT_THAT(gradient, ElementsAre(5));
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
