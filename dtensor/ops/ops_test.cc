// The operators on one rank: values, and gradients against finite differences. Many ranks:
// tests/op_rules_test.cc.
#include "dtensor/ops/ops.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/all_ops.h"
#include "dtensor/testing/check_op.h"
#include "dtensor/testing/one_rank.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dims Shape(const TensorOr& tensor) { return tensor.ok() ? tensor->shape() : Dims{-1}; }

TEST(OpsTest, Products) {
  OnOneRank([](const Maker& make) {
    const TensorOr a = make.F32({2, 2}, {1, 2, 3, 4}), b = make.F32({2, 2}, {5, 6, 7, 8});
    EXPECT_THAT(Values(MatMul(a, b)), ElementsAre(19, 22, 43, 50));
    EXPECT_THAT(Values(Linear(a, b)), ElementsAre(17, 23, 39, 53));
    EXPECT_THAT(Values(MatMul(Transpose(a, 0, 1), b)), ElementsAre(26, 30, 38, 44));
    EXPECT_THAT(Values(Linear(a, b, make.F32({2}, {100, 200}))), ElementsAre(117, 223, 139, 253));
    EXPECT_THAT(Values(MatMul(make.F32({2, 1, 2}, {1, 2, 3, 4}), b)), ElementsAre(19, 22, 43, 50));
    EXPECT_THAT(Shape(MatMul(make.Zeros({2, 1, 3, 4}), make.Zeros({5, 4, 2}))),
                ElementsAre(2, 5, 3, 2));
    EXPECT_THAT(Shape(Linear(make.Zeros({2, 0, 3}), make.Zeros({5, 3}))), ElementsAre(2, 0, 5));
    EXPECT_THAT(Values(Linear(make.Zeros({2, 0}), make.Zeros({1, 0}))), ElementsAre(0, 0));
  });
}

TEST(OpsTest, ElementByElement) {
  OnOneRank([](const Maker& make) {
    const TensorOr a = make.F32({2, 1}, {1, 2}), b = make.F32({2}, {10, 20});
    EXPECT_THAT(Values(Add(a, b)), ElementsAre(11, 21, 12, 22));
    EXPECT_THAT(Values(Sub(a, b)), ElementsAre(-9, -19, -8, -18));
    EXPECT_THAT(Values(Mul(a, b)), ElementsAre(10, 20, 20, 40));
    EXPECT_THAT(Values(Scale(b, -.5)), ElementsAre(-5, -10));
    EXPECT_THAT(Values(Silu(make.F32({1}, {0}))), ElementsAre(0));
    EXPECT_NEAR(Values(SiluMul(make.F32({1}, {1}), make.F32({1}, {2})))[0], 2 / (1 + std::exp(-1)),
                1e-6);
    EXPECT_THAT(Values(Cast(make.F32({2}, {1.7f, -1.7f}), DType::kI32)), ElementsAre(1, -1));
    EXPECT_THAT(Values(Add(make.I64({2}, {1, 2}), make.I64({}, {5}))), ElementsAre(6, 7));
  });
}

TEST(OpsTest, Reductions) {
  OnOneRank([](const Maker& make) {
    const TensorOr x = make.F32({2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_THAT(Values(Sum(x, {0})), ElementsAre(5, 7, 9));
    EXPECT_THAT(Values(Sum(x, {-1})), ElementsAre(6, 15));
    EXPECT_THAT(Values(Sum(x, {1, 0})), ElementsAre(21));
    EXPECT_THAT(Shape(Sum(x, {})), ElementsAre(2, 3));
    EXPECT_THAT(Values(Mean(x, {0, 1})), ElementsAre(3.5));
    EXPECT_THAT(Values(Mean(x, {0})), ElementsAre(2.5, 3.5, 4.5));
    EXPECT_THAT(Values(SumOfSquares(x)), ElementsAre(91));
  });
}

// The sum of so many is no f16; and where ranks share them, neither is any term.
TEST(OpsTest, AMeanDividesBeforeItRounds) {
  constexpr int64_t kCount = 140'000;
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    for (const Placement placement : {Replicate(), Shard(0)}) {
      DT_ASSIGN_OR_RETURN(auto ones, Full(context, mesh, {placement}, {kCount}, DType::kF16, 1));
      DT_RETURN_IF_ERROR(ones.set_requires_grad(true));
      const TensorOr mean = Mean(ones, {0});
      EXPECT_THAT(Values(mean), ElementsAre(1)) << ones.ToString();
      DT_RETURN_IF_ERROR(Backward(mean));
      const double term = static_cast<float>(Float16(1.f / kCount));
      EXPECT_THAT(Values(ones.grad()), Each(term)) << ones.ToString();
    }
    return absl::OkStatus();
  }));
  OnOneRank([](const Maker& make) {  // a quotient, not a product with the reciprocal: 49 (1/49) < 1
    EXPECT_THAT(Values(Mean(make.F64({49}, std::vector<double>(49, 1)), {0})), ElementsAre(1));
    EXPECT_THAT(Values(Mean(make.Zeros({2, 0}), {1})), Each(testing::IsNan()));
  });
}

TEST(OpsTest, Views) {
  OnOneRank([](const Maker& make) {
    const TensorOr x = make.F32({2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_THAT(Shape(Reshape(x, {3, -1})), ElementsAre(3, 2));
    EXPECT_THAT(Values(Reshape(Transpose(x, 0, -1), {6})), ElementsAre(1, 4, 2, 5, 3, 6));
    EXPECT_THAT(Values(Slice(x, 1, 1, 3)), ElementsAre(2, 3, 5, 6));
    EXPECT_THAT(Shape(Slice(x, 0, 1, 1)), ElementsAre(0, 3));
    EXPECT_THAT(Values(Concat({x, make.F32({2, 1}, {7, 8})}, 1)),
                ElementsAre(1, 2, 3, 7, 4, 5, 6, 8));
    EXPECT_THAT(Values(Concat({Transpose(x, 0, 1), make.F32({1, 2}, {7, 8})}, 0)),
                ElementsAre(1, 4, 2, 5, 3, 6, 7, 8));
    const TensorOr small = make.F32({2, 1}, {7, 8});
    EXPECT_THAT(Values(Stack({small, Scale(small, 2)}, 0)), ElementsAre(7, 8, 14, 16));
    EXPECT_THAT(Values(Stack({small, Scale(small, 2)}, -1)), ElementsAre(7, 14, 8, 16));
    EXPECT_THAT(Shape(Stack({small, small, small}, 1)), ElementsAre(2, 3, 1));
    const std::vector<TensorOr> many(32, make.F32({1}, {3}));
    EXPECT_THAT(Values(Concat(many, 0)), AllOf(Each(3), testing::SizeIs(32)));
    EXPECT_THAT(Values(Pad(small, 1, 1, 2, 5)), ElementsAre(5, 7, 5, 5, 5, 8, 5, 5));
    EXPECT_THAT(Values(Pad(make.I64({1}, {3}), 0, 0, 1)), ElementsAre(3, 0));
    EXPECT_THAT(Values(Expand(small, {2, 2, 2})), ElementsAre(7, 7, 8, 8, 7, 7, 8, 8));
    EXPECT_TRUE(Expand(small, {2, 3})->local().SharesStorageWith(small->local()));
    EXPECT_THAT(Shape(Permute(make.Zeros({2, 3, 4}), {2, 0, -2})), ElementsAre(4, 2, 3));
    EXPECT_THAT(Values(Permute(Reshape(x, {1, 2, 3}), {2, 0, 1})), ElementsAre(1, 4, 2, 5, 3, 6));
    DT_ASSERT_OK_AND_ASSIGN(const auto parts, SplitTensor(x, -1, {1, 2}));
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_THAT(Values(parts[0]), ElementsAre(1, 4));
    EXPECT_THAT(Values(parts[1]), ElementsAre(2, 3, 5, 6));
    EXPECT_TRUE(Reshape(x, {6})->local().SharesStorageWith(x->local()));
    EXPECT_TRUE(parts[1].local().SharesStorageWith(x->local()));
  });
}

TEST(OpsTest, Transformers) {
  OnOneRank([](const Maker& make) {
    const TensorOr table = make.F32({3, 2}, {1, 2, 3, 4, 5, 6});
    EXPECT_THAT(Values(Embedding(make.I64({2}, {2, 0}), table)), ElementsAre(5, 6, 1, 2));
    EXPECT_THAT(Shape(Embedding(make.I64({}, {1}), table)), ElementsAre(2));
    // Position 0 does not turn; position 1 turns (1, 0) by one radian.
    const auto turned = Values(Rope(make.F32({1, 2, 1, 2}, {1, 0, 1, 0}), 100));
    EXPECT_THAT(turned, ElementsAre(1, 0, testing::DoubleNear(std::cos(1.), 1e-6),
                                    testing::DoubleNear(std::sin(1.), 1e-6)));
    const TensorOr late = Rope(make.F32({1, 1, 1, 2}, {1, 0}), 100, 1);
    EXPECT_THAT(Values(late), ElementsAre(turned[2], turned[3]));
    // One key: its value, whatever the scores.
    const TensorOr q = make.F32({1, 1, 2, 1}, {3, -3}), v = make.F32({1, 1, 1, 1}, {7});
    EXPECT_THAT(Values(Attention(q, v, v, {})), ElementsAre(7, 7));
    const TensorOr logits = make.F32({2, 2}, {0, 0, 5, 5});
    EXPECT_THAT(Values(CrossEntropy(logits, make.I64({2}, {0, -100}))),
                ElementsAre(testing::DoubleNear(std::log(2), 1e-6), 0));
    EXPECT_THAT(Values(Softmax(logits)), ElementsAre(.5, .5, .5, .5));
    EXPECT_NEAR(Values(RmsNorm(make.F32({2}, {3, 4}), make.F32({2}, {1, 2}), 0))[1],
                8 / std::sqrt(12.5), 1e-6);
  });
}

TEST(OpsTest, MeanDividesItsGradient) {
  OnOneRank([](const Maker& make) {
    DT_ASSERT_OK_AND_ASSIGN(auto x, make.F32({2, 2}, {1, 2, 3, 4}));
    DT_ASSERT_OK(x.set_requires_grad(true));
    DT_ASSERT_OK(Backward(Mean(x, {0, 1})));
    EXPECT_THAT(Values(x.grad()), ElementsAre(.25, .25, .25, .25));
  });
}

TEST(OpsTest, CastBringsGradientsBackToTheType) {
  OnOneRank([](const Maker& make) {
    DT_ASSERT_OK_AND_ASSIGN(auto x, make.F32({2}, {1, 2}));
    DT_ASSERT_OK(x.set_requires_grad(true));
    DT_ASSERT_OK(Backward(Sum(Cast(x, DType::kF64), {0})));
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
    EXPECT_THAT(Values(x.grad()), ElementsAre(1, 1));
  });
}

TEST(OpsTest, TopKOfIntegersAndOfNone) {
  OnOneRank([](const Maker& make) {
    DT_ASSERT_OK_AND_ASSIGN(const auto top, TopK(make.I64({2, 3}, {4, 6, 6, -1, -3, -2}), 2));
    EXPECT_EQ(top[0].dtype(), DType::kI64);
    EXPECT_EQ(top[1].dtype(), DType::kI64);
    EXPECT_THAT(Values(top[0]), ElementsAre(6, 6, -1, -2));
    EXPECT_THAT(Values(top[1]), ElementsAre(1, 2, 0, 2));
    DT_ASSERT_OK_AND_ASSIGN(auto x, make.F32({2, 3}, {1, 2, 3, 4, 5, 6}));
    DT_ASSERT_OK(x.set_requires_grad(true));
    DT_ASSERT_OK_AND_ASSIGN(const auto none, TopK(x, 0));
    EXPECT_THAT(Shape(none[0]), ElementsAre(2, 0));
    EXPECT_THAT(Shape(none[1]), ElementsAre(2, 0));
    DT_ASSERT_OK(Backward(Sum(none[0], {0, 1})));
    EXPECT_THAT(Values(x.grad()), Each(0));
  });
}

// A mixture of rows of a table: gradients reach it through the values alone.
TEST(OpsTest, IndicesOfTopKAreIdsWithoutAGradient) {
  OnOneRank([](const Maker& make) {
    DT_ASSERT_OK_AND_ASSIGN(auto x, make.F32({3}, {2, 7, 5}));
    DT_ASSERT_OK_AND_ASSIGN(auto table, make.F32({3, 1}, {10, 20, 30}));
    DT_ASSERT_OK(x.set_requires_grad(true));
    DT_ASSERT_OK(table.set_requires_grad(true));
    DT_ASSERT_OK_AND_ASSIGN(const auto top, TopK(x, 2));
    const TensorOr rows = Reshape(Embedding(top[1], table), {2});
    DT_ASSERT_OK(Backward(Sum(Mul(rows, top[0]), {0})));
    EXPECT_THAT(Values(x.grad()), ElementsAre(0, 20, 30));
    EXPECT_THAT(Values(table.grad()), ElementsAre(0, 7, 5));
    EXPECT_THAT(Backward(Sum(Cast(top[1], DType::kF32), {0})),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("TopK gives its integers no gradient")));
  });
}

// --- Gradients against central differences, in f64.

class OpGradientTest : public testing::TestWithParam<int> {};

TEST_P(OpGradientTest, AgreesWithFiniteDifferences) {
  const OpCase c = AllOpCases()[GetParam()];
  if (!c.op->differentiable() || c.op == &internal::OpNamed("Cast"))
    GTEST_SKIP() << "steps have no slope";
  DT_EXPECT_OK(CheckGradients(c));
  DT_EXPECT_OK(CheckSeparateGradients(c));
}

INSTANTIATE_TEST_SUITE_P(Ops, OpGradientTest,
                         testing::Range(0, static_cast<int>(AllOpCases().size())));

}  // namespace
}  // namespace dtensor
