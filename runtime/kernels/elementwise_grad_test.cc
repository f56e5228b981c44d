// The gradients of elementwise.h: derivatives by formula, by differences, and where there is none.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr UnaryOp kUnaryOps[] = {
    UnaryOp::kExp,    UnaryOp::kLog,  UnaryOp::kSqrt,    UnaryOp::kRsqrt, UnaryOp::kRecip,
    UnaryOp::kSquare, UnaryOp::kAbs,  UnaryOp::kSilu,    UnaryOp::kRelu,  UnaryOp::kSigmoid,
    UnaryOp::kTanh,   UnaryOp::kGelu, UnaryOp::kGeluTanh};

bool NeedsPositive(UnaryOp op) {
  return op == UnaryOp::kLog || op == UnaryOp::kSqrt || op == UnaryOp::kRsqrt ||
         op == UnaryOp::kRecip;
}

class ElementwiseGradTest : public KernelTest {
 protected:
  Doubles RunUnaryGrad(UnaryOp op, const Tensor& saved, const Tensor& dy) {
    const Tensor dx = Empty(dy.dtype(), dy.shape());
    EXPECT_THAT(UnaryGrad(device(), op, saved, dy, dx), IsOk());
    return Read(dx);
  }
  Doubles RunBinaryGrad(BinaryOp op, int operand, const Tensor& a, const Tensor& b,
                        const Tensor& dy) {
    const Tensor dx = Empty(dy.dtype(), dy.shape());
    EXPECT_THAT(BinaryGrad(device(), op, operand, a, b, dy, dx), IsOk());
    return Read(dx);
  }
  Doubles RunPowGrad(const Tensor& x, double exponent, const Tensor& dy) {
    const Tensor dx = Empty(dy.dtype(), dy.shape());
    EXPECT_THAT(PowGrad(device(), x, exponent, dy, dx), IsOk());
    return Read(dx);
  }
  Tensor Forward(UnaryOp op, const Tensor& x) {
    const Tensor y = Empty(x.dtype(), x.shape());
    EXPECT_THAT(Unary(device(), op, x, y), IsOk());
    return y;
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ElementwiseGradTest);

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The derivative of op where its operand, or its result, is `s`.
double Slope(UnaryOp op, double s) {
  const double pi = std::acos(-1), u = 2 * std::sqrt(2 / pi);
  const double gate = Sigmoid(u * (s + 0.044715 * s * s * s));
  switch (op) {
    case UnaryOp::kExp:
      return s;
    case UnaryOp::kLog:
      return 1 / s;
    case UnaryOp::kSqrt:
      return 1 / (2 * s);
    case UnaryOp::kRsqrt:
      return -s * s * s / 2;
    case UnaryOp::kRecip:
      return -s * s;
    case UnaryOp::kSquare:
      return 2 * s;
    case UnaryOp::kAbs:
      return (s > 0) - (s < 0);
    case UnaryOp::kSilu:
      return Sigmoid(s) * (1 + s * (1 - Sigmoid(s)));
    case UnaryOp::kRelu:
      return s > 0;
    case UnaryOp::kSigmoid:
      return s * (1 - s);
    case UnaryOp::kTanh:
      return 1 - s * s;
    case UnaryOp::kGelu:
      return std::erfc(-s * std::sqrt(0.5)) / 2 + s * std::exp(-s * s / 2) / std::sqrt(2 * pi);
    case UnaryOp::kGeluTanh:
      return gate + s * gate * (1 - gate) * u * (1 + 3 * 0.044715 * s * s);
    default:
      return kNaN;
  }
}

TEST_P(ElementwiseGradTest, UnaryGradIsTheDerivative) {
  const int64_t rows = 7, columns = 23, n = rows * columns;
  for (const DType dtype : kFloats) {
    const Doubles dy = Rounded(dtype, RandomValues(n, -1, 1, 2));
    for (const UnaryOp op : kUnaryOps) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " op " << int(op));
      const double low = NeedsPositive(op) ? 0.25 : -6;
      const Tensor x = Make(dtype, {rows, columns}, RandomValues(n, low, 6, 1));
      const Doubles saved = Read(GradReadsResult(op) ? Forward(op, x) : x);
      Doubles want(n);
      for (int64_t i = 0; i < n; ++i) want[i] = dy[i] * Slope(op, saved[i]);
      const Doubles got = RunUnaryGrad(op, MakeTransposed(dtype, rows, columns, saved),
                                       MakeInside(dtype, rows, columns, dy));
      ExpectNear(got, want, Epsilon(dtype), Epsilon(dtype) * 0.3);
    }
  }
}

TEST_P(ElementwiseGradTest, UnaryGradAgreesWithDifferences) {
  for (const UnaryOp op : kUnaryOps) {
    SCOPED_TRACE(int(op));
    const Doubles x = RandomValues(40, NeedsPositive(op) ? 0.25 : -4, 4, 1);
    const Doubles dy = RandomValues(40, -1, 1, 2);
    const Tensor at = Make(DType::kF64, {40}, x);
    const Doubles want = NumericGradient(x, dy, [&](const Doubles& moved) {
      return Read(Forward(op, Make(DType::kF64, {40}, moved)));
    });
    ExpectNear(
        RunUnaryGrad(op, GradReadsResult(op) ? Forward(op, at) : at, Make(DType::kF64, {40}, dy)),
        want, 1e-7, 1e-8);
  }
}

TEST_P(ElementwiseGradTest, UnaryGradWhereThereIsNoSlope) {
  struct Case {
    UnaryOp op;
    Doubles x, slopes;
  };
  const Case cases[] = {
      {UnaryOp::kExp, {-kInf, kInf, kNaN}, {0, kInf, kNaN}},
      {UnaryOp::kLog, {0, kInf, kNaN}, {kInf, 0, kNaN}},
      {UnaryOp::kSqrt, {0, kInf, -1, kNaN}, {kInf, 0, kNaN, kNaN}},
      {UnaryOp::kRsqrt, {0, kInf, -1}, {-kInf, 0, kNaN}},
      {UnaryOp::kAbs, {0, -0.0, kInf, -kInf, kNaN}, {0, 0, 1, -1, 0}},
      {UnaryOp::kRelu, {0, -0.0, kInf, -kInf, kNaN}, {0, 0, 1, 0, 1}},
      {UnaryOp::kSigmoid, {0, kInf, -kInf, kNaN}, {0.25, 0, 0, kNaN}},
      {UnaryOp::kTanh, {0, kInf, -kInf, kNaN}, {1, 0, 0, kNaN}},
      {UnaryOp::kGelu, {0, 40, -40, kNaN}, {0.5, 1, 0, kNaN}},
      {UnaryOp::kGeluTanh, {0, 40, -40, kNaN}, {0.5, 1, 0, kNaN}},
  };
  for (const DType dtype : kFloats) {
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " op " << int(c.op));
      const int64_t n = static_cast<int64_t>(c.x.size());
      const Tensor x = Make(dtype, {n}, c.x);
      ExpectNear(RunUnaryGrad(c.op, GradReadsResult(c.op) ? Forward(c.op, x) : x,
                              Make(dtype, {n}, Doubles(n, 1))),
                 c.slopes, 0, 0);
    }
  }
}

TEST_P(ElementwiseGradTest, DivGradIsTheDerivative) {
  for (const DType dtype : kFloats) {
    const Doubles a = Rounded(dtype, RandomValues(77, -2, 2, 1));
    const Doubles b = Rounded(dtype, RandomValues(77, 0.5, 2, 2));
    const Doubles dy = Rounded(dtype, RandomValues(77, -1, 1, 3));
    Doubles da(77), db(77);
    for (int i = 0; i < 77; ++i) {
      da[i] = dy[i] / b[i];
      db[i] = -dy[i] * a[i] / (b[i] * b[i]);
    }
    const Tensor x = Make(dtype, {77}, a), y = Make(dtype, {77}, b), d = Make(dtype, {77}, dy);
    const double smallest = dtype == DType::kF16 ? 0x1p-25 : 0;
    ExpectNear(RunBinaryGrad(BinaryOp::kDiv, 0, x, y, d), da, Epsilon(dtype), smallest);
    ExpectNear(RunBinaryGrad(BinaryOp::kDiv, 1, x, y, d), db, Epsilon(dtype), smallest);
  }
}

TEST_P(ElementwiseGradTest, EqualOperandsShareTheGradientOfTheirMaximum) {
  for (const DType dtype : kFloats) {
    const Tensor a = Make(dtype, {6}, {1, 2, 3, kNaN, 1, kInf});
    const Tensor b = Make(dtype, {6}, {2, 2, 1, 1, kNaN, kInf});
    const Tensor dy = Make(dtype, {6}, {8, 8, 8, 8, 8, 8});
    EXPECT_EQ(RunBinaryGrad(BinaryOp::kMax, 0, a, b, dy), Doubles({0, 4, 8, 8, 8, 4}));
    EXPECT_EQ(RunBinaryGrad(BinaryOp::kMax, 1, a, b, dy), Doubles({8, 4, 0, 8, 8, 4}));
    EXPECT_EQ(RunBinaryGrad(BinaryOp::kMin, 0, a, b, dy), Doubles({8, 4, 0, 8, 8, 4}));
    EXPECT_EQ(RunBinaryGrad(BinaryOp::kMin, 1, a, b, dy), Doubles({0, 4, 8, 8, 8, 4}));
  }
}

TEST_P(ElementwiseGradTest, PowGradIsTheDerivative) {
  for (const DType dtype : kFloats) {
    const Doubles dy = Rounded(dtype, RandomValues(77, -1, 1, 3));
    for (const double exponent : {1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.5, 1.0 / 3}) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " ^ " << exponent);
      const bool whole = exponent == std::floor(exponent);
      Doubles x = Rounded(dtype, RandomValues(77, 0.5, 4, 1)), want(77);
      for (int i = 0; i < 77; ++i) {
        if (whole && i % 2 == 1) x[i] = -x[i];
        want[i] = dy[i] * exponent * std::pow(x[i], exponent - 1);
      }
      ExpectNear(RunPowGrad(Make(dtype, {77}, x), exponent, Make(dtype, {77}, dy)), want,
                 Epsilon(dtype), dtype == DType::kF16 ? 0x1p-25 : 0);
    }
  }
}

TEST_P(ElementwiseGradTest, PowGradAtZeroAndBeyond) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {3}, {0, kInf, kNaN}), dy = Make(dtype, {3}, {2, 2, 2});
    EXPECT_EQ(RunPowGrad(x, 0, dy), Doubles({0, 0, 0}));
    // A constant has none, whatever comes from behind.
    EXPECT_EQ(RunPowGrad(x, 0, Make(dtype, {3}, {kInf, -kInf, kNaN})), Doubles({0, 0, 0}));
    EXPECT_EQ(RunPowGrad(x, 1, dy), Doubles({2, 2, 2}));
    ExpectNear(RunPowGrad(x, 2, dy), {0, kInf, kNaN}, 0, 0);
    ExpectNear(RunPowGrad(x, 3, dy), {0, kInf, kNaN}, 0, 0);
    ExpectNear(RunPowGrad(x, 0.5, dy), {kInf, 0, kNaN}, 0, 0);
    ExpectNear(RunPowGrad(x, -1, dy), {-kInf, -0.0, kNaN}, 0, 0);
  }
}

TEST_P(ElementwiseGradTest, SiluMulAndItsGradient) {
  const int64_t rows = 5, columns = 23;
  for (const DType dtype : kFloats) {
    const Doubles g = Rounded(dtype, RandomValues(rows * columns, -6, 6, 1));
    const Doubles u = Rounded(dtype, RandomValues(rows * columns, -2, 2, 2));
    const Doubles d = Rounded(dtype, RandomValues(rows * columns, -2, 2, 3));
    // Halves of one tensor, as a fused projection gives them.
    const Tensor gate = MakeInside(dtype, rows, columns, g), up = Make(dtype, {rows, columns}, u);
    const Tensor dy = MakeTransposed(dtype, rows, columns, d);
    const Tensor y = Empty(dtype, {rows, columns}), dgate = Empty(dtype, {rows, columns});
    const Tensor dup = Empty(dtype, {rows, columns});
    ASSERT_THAT(SiluMul(device(), gate, up, y), IsOk());
    ASSERT_THAT(SiluMulGrad(device(), gate, up, dy, dgate, dup), IsOk());
    Doubles want_y, want_dgate, want_dup;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double s = Sigmoid(g[i]);
      want_y.push_back(g[i] * s * u[i]);
      want_dgate.push_back(d[i] * u[i] * s * (1 + g[i] * (1 - s)));
      want_dup.push_back(d[i] * g[i] * s);
    }
    ExpectNear(Read(y), want_y, Epsilon(dtype), 0);
    ExpectNear(Read(dgate), want_dgate, Epsilon(dtype), Epsilon(dtype) * 0.1);
    ExpectNear(Read(dup), want_dup, Epsilon(dtype), 0);
  }
}

TEST_P(ElementwiseGradTest, SiluMulGradAgreesWithDifferences) {
  const Doubles g = RandomValues(30, -6, 6, 1), u = RandomValues(30, -2, 2, 2);
  const Doubles dy = RandomValues(30, -2, 2, 3);
  const auto make = [&](const Doubles& v) { return Make(DType::kF64, {30}, v); };
  const auto forward = [&](const Doubles& gate, const Doubles& up) {
    const Tensor y = Empty(DType::kF64, {30});
    EXPECT_THAT(SiluMul(device(), make(gate), make(up), y), IsOk());
    return Read(y);
  };
  const Tensor dgate = Empty(DType::kF64, {30}), dup = Empty(DType::kF64, {30});
  ASSERT_THAT(SiluMulGrad(device(), make(g), make(u), make(dy), dgate, dup), IsOk());
  ExpectNear(Read(dgate), NumericGradient(g, dy, [&](const Doubles& at) { return forward(at, u); }),
             1e-7, 1e-8);
  ExpectNear(Read(dup), NumericGradient(u, dy, [&](const Doubles& at) { return forward(g, at); }),
             1e-7, 1e-8);
}

TEST_P(ElementwiseGradTest, ClampedSwiGluAndItsGradient) {
  const SwiGluClamp clamp = {1.5, 3};
  const int64_t rows = 5, columns = 23;
  for (const DType dtype : kFloats) {
    // Gates and ups that alternate, as GPT-OSS's projections give them; some at the limits.
    Doubles both = Rounded(dtype, RandomValues(rows * columns * 2, -6, 6, 1));
    both[0] = 3, both[2] = -3, both[1] = 3, both[3] = -3;
    const Doubles d = Rounded(dtype, RandomValues(rows * columns, -2, 2, 3));
    const Tensor pairs = Make(dtype, {rows, columns, 2}, both);
    const Tensor dgate = Empty(dtype, {rows, columns}), dup = Empty(dtype, {rows, columns});
    const auto part = [&](int64_t i) { return pairs.View({rows, columns}, {2 * columns, 2}, i); };
    const Tensor dy = MakeTransposed(dtype, rows, columns, d), y = Empty(dtype, {rows, columns});
    ASSERT_THAT(ClampedSwiGlu(device(), part(0), part(1), clamp, y), IsOk());
    ASSERT_THAT(ClampedSwiGluGrad(device(), part(0), part(1), clamp, dy, dgate, dup), IsOk());
    Doubles want_y, want_dgate, want_dup;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double g = std::min(both[2 * i], 3.0), u = std::clamp(both[2 * i + 1], -3.0, 3.0);
      const double s = Sigmoid(1.5 * g);
      want_y.push_back((u + 1) * g * s);
      want_dgate.push_back(both[2 * i] <= 3 ? d[i] * (u + 1) * s * (1 + 1.5 * g * (1 - s)) : 0);
      want_dup.push_back(std::abs(both[2 * i + 1]) <= 3 ? d[i] * g * s : 0);
    }
    ExpectNear(Read(y), want_y, Epsilon(dtype), Epsilon(dtype) * 0.1);
    ExpectNear(Read(dgate), want_dgate, Epsilon(dtype), Epsilon(dtype) * 0.1);
    ExpectNear(Read(dup), want_dup, Epsilon(dtype), Epsilon(dtype) * 0.1);
  }
}

TEST_P(ElementwiseGradTest, ClampedSwiGluKeepsNaN) {
  const Tensor x = Make(DType::kF32, {3}, {1, kNaN, kInf}), y = Empty(DType::kF32, {3});
  const Tensor up = Make(DType::kF32, {3}, {kNaN, 1, -kInf});
  ASSERT_THAT(ClampedSwiGlu(device(), x, up, {1, 7}, y), IsOk());
  ExpectNear(Read(y), {kNaN, kNaN, -6 * 7 * Sigmoid(7)}, 1e-6, 0);
}

TEST_P(ElementwiseGradTest, LargeGradientsAreWrittenPastTheCache) {
  const int64_t n = (int64_t{9} << 20) / 4;
  const Tensor x = Empty(DType::kF32, {n}), du = Empty(DType::kF32, {n + 1});
  const Tensor dg = Empty(DType::kF32, {n});
  ASSERT_THAT(Fill(device(), x, 1), IsOk());
  const double s = Sigmoid(1);
  for (const int64_t begin : {0, 1}) {  // outputs that lie alike in their lines, and that do not
    ASSERT_THAT(SiluMulGrad(device(), x, x, x, dg, du.Narrow(0, begin, n)), IsOk());
    ExpectNear(Read(dg), Doubles(n, s * (2 - s)), 1e-6, 0);
    ExpectNear(Read(du.Narrow(0, begin, n)), Doubles(n, s), 1e-6, 0);
  }
}

TEST_P(ElementwiseGradTest, NoElements) {
  const Tensor x = Empty(DType::kF32, {3, 0}), y = Empty(DType::kF32, {3, 0});
  EXPECT_THAT(UnaryGrad(device(), UnaryOp::kGelu, x, x, y), IsOk());
  EXPECT_THAT(BinaryGrad(device(), BinaryOp::kMax, 1, x, x, x, y), IsOk());
  EXPECT_THAT(PowGrad(device(), x, 3, x, y), IsOk());
  EXPECT_THAT(SiluMulGrad(device(), x, x, x, y, y), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
