#include "dtensor/runtime/kernels/comparison.h"

#include <limits>

#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                          DType::kI32, DType::kI64,  DType::kBool};
constexpr CompareOp kOps[] = {CompareOp::kEqual,   CompareOp::kNotEqual,
                              CompareOp::kLess,    CompareOp::kLessEqual,
                              CompareOp::kGreater, CompareOp::kGreaterEqual};

class ComparisonTest : public KernelTest {
 protected:
  Doubles RunCompare(CompareOp op, const Tensor& a, const Tensor& b) {
    const Tensor out = Empty(DType::kBool, a.shape());
    EXPECT_THAT(Compare(device(), op, a, b, out), IsOk());
    return Read(out);
  }
  Doubles RunWhere(const Tensor& condition, const Tensor& a, const Tensor& b) {
    const Tensor out = Empty(a.dtype(), a.shape());
    EXPECT_THAT(Where(device(), condition, a, b, out), IsOk());
    return Read(out);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ComparisonTest);

bool Reference(CompareOp op, double a, double b) {
  switch (op) {
    case CompareOp::kEqual:
      return a == b;
    case CompareOp::kNotEqual:
      return a != b;
    case CompareOp::kLess:
      return a < b;
    case CompareOp::kLessEqual:
      return a <= b;
    case CompareOp::kGreater:
      return a > b;
    case CompareOp::kGreaterEqual:
      return a >= b;
  }
  return false;
}

Doubles Map(CompareOp op, const Doubles& a, const Doubles& b) {
  Doubles out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = Reference(op, a[i], b[i]);
  return out;
}

TEST_P(ComparisonTest, ComparesAllTypes) {
  for (const DType dtype : kAll) {
    for (const int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 1000}) {
      const Doubles a = Rounded(dtype, RandomWhole(n, -3, 3, 1));  // often equal
      const Doubles b = Rounded(dtype, RandomWhole(n, -3, 3, 2));
      for (const CompareOp op : kOps) {
        EXPECT_EQ(RunCompare(op, Make(dtype, {n}, a), Make(dtype, {n}, b)), Map(op, a, b))
            << ToString(dtype).data() << " n " << n << " op " << int(op);
      }
    }
  }
}

TEST_P(ComparisonTest, NothingIsLessOrEqualToNaN) {
  const Doubles a = {kNaN, 1, kNaN, kInf, -kInf, 0}, b = {1, kNaN, kNaN, kInf, kInf, -0.0};
  for (const DType dtype : kFloats) {
    for (const CompareOp op : kOps) {
      EXPECT_EQ(RunCompare(op, Make(dtype, {6}, a), Make(dtype, {6}, b)), Map(op, a, b))
          << ToString(dtype).data() << " op " << int(op);
    }
  }
}

TEST_P(ComparisonTest, LargeIntegersAreToldApart) {
  const std::vector<int64_t> a = {(int64_t{1} << 60) + 1}, b = {int64_t{1} << 60};
  auto x = FromHost<int64_t>(device(), a, {1}), y = FromHost<int64_t>(device(), b, {1});
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_EQ(RunCompare(CompareOp::kEqual, *x, *y), Doubles({0}));
  EXPECT_EQ(RunCompare(CompareOp::kGreater, *x, *y), Doubles({1}));
}

TEST_P(ComparisonTest, ComparesAnyStrides) {
  const int64_t rows = 5, columns = 600;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    const Doubles a = RandomWhole(rows * columns, -3, 3, 1), column = RandomWhole(rows, -3, 3, 2);
    Doubles b;
    for (int64_t i = 0; i < rows * columns; ++i) b.push_back(column[i / columns]);
    EXPECT_EQ(RunCompare(CompareOp::kLess, MakeTransposed(dtype, rows, columns, a),
                         Make(dtype, {rows, 1}, column).BroadcastTo({rows, columns})),
              Map(CompareOp::kLess, a, b));
    EXPECT_EQ(RunCompare(CompareOp::kLess, MakeInside(dtype, rows, columns, a),
                         MakeInside(dtype, rows, columns, b)),
              Map(CompareOp::kLess, a, b));
  }
}

TEST_P(ComparisonTest, LargeResultsAreWrittenPastTheCache) {
  const int64_t n = (int64_t{9} << 20) + 5;
  const Tensor x = Empty(DType::kBF16, {n}), y = Empty(DType::kBool, {n});
  ASSERT_THAT(Fill(device(), x, 1.5), IsOk());
  for (const int64_t begin : {0, 3}) {
    ASSERT_THAT(Fill(device(), y, 0), IsOk());
    const Tensor in = x.Narrow(0, 0, n - begin - 2);
    ASSERT_THAT(Compare(device(), CompareOp::kEqual, in, in, y.Narrow(0, begin, n - begin - 2)),
                IsOk());
    const Doubles got = Read(y);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += got[i] != !(i < begin || i >= n - 2);
    ASSERT_EQ(wrong, 0);
  }
}

TEST_P(ComparisonTest, WhereChoosesOfAllTypes) {
  for (const DType dtype : kAll) {
    for (const int64_t n : {1, 7, 16, 33, 1000}) {
      const Doubles c = RandomWhole(n, 0, 2, 3);
      const Doubles a = Rounded(dtype, RandomWhole(n, -90, 90, 1));
      const Doubles b = Rounded(dtype, RandomWhole(n, -90, 90, 2));
      Doubles want(n);
      for (int64_t i = 0; i < n; ++i) want[i] = c[i] != 0 ? a[i] : b[i];
      EXPECT_EQ(RunWhere(Make(DType::kBool, {n}, c), Make(dtype, {n}, a), Make(dtype, {n}, b)),
                want)
          << ToString(dtype).data();
    }
  }
}

// What is not chosen does not count, whatever it is.
TEST_P(ComparisonTest, WhereKeepsNaNApart) {
  for (const DType dtype : kFloats) {
    const Tensor a = Make(dtype, {3}, {kNaN, 2, kInf}), b = Make(dtype, {3}, {1, kNaN, -kInf});
    EXPECT_EQ(RunWhere(Make(DType::kBool, {3}, {0, 1, 0}), a, b), Doubles({1, 2, -kInf}));
    ExpectNear(RunWhere(Make(DType::kBool, {3}, {1, 0, 1}), a, b), {kNaN, kNaN, kInf}, 0, 0);
  }
}

TEST_P(ComparisonTest, WhereOfAnyStrides) {
  const int64_t rows = 4, columns = 600, n = rows * columns;
  const Doubles a = RandomWhole(n, -9, 9, 1), c = RandomWhole(columns, 0, 2, 3);
  const Tensor condition = Make(DType::kBool, {columns}, c).BroadcastTo({rows, columns});
  const Tensor scalar = Make(DType::kF32, {}, {5}).BroadcastTo({rows, columns});
  Doubles want(n);
  for (int64_t i = 0; i < n; ++i) want[i] = c[i % columns] != 0 ? a[i] : 5;
  EXPECT_EQ(RunWhere(condition, MakeTransposed(DType::kF32, rows, columns, a), scalar), want);
}

TEST_P(ComparisonTest, LargeChoicesAreWrittenPastTheCache) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const int64_t n = (int64_t{9} << 20) / SizeOf(dtype) + 5;
    const Tensor x = Empty(dtype, {n}), y = Empty(dtype, {n}), all = Empty(DType::kBool, {n});
    ASSERT_THAT(Fill(device(), x, 3), IsOk());
    ASSERT_THAT(Fill(device(), all, 1), IsOk());
    ASSERT_THAT(Fill(device(), all.Narrow(0, 7, 1), 0), IsOk());
    for (const int64_t begin : {0, 1}) {
      ASSERT_THAT(Fill(device(), y, 0), IsOk());
      const Tensor in = x.Narrow(0, 0, n - 2), zeros = Make(dtype, {}, {0}).BroadcastTo({n - 2});
      ASSERT_THAT(Where(device(), all.Narrow(0, 0, n - 2), in, zeros, y.Narrow(0, begin, n - 2)),
                  IsOk());
      const Doubles got = Read(y);
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        wrong += got[i] != (i < begin || i >= begin + n - 2 || i == begin + 7 ? 0 : 3);
      }
      ASSERT_EQ(wrong, 0);
    }
  }
}

TEST_P(ComparisonTest, NoElements) {
  const Tensor x = Empty(DType::kF32, {3, 0}), out = Empty(DType::kBool, {3, 0});
  EXPECT_THAT(Compare(device(), CompareOp::kLess, x, x, out), IsOk());
  EXPECT_THAT(Where(device(), out, x, x, x), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
