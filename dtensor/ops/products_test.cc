// Matrix products on several ranks: which operands stay where they are, and that a bias is added
// once.
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "dtensor/testing/two_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pointwise;

TEST(BatchedMatMul, StaysWhereTheBatchIsSplit) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto a, Make(context, mesh, "[tp] [] []", {2, 1, 2}, {1, 2, 3, 4}));
    DT_ASSIGN_OR_RETURN(const auto b, Make(context, mesh, "[] []", {2, 2}, {1, 2, 3, 4}));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto c, MatMul(a, b));
    DT_RETURN_IF_ERROR(Backward(Sum(c, {0, 1, 2})));
    EXPECT_EQ(Text(c), "[tp] [] []");
    EXPECT_EQ(Text(b.grad()), "[] [] P(sum: tp)");
    EXPECT_THAT(GlobalValues(c), IsOkAndHolds(ElementsAre(7, 10, 15, 22)));
    EXPECT_THAT(GlobalValues(b.grad()), IsOkAndHolds(ElementsAre(4, 4, 6, 6)));
    EXPECT_THAT(GlobalValues(a.grad()), IsOkAndHolds(ElementsAre(3, 7, 3, 7)));
    return absl::OkStatus();
  });
}

struct EinsumCase {
  const char* rule;
  Dims a_shape, b_shape;
  const char *a, *b, *result;   // layouts
  const char *a_grad, *b_grad;  // of gradients
};

// Nothing moves, whichever letter is sharded.
TEST(Einsum, FollowsItsLetters) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const char *scores = "b q h d, b k h d -> b h q k", *heads = "... i, (h d) i -> ... h d";
    for (const EinsumCase& c : {
             EinsumCase{scores,
                        {1, 2, 2, 3},
                        {1, 3, 2, 3},
                        "[] [] [tp] []",
                        "[] [] [tp] []",
                        "[] [tp] [] []",
                        "[] [] [tp] []",
                        "[] [] [tp] []"},
             EinsumCase{scores,
                        {1, 2, 2, 3},
                        {1, 3, 2, 3},
                        "[] [tp] [] []",
                        "[] [] [] []",
                        "[] [] [tp] []",
                        "[] [tp] [] []",
                        "[] [] [] [] P(sum: tp)"},
             EinsumCase{scores,
                        {1, 2, 2, 4},
                        {1, 3, 2, 4},
                        "[] [] [] [tp]",
                        "[] [] [] [tp]",
                        "[] [] [] [] P(sum: tp)",
                        "[] [] [] [tp]",
                        "[] [] [] [tp]"},
             EinsumCase{heads,
                        {2, 3},
                        {4, 3},
                        "[] []",
                        "[tp x 2] []",
                        "[] [tp] []",
                        "[] [] P(sum: tp)",
                        "[tp x 2] []"},
             EinsumCase{heads,
                        {2, 3},
                        {4, 3},
                        "[tp] []",
                        "[] []",
                        "[tp] [] []",
                        "[tp] []",
                        "[] [] P(sum: tp)"},
         }) {
      const auto make = [&](const char* layout, const Dims& shape, uint64_t seed) {
        std::vector<double> values(NumElements(shape));
        for (size_t i = 0; i < values.size(); ++i) values[i] = SmallInteger(TestHash(seed, i, 0));
        return Make(context, mesh, layout, shape, values);
      };
      const LetterSizes sizes = c.rule == heads ? LetterSizes{{"h", 2}} : LetterSizes{};
      DT_ASSIGN_OR_RETURN(const auto a, make(c.a, c.a_shape, 1));
      DT_ASSIGN_OR_RETURN(const auto b, make(c.b, c.b_shape, 2));
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const auto y, Einsum(c.rule, a, b, sizes));
      EXPECT_EQ(Text(y), c.result) << c.rule;
      EXPECT_TRUE(context.communicator().traffic().empty()) << c.rule;
      DT_RETURN_IF_ERROR(Backward(Einsum("... -> ", y)));
      EXPECT_EQ(Text(a.grad()), c.a_grad) << c.rule;
      EXPECT_EQ(Text(b.grad()), c.b_grad) << c.rule;
    }
    return absl::OkStatus();
  });
}

// Which size a letter has does not depend on the order of operands, nor on others that are 0.
TEST(Einsum, LearnsSizesFromAnyOperand) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const auto zeros = [&](Dims shape) {
      return Full(context, DeviceMesh(), Placements{}, shape, DType::kF64, 0);
    };
    const LetterSizes sizes = {{"k", 0}};
    DT_ASSIGN_OR_RETURN(const auto a, Einsum("(h k), h -> k", zeros({0}), zeros({2}), sizes));
    DT_ASSIGN_OR_RETURN(const auto b, Einsum("h, (h k) -> k", zeros({2}), zeros({0}), sizes));
    EXPECT_EQ(a.shape(), Dims{0});
    EXPECT_EQ(b.shape(), Dims{0});
    return absl::OkStatus();
  }));
}

// A product in one order of dimensions is that in another, bit for bit; gradients are sums in
// another order.
TEST(Einsum, IsTheSameProductAsMatMul) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const auto make = [&](const Dims& shape, uint64_t seed) -> TensorOr {
      DT_ASSIGN_OR_RETURN(DistributedTensor x,
                          RandomNormal(context, DeviceMesh(), Placements{}, shape, {.seed = seed}));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      return x;
    };
    DT_ASSIGN_OR_RETURN(const auto q, make({2, 5, 3, 8}, 1));
    DT_ASSIGN_OR_RETURN(const auto k, make({2, 7, 3, 8}, 2));
    const auto gradients = [&](const TensorOr& y) -> absl::StatusOr<std::vector<double>> {
      for (DistributedTensor x : {q, k}) x.ClearGrad();
      DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2, 3})));
      DT_ASSIGN_OR_RETURN(std::vector<double> all, GlobalValues(q.grad()));
      DT_ASSIGN_OR_RETURN(const std::vector<double> of_k, GlobalValues(k.grad()));
      all.insert(all.end(), of_k.begin(), of_k.end());
      return all;
    };
    const TensorOr plain = MatMul(Transpose(q, 1, 2), Permute(k, {0, 2, 3, 1}));
    const TensorOr y = Einsum("b q h d, b k h d -> b h q k", q, k);
    DT_RETURN_IF_ERROR(y.status());
    EXPECT_EQ(GlobalValues(*y).value(), GlobalValues(*plain).value());
    DT_ASSIGN_OR_RETURN(const std::vector<double> want, gradients(plain));
    EXPECT_THAT(gradients(y), IsOkAndHolds(Pointwise(DoubleNear(1e-4), want)));
    return absl::OkStatus();
  }));
}

struct BiasCase {
  const char *x, *weight, *bias, *result;  // layouts
  const char* bias_gradient;
};

// x = [1, 2], weight = [[1, 1], [2, 3]], bias = [10, 20]: [13, 28].
TEST(LinearWithBias, AddsItOnce) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const BiasCase& c : {
             BiasCase{"[] []", "[] []", "[]", "[] []", "[]"},
             BiasCase{"[] []", "[tp] []", "[tp]", "[] [tp]", "[tp]"},
             BiasCase{"[] []", "[tp] []", "[]", "[] [tp]", "[tp]"},
             BiasCase{"[] [tp]", "[] [tp]", "[]", "[] []", "[]"},
             BiasCase{"[] [tp]", "[] []", "[tp]", "[] [tp]", "[tp]"},
             BiasCase{"[] [] P(sum: tp)", "[] []", "[]", "[] []", "[]"},
             BiasCase{"[] []", "[] []", "[] P(sum: tp)", "[] []", "[]"},
         }) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, c.x, {1, 2}, {1, 2}));
      DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, c.weight, {2, 2}, {1, 1, 2, 3}));
      DT_ASSIGN_OR_RETURN(const auto bias, Make(context, mesh, c.bias, {2}, {10, 20}));
      DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w, bias));
      EXPECT_EQ(Text(y), c.result) << c.x << ", " << c.weight;
      EXPECT_THAT(GlobalValues(y), IsOkAndHolds(ElementsAre(13, 28))) << c.x << ", " << c.weight;
      DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
      EXPECT_EQ(Text(bias.grad()), c.bias_gradient) << c.x << ", " << c.weight;
      EXPECT_THAT(GlobalValues(bias.grad()), IsOkAndHolds(Each(1)));
      EXPECT_THAT(GlobalValues(x.grad()), IsOkAndHolds(ElementsAre(3, 4)));
      EXPECT_THAT(GlobalValues(w.grad()), IsOkAndHolds(ElementsAre(1, 2, 1, 2)));
    }
    return absl::OkStatus();
  });
}

// 256 and 1 and 1 make 258 in bf16 only if they are added before they are rounded.
TEST(LinearWithBias, RoundsOnce) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const auto make = [&](Dims shape, std::vector<double> values) {
      const Layout layout = Layout::Replicated(DeviceMesh(), static_cast<int>(shape.size()));
      return Place(context, layout, shape, DType::kBF16, values, 0);
    };
    const TensorOr y = Linear(make({1, 2}, {256, 1}), make({1, 2}, {1, 1}), make({1}, {1}));
    DT_RETURN_IF_ERROR(y.status());
    EXPECT_THAT(GlobalValues(*y), IsOkAndHolds(ElementsAre(258)));
    return absl::OkStatus();
  }));
}

TEST(LinearWithBias, RefusesAnotherBiasWhereverItLies) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] []", "[] [tp]"}) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, layout, {1, 2}, {1, 2}));
      DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, layout, {2, 2}, {1, 1, 2, 3}));
      DT_ASSIGN_OR_RETURN(const auto bias, Make(context, mesh, "[]", {1}, {1}));
      EXPECT_THAT(Linear(x, w, bias), StatusIs(absl::StatusCode::kInvalidArgument,
                                               testing::HasSubstr("Reshape it to [2]")));
      EXPECT_THAT(Linear(x, w, DistributedTensor()),
                  StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("undefined")));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
