// The operators that work element by element: values, gradients where a function has no slope, what
// stays Partial, and what is refused. In every layout: tests/op_rules_test.cc.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/all_ops.h"
#include "dtensor/testing/one_rank.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rank r holds values[r], whose combination by `op` is the tensor.
TensorOr Terms(Context& context, ReduceOp op, const std::vector<std::vector<float>>& values) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2"));
  const std::vector<float>& mine = values[context.rank()];
  const int64_t n = static_cast<int64_t>(mine.size());
  DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), mine, {n}));
  return FromLocal(context, mesh, {Partial(op)}, {n}, std::move(local));
}

TEST(ElementwiseOpsTest, Arithmetic) {
  OnOneRank([](const Maker& make) {
    const TensorOr a = make.F32({2, 1}, {1, -2}), b = make.F32({2}, {4, -8});
    EXPECT_THAT(Values(Div(a, b)), ElementsAre(.25, -.125, -.5, .25));
    EXPECT_THAT(Values(Maximum(a, b)), ElementsAre(4, 1, 4, -2));
    EXPECT_THAT(Values(Minimum(a, b)), ElementsAre(1, -8, -2, -8));
    EXPECT_THAT(Values(AddN({a, b, make.F32({}, {100})})), ElementsAre(105, 93, 102, 90));
    EXPECT_THAT(Values(AddN({b})), ElementsAre(4, -8));
    EXPECT_THAT(Values(Neg(b)), ElementsAre(-4, 8));
    EXPECT_THAT(Values(Abs(b)), ElementsAre(4, 8));
    EXPECT_THAT(Values(AddScalar(b, .5)), ElementsAre(4.5, -7.5));
    EXPECT_THAT(Values(Div(a, make.F32({}, {0}))), ElementsAre(kInf, -kInf));
    const TensorOr n = make.I64({2}, {3, -7});
    EXPECT_THAT(Values(Neg(n)), ElementsAre(-3, 7));
    EXPECT_THAT(Values(Maximum(n, make.I64({}, {0}))), ElementsAre(3, 0));
    EXPECT_THAT(Values(AddN({n, n, n})), ElementsAre(9, -21));
  });
}

TEST(ElementwiseOpsTest, Functions) {
  OnOneRank([](const Maker& make) {
    const TensorOr x = make.F64({3}, {.25, 1, 4});
    EXPECT_THAT(Values(Sqrt(x)), ElementsAre(.5, 1, 2));
    EXPECT_THAT(Values(Rsqrt(x)), ElementsAre(2, 1, .5));
    EXPECT_THAT(Values(Pow(x, 2)), ElementsAre(.0625, 1, 16));
    EXPECT_THAT(Values(Pow(x, 1.5)), ElementsAre(.125, 1, 8));
    const auto near = [](double value) { return testing::DoubleNear(value, 1e-14); };
    EXPECT_THAT(Values(Exp(x)), ElementsAre(near(std::exp(.25)), near(std::exp(1.)),
                                            testing::DoubleNear(std::exp(4.), 1e-13)));
    EXPECT_THAT(Values(Log(x)), ElementsAre(near(std::log(.25)), 0, near(std::log(4.))));
    const TensorOr y = make.F64({3}, {-1, 0, 2});
    EXPECT_THAT(Values(Relu(y)), ElementsAre(0, 0, 2));
    EXPECT_THAT(Values(Tanh(y)), ElementsAre(near(std::tanh(-1.)), 0, near(std::tanh(2.))));
    EXPECT_THAT(Values(Sigmoid(y)),
                ElementsAre(near(1 / (1 + std::exp(1.))), .5, near(1 / (1 + std::exp(-2.)))));
    // torch.nn.functional.gelu, whose forms differ.
    const auto rounded = [](double value) { return testing::DoubleNear(value, 1e-9); };
    EXPECT_THAT(Values(Gelu(y)), ElementsAre(rounded(-0.1586552539), 0, rounded(1.9544997361)));
    EXPECT_THAT(Values(Gelu(y, GeluForm::kTanh)),
                ElementsAre(rounded(-0.1588080094), 0, rounded(1.9545976940)));
  });
}

TEST(ElementwiseOpsTest, ComparisonsAndWhatTheyChoose) {
  OnOneRank([](const Maker& make) {
    const TensorOr a = make.F32({3}, {1, 2, 3}), b = make.F32({}, {2});
    EXPECT_THAT(Values(Equal(a, b)), ElementsAre(0, 1, 0));
    EXPECT_THAT(Values(NotEqual(a, b)), ElementsAre(1, 0, 1));
    EXPECT_THAT(Values(Less(a, b)), ElementsAre(1, 0, 0));
    EXPECT_THAT(Values(LessEqual(a, b)), ElementsAre(1, 1, 0));
    EXPECT_THAT(Values(Greater(a, b)), ElementsAre(0, 0, 1));
    EXPECT_THAT(Values(GreaterEqual(a, b)), ElementsAre(0, 1, 1));
    EXPECT_THAT(Values(LogicalAnd(Less(a, b), Equal(b, b))), ElementsAre(1, 0, 0));
    EXPECT_THAT(Values(LogicalOr(Less(a, b), Greater(a, b))), ElementsAre(1, 0, 1));
    EXPECT_THAT(Values(LogicalNot(Less(a, b))), ElementsAre(0, 1, 1));
    EXPECT_EQ(Less(a, b)->dtype(), DType::kBool);
    EXPECT_THAT(Values(Where(Less(a, b), a, Neg(a))), ElementsAre(1, -2, -3));
    const TensorOr n = make.I64({2, 1}, {5, 6});
    EXPECT_THAT(Values(Where(Less(a, b), n, make.I64({}, {0}))), ElementsAre(5, 0, 0, 6, 0, 0));
    EXPECT_THAT(Values(Where(Less(a, b), Equal(a, a), Less(a, a))), ElementsAre(1, 0, 0));
    EXPECT_THAT(Values(Equal(make.I64({2}, {3, 4}), make.I64({}, {4}))), ElementsAre(0, 1));
  });
}

// The gradient of sum(f(x)).
std::vector<double> Slopes(const Maker& make, const std::vector<float>& x,
                           const std::function<TensorOr(const TensorOr&)>& f) {
  DistributedTensor leaf = *make.F32({static_cast<int64_t>(x.size())}, x);
  DT_EXPECT_OK(leaf.set_requires_grad(true));
  DT_EXPECT_OK(Backward(Sum(f(leaf), {0})));
  return Values(leaf.grad());
}

TEST(ElementwiseOpsTest, ClampedToBounds) {
  OnOneRank([](const Maker& make) {
    const TensorOr x = make.F32({6}, {-kInf, -2, .5, 2, kInf, kNaN});
    EXPECT_THAT(Values(Clamp(x, -1, 1)), ElementsAre(-1, -1, .5, 1, 1, IsNan()));
    EXPECT_THAT(Values(Clamp(x, -kInf, 1)), ElementsAre(-kInf, -2, .5, 1, 1, IsNan()));
    EXPECT_THAT(Values(Clamp(x, 1, 1)), ElementsAre(1, 1, 1, 1, 1, IsNan()));
  });
}

TEST(ElementwiseOpsTest, ACloneHasMemoryOfItsOwn) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto max, Terms(context, ReduceOp::kMax, {{-1, 4}, {9, -16}}));
    DT_ASSIGN_OR_RETURN(const auto copy, Clone(max));
    EXPECT_EQ(copy.layout(), max.layout());
    EXPECT_NE(copy.local().data<float>(), max.local().data<float>());
    DT_RETURN_IF_ERROR(BeforeWrite(max));
    max.local().data<float>()[0] = 100;
    EXPECT_THAT(Values(copy), ElementsAre(9, 4));
    DT_ASSIGN_OR_RETURN(const auto flags, Clone(Equal(copy, copy)));
    EXPECT_THAT(Values(flags), ElementsAre(1, 1));
    return absl::OkStatus();
  }));
}

TEST(ElementwiseOpsTest, SlopesWhereThereIsNone) {
  OnOneRank([](const Maker& make) {
    EXPECT_THAT(Slopes(make, {0, -0.f, 1, -1}, Relu), ElementsAre(0, 0, 1, 0));
    EXPECT_THAT(Slopes(make, {0, -0.f, 1, -1}, Abs), ElementsAre(0, 0, 1, -1));
    EXPECT_THAT(Slopes(make, {0, 1}, Sqrt), ElementsAre(kInf, .5));
    EXPECT_THAT(Slopes(make, {0, 1}, Rsqrt), ElementsAre(-kInf, -.5));
    EXPECT_THAT(Slopes(make, {0, 2}, Log), ElementsAre(kInf, .5));
    EXPECT_THAT(Slopes(make, {-kInf, kInf, kNaN}, Tanh), ElementsAre(0, 0, IsNan()));
    const auto power = [](double e) { return [e](const TensorOr& x) { return Pow(x, e); }; };
    EXPECT_THAT(Slopes(make, {0, 2}, power(0)), ElementsAre(0, 0));
    EXPECT_THAT(Slopes(make, {0, 2}, power(1)), ElementsAre(1, 1));
    EXPECT_THAT(Slopes(make, {0, 2}, power(2)), ElementsAre(0, 4));
    EXPECT_THAT(Slopes(make, {0, 4}, power(.5)), ElementsAre(kInf, .25));
    // Equal operands share.
    const TensorOr ones = make.F32({}, {1});
    const auto max = [&](const TensorOr& x) { return Maximum(x, ones); };
    const auto min = [&](const TensorOr& x) { return Minimum(ones, x); };
    EXPECT_THAT(Slopes(make, {0, 1, 2, kNaN}, max), ElementsAre(0, .5, 1, 1));
    EXPECT_THAT(Slopes(make, {0, 1, 2, kNaN}, min), ElementsAre(1, .5, 0, 1));
    EXPECT_THAT(Slopes(make, {1, 2}, [](const TensorOr& x) { return Maximum(x, x); }),
                ElementsAre(1, 1));
    // At a bound, x counts as replaced.
    const auto clamp = [](const TensorOr& x) { return Clamp(x, -1, 2); };
    EXPECT_THAT(Slopes(make, {-2, -1, 0, 2, 3, kNaN}, clamp), ElementsAre(0, 0, 1, 0, 0, 0));
    // What was not chosen has gradient 0, whatever it is.
    const auto choose = [&](const TensorOr& x) { return Where(Equal(x, x), x, Scale(x, kInf)); };
    EXPECT_THAT(Slopes(make, {1, 2}, choose), ElementsAre(IsNan(), IsNan()));  // 0 * inf, of Scale
    const auto keep = [&](const TensorOr& x) { return Where(Equal(x, x), x, Neg(x)); };
    EXPECT_THAT(Slopes(make, {1, kNaN}, keep), ElementsAre(1, -1));
  });
}

TEST(ElementwiseOpsTest, WhatIsCheaperIsSaved) {
  for (const char* name : {"Exp", "Sqrt", "Rsqrt", "Relu", "Sigmoid", "Tanh"}) {
    EXPECT_EQ(internal::OpNamed(name).saved_operands, 0u) << name;
    EXPECT_EQ(internal::OpNamed(name).saved_results, 1u) << name;
  }
  for (const char* name : {"AddN", "Neg", "AddScalar", "Dropout"}) {
    EXPECT_EQ(internal::OpNamed(name).saved_operands, 0u) << name;
    EXPECT_EQ(internal::OpNamed(name).saved_results, 0u) << name;
  }
}

TEST(ElementwiseOpsTest, WhatStaysPartial) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto max, Terms(context, ReduceOp::kMax, {{-1, 4}, {9, -16}}));
    DT_ASSIGN_OR_RETURN(const auto sum, Terms(context, ReduceOp::kSum, {{-1, 4}, {9, -3}}));
    const auto partial = [](const TensorOr& y) { return y.ok() && y->layout().is_partial(); };
    for (const auto& f : {Exp, Relu, Sigmoid, Tanh}) {
      EXPECT_TRUE(partial(f(max)));
      EXPECT_FALSE(partial(f(sum)));
    }
    const auto clamp = [](const TensorOr& x) { return Clamp(x, 0, 5); };
    EXPECT_TRUE(partial(clamp(max)));
    EXPECT_FALSE(partial(clamp(sum)));
    EXPECT_THAT(Values(clamp(max)), ElementsAre(5, 4));
    EXPECT_THAT(Values(clamp(sum)), ElementsAre(5, 1));
    EXPECT_TRUE(partial(AddScalar(max, 1)));
    EXPECT_FALSE(partial(AddScalar(sum, 1)));
    EXPECT_THAT(Values(AddScalar(max, 1)), ElementsAre(10, 5));
    EXPECT_THAT(Values(AddScalar(sum, 1)), ElementsAre(9, 2));
    EXPECT_TRUE(partial(Neg(sum)));
    EXPECT_FALSE(partial(Neg(max)));
    EXPECT_THAT(Values(Neg(max)), ElementsAre(-9, -4));
    EXPECT_TRUE(partial(AddN({sum, sum, sum})));
    EXPECT_FALSE(partial(AddN({sum, Neg(max), sum})));
    EXPECT_THAT(Values(AddN({sum, Neg(max), sum})), ElementsAre(7, -2));
    // A term that is negative has no root, though the maximum has.
    EXPECT_THAT(Values(Sqrt(max)), ElementsAre(3, 2));
    EXPECT_THAT(Values(Log(AddScalar(max, -8))), ElementsAre(0, IsNan()));
    EXPECT_THAT(Values(Div(sum, max)), ElementsAre(testing::DoubleNear(8. / 9, 1e-6), .25));
    EXPECT_THAT(Values(Less(sum, max)), ElementsAre(1, 1));
    return absl::OkStatus();
  }));
}

TEST(ElementwiseOpsTest, Refusals) {
  OnOneRank([](const Maker& make) {
    const TensorOr x = make.Zeros({2, 3}), flags = Equal(x, x), n = make.I64({2}, {1, 2});
    const auto refused = [](const TensorOr& y, const char* op, const char* why) {
      EXPECT_THAT(y, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(op)));
      EXPECT_THAT(y, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
    };
    refused(Div(n, n), "Div", "Cast");
    refused(Exp(n), "Exp", "i64");
    refused(Neg(flags), "Neg", "bool");
    refused(Maximum(x, make.Zeros({2})), "Maximum", "[2, 3], [2]");
    refused(Less(x, n), "Less", "Cast");
    refused(Less(flags, flags), "Less", "bool");
    refused(LogicalNot(x), "LogicalNot", "f32");
    refused(Where(x, x, x), "Where", "bool");
    refused(Where(flags, x, n), "Where", "unlike types");
    refused(AddN({}), "AddN", "1 to 8");
    refused(AddN(std::vector<TensorOr>(9, x)), "AddN", "several steps");
    refused(AddN({flags}), "AddN", "bool");
    refused(AddN({x, make.Zeros({4})}), "AddN", "[2, 3], [4]");
    refused(AddN({x, DistributedTensor()}), "AddN", "undefined");
    for (const double p : {-0.1, 1.0, 1.5, std::nan("")}) {
      refused(Dropout(x, p, 1), "Dropout", "0 <= p < 1");
    }
    refused(Clamp(n, 0, 1), "Clamp", "i64");
    refused(Clamp(x, 1, 0), "Clamp", "low <= high");
    refused(Clamp(x, kNaN, 0), "Clamp", "low <= high");
    refused(Clamp(DistributedTensor(), 0, 1), "Clamp", "undefined");
    refused(Dropout(n, 0, 1), "Dropout", "i64");
    refused(Dropout(n, .5, 1), "Dropout", "i64");
    refused(Dropout(DistributedTensor(), .5, 1), "Dropout", "undefined");
  });
}

}  // namespace
}  // namespace dtensor
