// Law 3, from the other side: asserts that well-known wrong answers of sharded operators are not
// given. A rule that passes this and the sweep in op_rules_test.cc is right for the right reason.
#include <cmath>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "dtensor/testing/two_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

auto Near(double value) { return testing::DoubleNear(value, 1e-6); }

// The sum of terms' products is not the product of the sums.
TEST(OpWrongAnswersTest, TheProductOfTwoPartialSumsIsNotPartial) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] P(sum: tp)", {2}, {3, 4}));
    DT_ASSIGN_OR_RETURN(const auto y, Mul(x, x));
    EXPECT_FALSE(y.layout().is_partial()) << Text(y);
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(y));
    EXPECT_THAT(values, ElementsAre(9, 16));
    return absl::OkStatus();
  });
}

TEST(OpWrongAnswersTest, TheProductOfAPartialSumAndAWholeStaysPartial) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] P(sum: tp)", {2}, {3, 4}));
    DT_ASSIGN_OR_RETURN(const auto r, Make(context, mesh, "[]", {2}, {2, 5}));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto y, Mul(x, r));
    EXPECT_EQ(Text(y), "[] P(sum: tp)");
    EXPECT_TRUE(context.communicator().traffic().empty());
    return absl::OkStatus();
  });
}

// A row-parallel bias would be added once by each rank.
TEST(OpWrongAnswersTest, ABiasIsAddedOnceToAPartialSum) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] P(sum: tp)", {2}, {3, 4}));
    DT_ASSIGN_OR_RETURN(const auto bias, Make(context, mesh, "[]", {2}, {10, 20}));
    DT_ASSIGN_OR_RETURN(const auto y, Add(x, bias));
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(y));
    EXPECT_THAT(values, ElementsAre(13, 24));
    return absl::OkStatus();
  });
}

// Not the mean of this rank's rows, and not the mean of the ranks' means: 3 rows lie 2 and 1.
TEST(OpWrongAnswersTest, AMeanDividesByTheGlobalCount) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[tp]", {3}, {1, 2, 6}));
    DT_ASSIGN_OR_RETURN(const auto y, Mean(x, {0}));
    EXPECT_EQ(Text(y), "P(sum: tp)");
    DT_ASSIGN_OR_RETURN(const double value, Item(y));
    EXPECT_FLOAT_EQ(value, 3);
    DT_RETURN_IF_ERROR(Backward(y));
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x.grad()));
    EXPECT_THAT(gradient, Each(Near(1.f / 3)));
    return absl::OkStatus();
  });
}

// Each rank sees its own tokens only: a gradient taken for whole would be half of it.
TEST(OpWrongAnswersTest, ANormWeightsGradientIsPartialOverShardedTokens) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[tp] []", {2, 2}, {1, 1, 2, 2}));
    DT_ASSIGN_OR_RETURN(const auto weight, Make(context, mesh, "[]", {2}, {1, 1}));
    DT_RETURN_IF_ERROR(Backward(Sum(RmsNorm(x, weight, 0), {0, 1})));
    EXPECT_EQ(Text(weight.grad()), "[] P(sum: tp)");
    DT_RETURN_IF_ERROR(ReduceGradients({weight}));
    EXPECT_EQ(Text(weight.grad()), "[]");
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(weight.grad()));
    EXPECT_THAT(gradient, Each(Near(2)));
    return absl::OkStatus();
  });
}

// The gradient of a shared operand would be reduced by each operator on its way, where once at the
// end will do.
TEST(OpWrongAnswersTest, PartialGradientsPassThroughViewsAndSums) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] []", {2, 2}, {1, 2, 3, 4}));
    DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, "[tp] []", {2, 2}, {1, 2, 3, 5}));
    DT_ASSIGN_OR_RETURN(const auto z, Make(context, mesh, "[]", {2}, {0, 0}));
    const TensorOr parts[] = {Reshape(Scale(x, 2), {4}), Reshape(Add(Transpose(x, 0, 1), z), {4})};
    const TensorOr y = Linear(Reshape(Concat(parts, 0), {4, 2}), w);
    const TensorOr loss = Sum(y, {0, 1});
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_TRUE(context.communicator().traffic().empty());
    EXPECT_EQ(Text(x.grad()), "[] [] P(sum: tp)");
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x.grad()));
    EXPECT_THAT(gradient, ElementsAre(2 * 4 + 4, 2 * 7 + 4, 2 * 4 + 7, 2 * 7 + 7));
    return absl::OkStatus();
  });
}

// exp of a sum of terms is not the sum of exps; and a shard of a row is no row.
TEST(OpWrongAnswersTest, SoftmaxTakesWholeRowsOfWholeValues) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] [tp]", "[] [] P(sum: tp)"}) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, layout, {1, 4}, {1, 1, 1, 1}));
      DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(*Softmax(x)));
      EXPECT_THAT(values, Each(Near(.25)));
    }
    return absl::OkStatus();
  });
}

// A rounded sum is not the sum of rounded terms: 1 + 2^-9 and -1 would leave nothing of 2^-9.
TEST(OpWrongAnswersTest, ACastRoundsTheSumNotTheTerms) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(mesh, "[] P(sum: tp)"));
    const float term = context.rank() == 0 ? 1 + 0x1p-9f : -1;
    DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), {term}, {1}));
    DT_ASSIGN_OR_RETURN(const auto x, FromLocal(context, layout, {1}, local));
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(*Cast(x, DType::kBF16)));
    EXPECT_THAT(values, ElementsAre(0x1p-9));
    return absl::OkStatus();
  });
}

// Classes that other ranks hold count in the denominator, and each target's logit counts once.
TEST(OpWrongAnswersTest, ShardedClassesGiveOneWholeLoss) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto logits, Make(context, mesh, "[] [tp]", {1, 3}, {0, 0, 0}));
    DT_ASSIGN_OR_RETURN(const Layout whole, Layout::Parse(mesh, "[]"));
    DT_ASSIGN_OR_RETURN(const auto targets, Place(context, whole, {1}, DType::kI64, {2}, 0));
    DT_ASSIGN_OR_RETURN(const auto loss, CrossEntropy(logits, targets));
    EXPECT_EQ(Text(loss), "[]");
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(loss));
    EXPECT_THAT(values, ElementsAre(Near(std::log(3.f))));
    DT_RETURN_IF_ERROR(Backward(Sum(loss, {0})));
    EXPECT_EQ(Text(logits.grad()), "[] [tp]");
    return absl::OkStatus();
  });
}

// Ids are indices: adding the terms' rows would look up other rows.
TEST(OpWrongAnswersTest, EmbeddingDoesNotLookUpTermsOfIds) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Layout partial, Layout::Parse(mesh, "[] P(sum: tp)"));
    DT_ASSIGN_OR_RETURN(Tensor local, FromHost<int64_t>(context.device(), {1}, {1}));
    DT_ASSIGN_OR_RETURN(const auto ids, FromLocal(context, partial, {1}, local));
    DT_ASSIGN_OR_RETURN(const auto table, Make(context, mesh, "[] []", {3, 1}, {10, 20, 50}));
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(*Embedding(ids, table)));
    EXPECT_THAT(values, ElementsAre(50));
    return absl::OkStatus();
  });
}

// Query heads share key heads: on each rank the gradient of the keys holds its query heads' part
// only.
TEST(OpWrongAnswersTest, KeysThatAllRanksShareGetPartialGradients) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto q, Make(context, mesh, "[] [] [tp] []", {1, 1, 2, 1}, {1, 2}));
    DT_ASSIGN_OR_RETURN(const auto k, Make(context, mesh, "[] [] [] []", {1, 1, 1, 1}, {1}));
    DT_ASSIGN_OR_RETURN(const auto v, Make(context, mesh, "[] [] [] []", {1, 1, 1, 1}, {1}));
    DT_RETURN_IF_ERROR(Backward(Sum(Attention(q, k, v, {}), {0, 1, 2, 3})));
    EXPECT_EQ(Text(v.grad()), "[] [] [] [] P(sum: tp)");
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(v.grad()));
    EXPECT_THAT(gradient, ElementsAre(2));
    return absl::OkStatus();
  });
}

// A replicated tensor's squares count once, not once for each rank; a Partial one's are not the
// terms' squares.
TEST(OpWrongAnswersTest, SquaresAreCountedOnce) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[]", "[tp]", "[] P(sum: tp)"}) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, layout, {3}, {1, 2, 3}));
      DT_ASSIGN_OR_RETURN(const auto sum, SumOfSquares(x));
      DT_ASSIGN_OR_RETURN(const double value, Item(sum));
      EXPECT_EQ(value, 14) << layout;
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
