#include "dtensor/runtime/kernels/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kIntegers[] = {DType::kI32, DType::kI64};

class ElementwiseTest : public KernelTest {
 protected:
  Doubles RunBinary(BinaryOp op, const Tensor& a, const Tensor& b) {
    const Tensor out = Empty(a.dtype(), a.shape());
    EXPECT_THAT(Binary(device(), op, a, b, out), IsOk());
    return Read(out);
  }
  Doubles RunUnary(UnaryOp op, const Tensor& a) {
    const Tensor out = Empty(a.dtype(), a.shape());
    EXPECT_THAT(Unary(device(), op, a, out), IsOk());
    return Read(out);
  }
  Doubles Copy(const Tensor& a, DType to) {
    const Tensor out = Empty(to, a.shape());
    EXPECT_THAT(Unary(device(), UnaryOp::kCopy, a, out), IsOk());
    return Read(out);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ElementwiseTest);

double Reference(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kMax:
      return std::max(a, b);
    case BinaryOp::kMin:
      return std::min(a, b);
  }
  return kNaN;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Reference(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::kCopy:
      return x;
    case UnaryOp::kNot:
      return x == 0;
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSqrt:
      return std::sqrt(x);
    case UnaryOp::kRsqrt:
      return 1 / std::sqrt(x);
    case UnaryOp::kRecip:
      return 1 / x;
    case UnaryOp::kSquare:
      return x * x;
    case UnaryOp::kAbs:
      return std::abs(x);
    case UnaryOp::kSilu:
      return x * Sigmoid(x);
    case UnaryOp::kRelu:
      return x < 0 ? 0 : x;
    case UnaryOp::kSigmoid:
      return Sigmoid(x);
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kGelu:
      return x * std::erfc(-x * std::sqrt(0.5)) / 2;
    case UnaryOp::kGeluTanh:
      return x * Sigmoid(2 * std::sqrt(2 / std::acos(-1)) * (x + 0.044715 * x * x * x));
  }
  return kNaN;
}

template <typename Op>
Doubles Map(Op op, const Doubles& a) {
  Doubles out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = Reference(op, a[i]);
  return out;
}
Doubles Map(BinaryOp op, const Doubles& a, const Doubles& b) {
  Doubles out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = Reference(op, a[i], b[i]);
  return out;
}

constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul,
                                   BinaryOp::kDiv, BinaryOp::kMax, BinaryOp::kMin};
constexpr UnaryOp kUnaryOps[] = {
    UnaryOp::kNeg,   UnaryOp::kExp,     UnaryOp::kLog,    UnaryOp::kSqrt,    UnaryOp::kRsqrt,
    UnaryOp::kRecip, UnaryOp::kAbs,     UnaryOp::kSquare, UnaryOp::kSilu,    UnaryOp::kRelu,
    UnaryOp::kTanh,  UnaryOp::kSigmoid, UnaryOp::kGelu,   UnaryOp::kGeluTanh};

TEST_P(ElementwiseTest, BinaryFloats) {
  for (const DType dtype : kFloats) {
    // Lengths around every vector size, and one that is many vectors long.
    for (const int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100, 1000}) {
      const Doubles a = Rounded(dtype, RandomValues(n, -2, 2, 1));
      const Doubles b = Rounded(dtype, RandomValues(n, 0.5, 2, 2));
      for (const BinaryOp op : kBinaryOps) {
        SCOPED_TRACE(testing::Message()
                     << ToString(dtype).data() << " n " << n << " op " << int(op));
        ExpectNear(RunBinary(op, Make(dtype, {n}, a), Make(dtype, {n}, b)), Map(op, a, b),
                   Epsilon(dtype), 0);
      }
    }
  }
}

TEST_P(ElementwiseTest, FloatsAreRoundedToNearestEvenOnce) {
  for (const DType dtype : kFloats) {
    const Doubles a = Rounded(dtype, RandomValues(3001, -2, 2, 3));
    const Doubles b = Rounded(dtype, RandomValues(3001, -2, 2, 4));
    for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMul}) {
      // The product of two narrow floats is exact in f32, as is most often their sum; rounding it
      // to `dtype` in one step is what the kernel must match bit by bit.
      Doubles want = Map(op, a, b);
      if (dtype != DType::kF64) want = Rounded(DType::kF32, want);
      EXPECT_EQ(RunBinary(op, Make(dtype, {3001}, a), Make(dtype, {3001}, b)),
                Rounded(dtype, want));
    }
  }
}

TEST_P(ElementwiseTest, BinaryIntegers) {
  for (const DType dtype : kIntegers) {
    const Doubles a = RandomWhole(37, -100, 100, 1), b = RandomWhole(37, -100, 100, 2);
    for (const BinaryOp op : kBinaryOps) {
      if (op == BinaryOp::kDiv) continue;
      EXPECT_EQ(RunBinary(op, Make(dtype, {37}, a), Make(dtype, {37}, b)), Map(op, a, b));
    }
  }
  const Doubles a = {0, 0, 1, 1}, b = {0, 1, 0, 1};
  const Tensor x = Make(DType::kBool, {4}, a), y = Make(DType::kBool, {4}, b);
  EXPECT_EQ(RunBinary(BinaryOp::kAdd, x, y), Doubles({0, 1, 1, 1}));
  EXPECT_EQ(RunBinary(BinaryOp::kMul, x, y), Doubles({0, 0, 0, 1}));
  EXPECT_EQ(RunBinary(BinaryOp::kMax, x, y), Doubles({0, 1, 1, 1}));
}

TEST_P(ElementwiseTest, NegAndNotOfIntegers) {
  for (const DType dtype : kIntegers) {
    EXPECT_EQ(RunUnary(UnaryOp::kNeg, Make(dtype, {4}, {3, 0, -7, -2147483648.0})),
              Doubles({-3, 0, 7, dtype == DType::kI32 ? -2147483648.0 : 2147483648.0}));
  }
  EXPECT_EQ(RunUnary(UnaryOp::kNot, Make(DType::kBool, {3}, {1, 0, 1})), Doubles({0, 1, 0}));
}

TEST_P(ElementwiseTest, IntegerOverflowWraps) {
  const Tensor most = Make(DType::kI32, {1}, {2147483647.0}), one = Make(DType::kI32, {1}, {1});
  EXPECT_EQ(RunBinary(BinaryOp::kAdd, most, one), Doubles({-2147483648.0}));
}

TEST_P(ElementwiseTest, MaxAndMinPassNaNOn) {
  for (const DType dtype : kFloats) {
    const Tensor a = Make(dtype, {4}, {kNaN, 1, kNaN, 2}), b = Make(dtype, {4}, {1, kNaN, kNaN, 3});
    ExpectNear(RunBinary(BinaryOp::kMax, a, b), {kNaN, kNaN, kNaN, 3}, 0, 0);
    ExpectNear(RunBinary(BinaryOp::kMin, a, b), {kNaN, kNaN, kNaN, 2}, 0, 0);
  }
}

TEST_P(ElementwiseTest, AnyStrides) {
  const int64_t rows = 13, columns = 600;  // longer than the buffer for gathered pieces
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64}) {
    const Doubles a = Rounded(dtype, RandomWhole(rows * columns, -50, 50, 1));
    const Doubles b = Rounded(dtype, RandomWhole(rows * columns, -50, 50, 2));
    const Doubles want = Map(BinaryOp::kSub, a, b);
    const Tensor plain = Make(dtype, {rows, columns}, a);
    const Tensor inside = MakeInside(dtype, rows, columns, b);
    const Tensor transposed = MakeTransposed(dtype, rows, columns, b);
    EXPECT_EQ(RunBinary(BinaryOp::kSub, plain, inside), want);
    EXPECT_EQ(RunBinary(BinaryOp::kSub, plain, transposed), want);
    EXPECT_EQ(RunBinary(BinaryOp::kSub, MakeTransposed(dtype, rows, columns, a), inside), want);
  }
}

TEST_P(ElementwiseTest, Broadcasts) {
  const Doubles a = RandomWhole(3 * 700, -50, 50, 1);
  const Doubles row = RandomWhole(700, -50, 50, 2), column = RandomWhole(3, -50, 50, 3);
  const Tensor x = Make(DType::kF32, {3, 700}, a);
  const Tensor rows = Make(DType::kF32, {700}, row).BroadcastTo({3, 700});
  const Tensor columns = Make(DType::kF32, {3, 1}, column).BroadcastTo({3, 700});
  const Tensor scalar = Make(DType::kF32, {}, {5}).BroadcastTo({3, 700});
  const Doubles by_row = RunBinary(BinaryOp::kAdd, x, rows);
  const Doubles by_column = RunBinary(BinaryOp::kAdd, x, columns);
  const Doubles by_scalar = RunBinary(BinaryOp::kAdd, x, scalar);
  for (int64_t i = 0; i < 3 * 700; ++i) {
    ASSERT_EQ(by_row[i], a[i] + row[i % 700]);
    ASSERT_EQ(by_column[i], a[i] + column[i / 700]);
    ASSERT_EQ(by_scalar[i], a[i] + 5);
  }
}

// Of [2, 3, n] elements, the first from `begin` on of rows of `stride`.
struct Slice {
  int64_t begin, stride;
};
constexpr Slice kSlices[] = {{0, 0}, {1, 0}, {2, 1}, {4, 2}, {8, 8}, {16, 16}, {16, 5}};

// Inner sizes that packs of 16 bytes divide and that they do not, with operands that are whole, or
// parts of wider rows from even and odd offsets on, or one row, or one value for a row or for all.
TEST_P(ElementwiseTest, SlicesAndBroadcastsOfAllTypes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                            DType::kI64, DType::kBool}) {
    for (const int64_t n : {1, 2, 4, 6, 8, 12, 16, 31, 48}) {
      const auto make = [&](absl::Span<const int64_t> shape, uint64_t seed) {
        return Make(dtype, shape, RandomWhole(NumElements(shape), -9, 9, seed));
      };
      std::vector<Tensor> operands = {make({n}, 1), make({2, 1, 1}, 2), make({3, 1}, 3),
                                      make({}, 4), make({2, 1, n}, 5)};
      for (Tensor& operand : operands) operand = operand.BroadcastTo({2, 3, n});
      for (const Slice& slice : kSlices) {
        const int64_t width = slice.begin + n + slice.stride;
        operands.push_back(make({2, 3, width}, 6).Narrow(2, slice.begin, n));
      }
      for (const Tensor& a : operands) {
        for (const Tensor& b : {operands[0], operands[1], operands[5], operands[8]}) {
          const Doubles want = Rounded(dtype, Map(BinaryOp::kMax, Read(a), Read(b)));
          ASSERT_EQ(RunBinary(BinaryOp::kMax, a, b), want) << ToString(dtype).data() << " n " << n;
        }
      }
    }
  }
}

// Outputs from addresses where a pack may not be, and in place.
TEST_P(ElementwiseTest, BroadcastsIntoSlicesAndInPlace) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    for (const int64_t n : {6, 8, 31}) {
      const Doubles values = RandomWhole(5 * n, -50, 50, 1), bias = RandomWhole(n, -50, 50, 2);
      Doubles want = values;
      for (int64_t i = 0; i < 5 * n; ++i) want[i] += bias[i % n];
      const Tensor row = Make(dtype, {n}, bias).BroadcastTo({5, n});
      for (const int64_t begin : {0, 1, 2, 8}) {
        const Tensor memory = Empty(dtype, {begin + 5 * n + 1});
        const Tensor out = memory.View({5, n}, {n, 1}, begin);
        ASSERT_THAT(Fill(device(), memory, 7), IsOk());
        ASSERT_THAT(Binary(device(), BinaryOp::kAdd, Make(dtype, {5, n}, values), row, out),
                    IsOk());
        EXPECT_EQ(Read(out), want);
        EXPECT_EQ(Read(memory)[begin + 5 * n], 7);
        EXPECT_EQ(Read(memory)[std::max<int64_t>(begin - 1, 0)], begin > 0 ? 7 : want[0]);
        ASSERT_THAT(Binary(device(), BinaryOp::kSub, out, row, out), IsOk());
        EXPECT_EQ(Read(out), values);
      }
    }
  }
}

TEST_P(ElementwiseTest, ThreeDimensionsPermuted) {
  const Doubles values = RandomWhole(2 * 5 * 3 * 4, -9, 9);
  const Tensor x = Make(DType::kF32, {2, 5, 3, 4}, values).Transpose(1, 2);
  Doubles want;
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 3; ++h) {
      for (int t = 0; t < 5; ++t) {
        for (int d = 0; d < 4; ++d) want.push_back(-values[((b * 5 + t) * 3 + h) * 4 + d]);
      }
    }
  }
  EXPECT_EQ(RunUnary(UnaryOp::kNeg, x), want);
}

TEST_P(ElementwiseTest, UnaryFloats) {
  for (const DType dtype : kFloats) {
    const Doubles a = Rounded(dtype, RandomValues(1003, -8, 8));
    Doubles positive = a;
    for (double& v : positive) v = std::abs(v) + 0.125;
    positive = Rounded(dtype, positive);
    for (const UnaryOp op : kUnaryOps) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " op " << int(op));
      const bool signs = op != UnaryOp::kLog && op != UnaryOp::kSqrt && op != UnaryOp::kRsqrt;
      const Doubles& x = signs ? a : positive;
      // Near 1 log is almost 0; far below 0 e^ makes a rounded argument of kGeluTanh matter.
      double absolute = op == UnaryOp::kLog ? Epsilon(dtype) : 0;
      if (op == UnaryOp::kGeluTanh) absolute = Epsilon(dtype) / 100;
      if (dtype == DType::kF16) absolute += 0x1p-25;  // half a step of its smallest numbers
      ExpectNear(RunUnary(op, Make(dtype, {1003}, x)), Map(op, x), Epsilon(dtype), absolute);
    }
  }
}

// The bound that the header of the vector functions promises, over their whole range.
TEST_P(ElementwiseTest, TranscendentalsInF32) {
  double bound = 4e-7;
  const auto sweep = [](double low, double high) {
    Doubles x = RandomValues(50000, low, high, 9);
    x.push_back(low);
    x.push_back(high);
    return Rounded(DType::kF32, x);
  };
  const auto check = [&](UnaryOp op, const Doubles& x, double absolute) {
    SCOPED_TRACE(int(op));
    const int64_t n = static_cast<int64_t>(x.size());
    ExpectNear(RunUnary(op, Make(DType::kF32, {n}, x)), Map(op, x), bound, absolute);
  };
  check(UnaryOp::kExp, sweep(-87, 88.7), 0);
  check(UnaryOp::kExp, sweep(-1e-3, 1e-3), 0);
  check(UnaryOp::kExp, sweep(-110, -87), 2e-45);  // denormal results: half a step of theirs
  check(UnaryOp::kLog, sweep(1e-30, 1e-20), 0);
  check(UnaryOp::kLog, sweep(1e-3, 10), 0);
  check(UnaryOp::kLog, sweep(0.99, 1.01), 0);
  check(UnaryOp::kLog, sweep(1, 3e38), 0);
  check(UnaryOp::kLog, sweep(1.5e-45, 1.1e-38), 0);
  check(UnaryOp::kSigmoid, sweep(-87, 87), 0);
  check(UnaryOp::kSilu, sweep(-80, 80), 0);
  check(UnaryOp::kTanh, sweep(-10, 10), 0);
  check(UnaryOp::kTanh, sweep(-1, 1), 0);
  check(UnaryOp::kTanh, sweep(-1e-3, 1e-3), 0);
  check(UnaryOp::kTanh, sweep(-100, 100), 0);
  bound = 1e-6;  // the normal distribution's, and one product
  check(UnaryOp::kGelu, sweep(-12.8, -1), 0);
  check(UnaryOp::kGelu, sweep(-1, 1), 0);
  check(UnaryOp::kGelu, sweep(1, 100), 0);
  check(UnaryOp::kGelu, sweep(-16, -12.8), 1e-37);
  bound = 4e-6;  // an error of the argument, which is -12 at -5, is one of e^ times as large
  check(UnaryOp::kGeluTanh, sweep(-5, 5), 0);
}

// Those of f64 against long double, which has 11 bits more.
TEST_P(ElementwiseTest, TranscendentalsInF64) {
  using Long = long double;
  const auto check = [&](UnaryOp op, double low, double high, double bound,
                         const std::function<Long(Long)>& want) {
    SCOPED_TRACE(int(op));
    const Doubles x = RandomValues(20000, low, high, 9);
    const Doubles got = RunUnary(op, Make(DType::kF64, {20000}, x));
    Long worst = 0;
    for (int i = 0; i < 20000; ++i) {
      const Long exact = want(x[i]);
      worst = std::max(worst, std::abs((got[i] - exact) / exact));
    }
    EXPECT_LE(worst, bound);
  };
  const auto sigmoid = [](Long x) { return 1 / (1 + std::exp(-x)); };
  check(UnaryOp::kExp, -700, 700, 5e-16, [](Long x) { return std::exp(x); });
  check(UnaryOp::kExp, -1, 1, 5e-16, [](Long x) { return std::exp(x); });
  check(UnaryOp::kLog, 1e-3, 10, 5e-16, [](Long x) { return std::log(x); });
  check(UnaryOp::kLog, 1, 1e300, 5e-16, [](Long x) { return std::log(x); });
  check(UnaryOp::kTanh, -3, 3, 1e-15, [](Long x) { return std::tanh(x); });
  check(UnaryOp::kTanh, -1e-3, 1e-3, 1e-15, [](Long x) { return std::tanh(x); });
  check(UnaryOp::kSigmoid, -30, 30, 1e-15, sigmoid);
  check(UnaryOp::kSilu, -30, 30, 1e-15, [&](Long x) { return x * sigmoid(x); });
  // CUDA promises 5 ulp of erfc, 1.1e-15, and at -2 its argument's rounding counts 4.7 times.
  const bool is_cuda = device().kind() == Device::Kind::kCuda;
  check(UnaryOp::kGelu, -2, 10, is_cuda ? 3e-15 : 1e-15,
        [](Long x) { return x * std::erfc(-x * std::sqrt(Long{0.5})) / 2; });
}

TEST_P(ElementwiseTest, SpecialValues) {
  const Doubles x = {kNaN, kInf,  -kInf, 0,    -0.0, 1e30, -1e30,
                     1000, -1000, 89,    -104, 128,  700,  -700};
  const int64_t n = static_cast<int64_t>(x.size());
  for (const DType dtype : kFloats) {
    const Doubles in = Rounded(dtype, x);
    for (const UnaryOp op : kUnaryOps) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " op " << int(op));
      if (op == UnaryOp::kSilu) continue;  // -inf * 0; see below
      Doubles want = Map(op, in);
      if (dtype != DType::kF64) want = Rounded(DType::kF32, want);
      ExpectNear(RunUnary(op, Make(dtype, {n}, in)), Rounded(dtype, want), Epsilon(dtype), 1e-37);
    }
    ExpectNear(RunUnary(UnaryOp::kSilu, Make(dtype, {4}, {kNaN, kInf, -1000, 1000})),
               Rounded(dtype, {kNaN, kInf, 0, 1000}), 0, 0);
  }
}

// A value must not depend on its place in a shard, nor on strides: the same bits in every lane and
// tail.
TEST_P(ElementwiseTest, TheSameBitsAtEveryPosition) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Doubles x = Rounded(dtype, RandomValues(67, -4, 4));
    for (const UnaryOp op : {UnaryOp::kExp, UnaryOp::kSilu, UnaryOp::kTanh, UnaryOp::kRsqrt}) {
      const Tensor whole = Make(dtype, {67}, x);
      const Doubles want = RunUnary(op, whole);
      for (int64_t begin = 0; begin < 67; begin += 5) {
        const Doubles part = RunUnary(op, whole.Narrow(0, begin, 67 - begin));
        for (size_t i = 0; i < part.size(); ++i) {
          if (std::isnan(want[begin + i])) continue;
          ASSERT_EQ(part[i], want[begin + i]);
        }
      }
      const Doubles column = RunUnary(op, Make(dtype, {67, 1}, x).BroadcastTo({67, 3}));
      for (int64_t i = 0; i < 67; ++i) {
        if (std::isnan(want[i])) continue;
        ASSERT_EQ(column[i * 3 + 1], want[i]);
      }
    }
  }
}

TEST_P(ElementwiseTest, CopyConverts) {
  const Doubles whole = RandomWhole(41, -100, 100);
  constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                            DType::kI32, DType::kI64, DType::kBool};
  for (const DType from : kAll) {
    const Tensor x = Make(from, {41}, whole);
    const Doubles values = Rounded(from, whole);
    for (const DType to : kAll) {
      EXPECT_EQ(Copy(x, to), Rounded(to, values)) << ToString(from).data() << ToString(to).data();
    }
  }
}

TEST_P(ElementwiseTest, CopyTruncatesAndSaturates) {
  for (const DType from : {DType::kF32, DType::kF64}) {
    const Tensor x = Make(from, {7}, {1.9, -1.9, 0.5, 3e9, -3e9, kNaN, kInf});
    EXPECT_EQ(Copy(x, DType::kI32), Doubles({1, -1, 0, 2147483647, -2147483648.0, 0, 2147483647}));
    EXPECT_EQ(Copy(x, DType::kBool), Doubles({1, 1, 1, 1, 1, 1, 1}));
  }
}

TEST_P(ElementwiseTest, NarrowingRoundsOnceAndKeepsSpecialValues) {
  // 1 + 2^-8 lies halfway between two bf16; a hair above it must round up, also when the hair is
  // lost in f32.
  const double half = 1 + 0x1p-8, above = half + 0x1p-40;
  EXPECT_EQ(Copy(Make(DType::kF64, {2}, {half, above}), DType::kBF16), Doubles({1, 1 + 0x1p-7}));
  EXPECT_EQ(Copy(Make(DType::kF32, {3}, {half, 1 + 3 * 0x1p-8, half + 0x1p-20}), DType::kBF16),
            Doubles({1, 1 + 0x1p-6, 1 + 0x1p-7}));
  ExpectNear(Copy(Make(DType::kF32, {4}, {kInf, -kInf, kNaN, 3.4e38}), DType::kBF16),
             {kInf, -kInf, kNaN, kInf}, 0, 0);
}

// A NaN is quiet.
template <typename T>
uint32_t BitsOf(T x) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<uint32_t>(x) | (std::isnan(x) ? 0x400000 : 0);
  } else {
    return x.bits;
  }
}

// Bit for bit as one element by itself is converted, in vectors and in what is left behind them.
template <typename From, typename To>
void ExpectConverted(Device& device, const std::vector<From>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor x = *FromHost<From>(device, values, {n});
  for (const int64_t begin : {0, 1, 5}) {
    const Tensor y = *Tensor::Empty(device, DTypeOf<To>(), {n - begin - 1});
    DT_ASSERT_OK(Unary(device, UnaryOp::kCopy, x.Narrow(0, begin, n - begin - 1), y));
    const std::vector<To> got = *ToHost<To>(y);
    int64_t wrong = 0;  // not a check for each: under sanitizers they are slow
    for (int64_t i = 0; i < n - begin - 1; ++i) {
      const To want(static_cast<float>(values[begin + i]));
      wrong += BitsOf(got[i]) != BitsOf(want);
    }
    EXPECT_EQ(wrong, 0) << ToString(DTypeOf<From>()) << " to " << ToString(DTypeOf<To>());
  }
}

TEST_P(ElementwiseTest, AllHalvesAreConvertedAsOneAtATime) {
  if (GetParam().kind == Device::Kind::kCuda) return;  // NaNs may be others there
  std::vector<Float16> halves(65536);
  std::vector<BFloat16> bhalves(65536);
  // Each half, and its neighbours: what lies halfway is beside 0x1000 or 0x8000 of the last bits.
  std::vector<float> floats;
  for (int i = 0; i < 65536; ++i) {
    halves[i].bits = bhalves[i].bits = static_cast<uint16_t>(i);
    for (const float value : {static_cast<float>(halves[i]), static_cast<float>(bhalves[i])}) {
      const auto bits = std::bit_cast<uint32_t>(value);
      for (const uint32_t more : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
        floats.push_back(std::bit_cast<float>(bits + more));
      }
    }
  }
  ExpectConverted<Float16, float>(device(), halves);
  ExpectConverted<Float16, BFloat16>(device(), halves);
  ExpectConverted<BFloat16, Float16>(device(), bhalves);
  ExpectConverted<BFloat16, float>(device(), bhalves);
  ExpectConverted<float, Float16>(device(), floats);
  ExpectConverted<float, BFloat16>(device(), floats);
}

// Each f16 that is a number, through what rounds once.
TEST_P(ElementwiseTest, AllHalvesAreComputedInF32) {
  Doubles halves;
  for (int i = 0; i < 65536; ++i) {
    Float16 half;
    half.bits = static_cast<uint16_t>(i);
    if (!std::isnan(static_cast<float>(half))) halves.push_back(static_cast<float>(half));
  }
  const int64_t n = static_cast<int64_t>(halves.size());
  const Tensor x = Make(DType::kF16, {n}, halves);
  Doubles negated = halves, squared = halves, positive = halves;
  for (double& v : negated) v = -v;
  for (double& v : squared) v *= v;
  for (double& v : positive) v = std::max(v, 0.0);
  EXPECT_EQ(RunUnary(UnaryOp::kNeg, x), negated);
  EXPECT_EQ(RunUnary(UnaryOp::kSquare, x), Rounded(DType::kF16, squared));
  EXPECT_EQ(RunUnary(UnaryOp::kRelu, x), positive);
  Doubles sums = Map(BinaryOp::kAdd, halves, positive);
  for (double& v : sums) v = std::isnan(v) ? 0 : v;
  Doubles got = RunBinary(BinaryOp::kAdd, x, Make(DType::kF16, {n}, positive));
  for (double& v : got) v = std::isnan(v) ? 0 : v;
  EXPECT_EQ(got, Rounded(DType::kF16, sums));
}

TEST_P(ElementwiseTest, CopyOfStridedViews) {
  const Doubles values = RandomWhole(70 * 90, -100, 100);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kBool, DType::kI64}) {
    const Doubles want = Rounded(dtype, values);
    EXPECT_EQ(Copy(MakeTransposed(dtype, 70, 90, values), dtype), want);
    EXPECT_EQ(Copy(MakeInside(dtype, 70, 90, values), dtype), want);
  }
}

// Packs of the wider type's elements, of fewer bytes of the other.
TEST_P(ElementwiseTest, CopyConvertsSlicesAndBroadcasts) {
  constexpr DType kSome[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kBool};
  for (const DType from : kSome) {
    for (const int64_t n : {2, 6, 8, 16, 31}) {
      for (const int64_t begin : {0, 1, 2, 8, 16}) {
        const Tensor wide = Make(from, {5, 48}, RandomWhole(5 * 48, -100, 100));
        const Tensor part = wide.Narrow(1, begin, n);
        const Tensor rows = wide.Narrow(0, 1, 1).Narrow(1, begin, n).BroadcastTo({5, n});
        const Tensor columns = wide.Narrow(1, begin, 1).BroadcastTo({5, n});
        for (const DType to : kSome) {
          if (to == from) continue;
          SCOPED_TRACE(testing::Message() << ToString(from).data() << ToString(to).data() << n);
          for (const Tensor& x : {part, rows, columns}) {
            ASSERT_EQ(Copy(x, to), Rounded(to, Read(x)));
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, AddNRoundsOnce) {
  const int64_t rows = 9, columns = 71;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32}) {
    std::vector<Tensor> terms;
    Doubles sum(rows * columns, 0);
    for (int k = 0; k < kMaxTerms; ++k) {
      // Sums of them are exact in f32, and not in narrower types.
      const Doubles term = Rounded(dtype, RandomWhole(rows * columns, -255, 255, 20 + k));
      terms.push_back(k % 3 == 0   ? Make(dtype, {rows, columns}, term)
                      : k % 3 == 1 ? MakeTransposed(dtype, rows, columns, term)
                                   : MakeInside(dtype, rows, columns, term));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
      const Tensor out = Empty(dtype, {rows, columns});
      ASSERT_THAT(AddN(device(), terms, out), IsOk());
      EXPECT_EQ(Read(out), Rounded(dtype, sum)) << ToString(dtype).data() << " " << k;
    }
    ASSERT_THAT(AddN(device(), terms, terms[0]), IsOk());  // in place
    EXPECT_EQ(Read(terms[0]), Rounded(dtype, sum));
  }
}

TEST_P(ElementwiseTest, PowersAsInCmath) {
  const Doubles x = {kNaN, kInf, -kInf, 0, -0.0, 1, -1, 0.25, 3, -3, 1e-4, 7.5, 60};
  const int64_t n = static_cast<int64_t>(x.size());
  for (const DType dtype : kFloats) {
    const Doubles in = Rounded(dtype, x);
    for (const double exponent : {0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.5, 1.0 / 3}) {
      SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " ^ " << exponent);
      Doubles want = in;
      for (double& v : want) {
        // Square roots of -0 are themselves, and those of -inf are none.
        v = exponent == 0.5    ? std::sqrt(v)
            : exponent == -0.5 ? 1 / std::sqrt(v)
                               : std::pow(v, exponent);
      }
      const Tensor out = Empty(dtype, {n});
      ASSERT_THAT(Pow(device(), Make(dtype, {n}, in), exponent, out), IsOk());
      ExpectNear(Read(out), Rounded(dtype, want), Epsilon(dtype), 0);
    }
  }
}

TEST_P(ElementwiseTest, AffineScalesAndShifts) {
  for (const DType dtype : kFloats) {
    const Doubles a = Rounded(dtype, RandomValues(131, -2, 2));
    const Tensor x = Make(dtype, {131}, a), out = Empty(dtype, {131});
    ASSERT_THAT(Affine(device(), x, 2.5, 10, out), IsOk());
    Doubles want = a;
    for (double& v : want) v = 2.5 * v + 10;
    ExpectNear(Read(out), want, Epsilon(dtype), 0);
  }
}

TEST_P(ElementwiseTest, ScaleKeepsTheSignOfZero) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {4}, {-0.0, 0.0, 1, -2}), out = Empty(dtype, {4});
    const auto negative = [&](double scale) {
      EXPECT_THAT(Scale(device(), x, scale, out), IsOk());
      std::vector<bool> signs;
      for (const double v : Read(out)) signs.push_back(std::signbit(v));
      return signs;
    };
    EXPECT_EQ(negative(2.5), (std::vector<bool>{true, false, false, true}))
        << ToString(dtype).data();
    EXPECT_EQ(negative(-1), (std::vector<bool>{false, true, true, false}))
        << ToString(dtype).data();
    EXPECT_EQ(negative(0), (std::vector<bool>{true, false, false, true})) << ToString(dtype).data();
  }
}

TEST_P(ElementwiseTest, AffineOfIntegers) {
  for (const DType dtype : kIntegers) {
    const Tensor x = Make(dtype, {3}, {-3, 0, 7}), out = Empty(dtype, {3});
    ASSERT_THAT(Affine(device(), x, -2, 5, out), IsOk());
    EXPECT_EQ(Read(out), Doubles({11, 5, -9}));
    ASSERT_THAT(Affine(device(), x, 0.5, 0, out), IsOk());
    EXPECT_EQ(Read(out), Doubles({-1, 0, 3}));
  }
  // Above 2^53, where f64 has gaps.
  const std::vector<int64_t> big = {(int64_t{1} << 60) + 1};
  auto x = FromHost<int64_t>(device(), big, {1});
  ASSERT_THAT(x, IsOk());
  const Tensor out = Empty(DType::kI64, {1});
  ASSERT_THAT(Affine(device(), *x, 2, 1, out), IsOk());
  EXPECT_EQ(*ToHost<int64_t>(out), std::vector<int64_t>{(int64_t{1} << 61) + 3});
}

TEST_P(ElementwiseTest, FillWithAnyStrides) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                            DType::kI64, DType::kBool}) {
    const Tensor x = Make(dtype, {4, 5}, Doubles(20, 0));
    ASSERT_THAT(Fill(device(), x.Narrow(1, 1, 2).Transpose(0, 1), 1), IsOk());
    Doubles want;
    for (int i = 0; i < 20; ++i) want.push_back(i % 5 == 1 || i % 5 == 2);
    EXPECT_EQ(Read(x), want);
  }
}

TEST_P(ElementwiseTest, InPlace) {
  const Doubles a = RandomValues(1000, -2, 2);
  const Tensor x = Make(DType::kF32, {1000}, a);
  const Doubles want = RunUnary(UnaryOp::kSilu, x);
  ASSERT_THAT(Unary(device(), UnaryOp::kSilu, x, x), IsOk());
  EXPECT_EQ(Read(x), want);
}

TEST_P(ElementwiseTest, LargeOutputsAreWrittenPastTheCache) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const int64_t n = (int64_t{9} << 20) / SizeOf(dtype) + 5;
    for (const int64_t begin : {0, 1, 3}) {  // outputs that are aligned, and that are not
      const Tensor x = Empty(dtype, {n}), y = Empty(dtype, {n});
      ASSERT_THAT(Fill(device(), x, 1.5), IsOk());
      ASSERT_THAT(Fill(device(), y, 0), IsOk());
      const Tensor in = x.Narrow(0, 0, n - begin - 2);
      ASSERT_THAT(Binary(device(), BinaryOp::kAdd, in, in, y.Narrow(0, begin, n - begin - 2)),
                  IsOk());
      const Doubles got = Read(y);
      int64_t wrong = 0;  // not a check for each: under sanitizers they are slow
      for (int64_t i = 0; i < n; ++i) wrong += got[i] != (i < begin || i >= n - 2 ? 0 : 3);
      ASSERT_EQ(wrong, 0);
    }
  }
}

TEST_P(ElementwiseTest, NoElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32, DType::kBool}) {
    const Tensor x = Empty(dtype, {3, 0, 2}), out = Empty(dtype, {3, 0, 2});
    EXPECT_THAT(Binary(device(), BinaryOp::kAdd, x, x, out), IsOk());
    EXPECT_THAT(Unary(device(), UnaryOp::kCopy, x, out), IsOk());
    EXPECT_THAT(Fill(device(), out, 1), IsOk());
  }
  const Tensor x = Empty(DType::kF32, {0}), y = Empty(DType::kF32, {0});
  EXPECT_THAT(Unary(device(), UnaryOp::kExp, x, y), IsOk());
  EXPECT_THAT(Affine(device(), x, 2, 1, y), IsOk());
  EXPECT_THAT(SiluMul(device(), x, x, y), IsOk());
  EXPECT_THAT(Pow(device(), x, 1.5, y), IsOk());
  EXPECT_THAT(AddN(device(), {x, x, x}, y), IsOk());
}

TEST(Elementwise, DoesNothingOnMeta) {
  const auto device = MakeMetaDevice();
  auto x = Tensor::Empty(*device, DType::kF32, {1 << 20, 1 << 20});
  ASSERT_THAT(x, IsOk());
  EXPECT_THAT(Binary(*device, BinaryOp::kAdd, *x, *x, *x), IsOk());
  EXPECT_THAT(Unary(*device, UnaryOp::kExp, *x, *x), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
