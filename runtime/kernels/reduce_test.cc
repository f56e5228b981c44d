#include "dtensor/runtime/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};

class ReduceTest : public KernelTest {
 protected:
  Doubles Run(ReduceOp op, const Tensor& x, absl::Span<const int> dims,
              absl::Span<const int64_t> shape, DType out_dtype) {
    const Tensor out = Empty(out_dtype, shape);
    EXPECT_THAT(Reduce(device(), op, x, dims, out), IsOk());
    return Read(out);
  }
  Doubles Run(ReduceOp op, const Tensor& x, absl::Span<const int> dims,
              absl::Span<const int64_t> shape) {
    return Run(op, x, dims, shape, x.dtype());
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ReduceTest);

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

double Identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return -kInf;
    case ReduceOp::kMin:
      return kInf;
    case ReduceOp::kProduct:
      return 1;
    default:
      return 0;
  }
}

// x[a, b, c] reduced over the dimensions of `mask` (bit d for dimension d).
Doubles Reference(ReduceOp op, const Doubles& x, int64_t a, int64_t b, int64_t c, int mask) {
  const int64_t sizes[3] = {mask & 1 ? 1 : a, mask & 2 ? 1 : b, mask & 4 ? 1 : c};
  Doubles out(sizes[0] * sizes[1] * sizes[2], Identity(op));
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      for (int64_t k = 0; k < c; ++k) {
        const int64_t at =
            ((mask & 1 ? 0 : i) * sizes[1] + (mask & 2 ? 0 : j)) * sizes[2] + (mask & 4 ? 0 : k);
        out[at] = Combine(op, out[at], x[(i * b + j) * c + k]);
      }
    }
  }
  return out;
}

TEST_P(ReduceTest, EverySetOfDimensions) {
  const int64_t a = 3, b = 5, c = 37;
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64}) {
    for (const ReduceOp op : kOps) {
      // Whole numbers (and signs, for products) add up exactly in f32, whatever the order.
      Doubles values = RandomWhole(a * b * c, -4, 5);
      if (op == ReduceOp::kProduct) {
        for (double& v : values) v = v < 0 ? -1 : 1;
      }
      const Tensor x = Make(dtype, {a, b, c}, values);
      for (int mask = 0; mask < 8; ++mask) {
        std::vector<int> dims;
        Dims shape;
        for (int d = 0; d < 3; ++d) {
          if (mask >> d & 1) {
            dims.push_back(d);
          } else {
            shape.push_back(x.size(d));
          }
        }
        const Doubles want = Reference(op, values, a, b, c, mask);
        EXPECT_EQ(Run(op, x, dims, shape), Rounded(dtype, want))
            << ToString(dtype).data() << " op " << int(op) << " mask " << mask;
      }
    }
  }
}

TEST_P(ReduceTest, AnyStrides) {
  const int64_t rows = 41, columns = 1300;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    const Doubles values = RandomWhole(rows * columns, -4, 5);
    const Doubles by_row = Reference(ReduceOp::kSum, values, rows, columns, 1, 2);
    const Doubles by_column = Reference(ReduceOp::kSum, values, rows, columns, 1, 1);
    for (const Tensor& x :
         {Make(dtype, {rows, columns}, values), MakeTransposed(dtype, rows, columns, values),
          MakeInside(dtype, rows, columns, values)}) {
      EXPECT_EQ(Run(ReduceOp::kSum, x, {1}, {rows}), Rounded(dtype, by_row));
      EXPECT_EQ(Run(ReduceOp::kSum, x, {0}, {columns}), Rounded(dtype, by_column));
    }
  }
  const Tensor broadcast = Make(DType::kF32, {3, 1}, {1, 2, 3}).BroadcastTo({3, 700});
  EXPECT_EQ(Run(ReduceOp::kSum, broadcast, {1}, {3}), Doubles({700, 1400, 2100}));
  EXPECT_EQ(Run(ReduceOp::kSum, broadcast, {0}, {700}), Doubles(700, 6));
}

// Rows that are split and rows that are not, with ends within a pack, from any address: the same
// bits as of a tensor of its own.
TEST_P(ReduceTest, TheSameBitsFromEveryAddress) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 5, 31, 64, 333, 1024, 1027, 9001}) {
      const Doubles values = Rounded(dtype, RandomValues(3 * n, -1, 1, n));
      const Tensor x = Make(dtype, {3, n}, values), squares = Empty(AccumulatorOf(dtype), {});
      const Doubles want = Run(ReduceOp::kSum, x, {1}, {3}, AccumulatorOf(dtype));
      const Doubles want_all = Run(ReduceOp::kSum, x, {0, 1}, {}, AccumulatorOf(dtype));
      ASSERT_THAT(kernels::SumOfSquares(device(), x, squares), IsOk());
      const Doubles want_squares = Read(squares);
      for (const int64_t begin : {1, 2, 4, 8}) {
        Doubles memory(begin, 7);
        memory.insert(memory.end(), values.begin(), values.end());
        const Tensor y = Make(dtype, {begin + 3 * n}, memory).View({3, n}, {n, 1}, begin);
        EXPECT_EQ(Run(ReduceOp::kSum, y, {1}, {3}, AccumulatorOf(dtype)), want);
        EXPECT_EQ(Run(ReduceOp::kSum, y, {0, 1}, {}, AccumulatorOf(dtype)), want_all);
        ASSERT_THAT(kernels::SumOfSquares(device(), y, squares), IsOk());
        EXPECT_EQ(Read(squares), want_squares);
      }
    }
  }
}

// Terms of two dimensions that do not join, of rows that packs divide and that they do not.
TEST_P(ReduceTest, SlicesOfAllTypes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                            DType::kI64, DType::kBool}) {
    for (const int64_t n : {2, 6, 8, 16, 31, 48}) {
      for (const int64_t begin : {0, 1, 2, 4, 8, 16}) {
        for (const int64_t rest : {0, 1, 2, 8, 16}) {
          const Doubles values = RandomWhole(2 * 3 * (begin + n + rest), -4, 5);
          const Tensor x = Make(dtype, {2, 3, begin + n + rest}, values).Narrow(2, begin, n);
          const Doubles part = Read(x);
          SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " n " << n << " from "
                                          << begin << " rest " << rest);
          for (const int mask : {4, 6, 7, 1, 3}) {
            std::vector<int> dims;
            Dims shape;
            for (int d = 0; d < 3; ++d) {
              if (mask >> d & 1) {
                dims.push_back(d);
              } else {
                shape.push_back(x.size(d));
              }
            }
            // Bools have no sum here: kMax ors them.
            const ReduceOp op = dtype == DType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
            ASSERT_EQ(Run(op, x, dims, shape), Rounded(dtype, Reference(op, part, 2, 3, n, mask)));
          }
        }
      }
    }
  }
}

// Sums down columns, in several parts, of [blocks, rows, n] within wider rows, which packs divide
// and which they do not: each column's terms are added in one order, whatever lies beside it.
struct Columns {
  int64_t blocks, n, width;
};
constexpr Columns kColumns[] = {{2, 512, 536}, {1, 512, 536}, {1, 512, 537},
                                {2, 512, 537}, {2, 521, 545}, {1, 518, 542}};

TEST_P(ReduceTest, ColumnsOfSlices) {
  const int64_t rows = 131;
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64}) {
    for (const auto [blocks, n, width] : kColumns) {
      const Doubles values = Rounded(dtype, RandomValues(blocks * rows * width, -9, 9));
      const Tensor wide = Make(dtype, {blocks, rows, width}, values);
      const DType out = AccumulatorOf(dtype);
      const Doubles want = Run(ReduceOp::kSum, wide, {1}, {blocks, width}, out);
      for (const int64_t begin : {0, 1, 2, 8, 24}) {
        SCOPED_TRACE(testing::Message() << ToString(dtype).data() << " " << blocks << " x " << n
                                        << " of " << width << " from " << begin);
        const Doubles got = Run(ReduceOp::kSum, wide.Narrow(2, begin, n), {1}, {blocks, n}, out);
        for (int64_t i = 0; i < blocks * n; ++i) {
          const int64_t block = i / n, column = begin + i % n;
          ASSERT_EQ(got[i], want[block * width + column]);
          double sum = 0, size = 0;
          for (int64_t r = 0; r < rows; ++r) {
            const double v = values[(block * rows + r) * width + column];
            sum += v;
            size += std::abs(v);
          }
          ASSERT_NEAR(got[i], sum, size * 1e-6);
        }
      }
    }
  }
}

TEST_P(ReduceTest, NarrowFloatsAccumulateInF32) {
  // In bf16 itself the sum would stay at 256: 256 + 1 rounds to 256.
  const Tensor x = Make(DType::kBF16, {1000}, Doubles(1000, 1));
  EXPECT_EQ(Run(ReduceOp::kSum, x, {0}, {}), Doubles{1000});
  const Tensor y = Make(DType::kBF16, {3, 301}, Doubles(3 * 301, 1));
  EXPECT_EQ(Run(ReduceOp::kSum, y, {0, 1}, {}, DType::kF32), Doubles{903});
  EXPECT_EQ(Run(ReduceOp::kSum, y.Transpose(0, 1), {0}, {3}, DType::kF32),
            Doubles({301, 301, 301}));
}

TEST_P(ReduceTest, LongSumsLoseFewBits) {
  const int64_t n = 1 << 20;
  const Doubles values = Rounded(DType::kF32, RandomValues(n, 0, 1));
  double sum = 0;
  for (const double v : values) sum += v;
  const Doubles got = Run(ReduceOp::kSum, Make(DType::kF32, {n}, values), {0}, {});
  EXPECT_NEAR(got[0] / sum, 1, 1e-6);  // one chain of f32 additions is off by more than 1e-5
  const Doubles columns = Run(ReduceOp::kSum, Make(DType::kF32, {n / 2, 2}, values), {0}, {2});
  EXPECT_NEAR((columns[0] + columns[1]) / sum, 1, 1e-6);
}

TEST_P(ReduceTest, TheSameBitsEveryTime) {
  const Tensor x = Make(DType::kF32, {100, 999}, RandomValues(99900, -1, 1));
  for (const int dim : {0, 1}) {
    const int64_t n = x.size(1 - dim);
    const Doubles first = Run(ReduceOp::kSum, x, {dim}, {n});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(ReduceOp::kSum, x, {dim}, {n}), first);
  }
}

TEST_P(ReduceTest, MaxAndMinPassNaNOn) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 5, 16, 70, 1000}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        Doubles values = RandomValues(n, -1, 1);
        values[at] = kNaN;
        const Tensor x = Make(dtype, {n}, values);
        for (const ReduceOp op : kOps) EXPECT_TRUE(std::isnan(Run(op, x, {0}, {})[0]));
      }
    }
  }
}

TEST_P(ReduceTest, ManyLengths) {
  for (int64_t n = 1; n < 150; ++n) {
    const Doubles values = RandomWhole(n, -9, 9, n);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      EXPECT_EQ(Run(op, Make(DType::kF32, {n}, values), {0}, {}),
                Reference(op, values, n, 1, 1, 7));
    }
  }
}

TEST_P(ReduceTest, NothingToReduceGivesTheIdentity) {
  for (const ReduceOp op : kOps) {
    EXPECT_EQ(Run(op, Empty(DType::kF32, {2, 0}), {1}, {2}), Doubles(2, Identity(op)));
    EXPECT_EQ(Run(op, Empty(DType::kBF16, {0, 3}), {0}, {3}), Doubles(3, Identity(op)));
    EXPECT_EQ(Run(op, Empty(DType::kF64, {0}), {0}, {}), Doubles(1, Identity(op)));
    EXPECT_EQ(Run(op, Empty(DType::kF32, {0, 3}), {1}, {0}), Doubles());
  }
  EXPECT_EQ(Run(ReduceOp::kMax, Empty(DType::kI32, {0}), {0}, {}), Doubles{-2147483648.0});
  EXPECT_EQ(Run(ReduceOp::kSum, Empty(DType::kI64, {0}), {0}, {}), Doubles{0});
}

TEST_P(ReduceTest, Booleans) {
  const Tensor x = Make(DType::kBool, {2, 3}, {0, 1, 0, 0, 0, 0});
  EXPECT_EQ(Run(ReduceOp::kMax, x, {1}, {2}), Doubles({1, 0}));
  EXPECT_EQ(Run(ReduceOp::kMin, x, {0, 1}, {}), Doubles({0}));
  EXPECT_EQ(Run(ReduceOp::kSum, x, {1}, {2}), Doubles({1, 0}));
}

TEST_P(ReduceTest, SumOfSquares) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 7, 64, 100, 20000}) {
      const Doubles values = Rounded(dtype, RandomValues(n, -2, 2));
      double want = 0;
      for (const double v : values) want += v * v;
      const Tensor out = Empty(AccumulatorOf(dtype), {});
      ASSERT_THAT(kernels::SumOfSquares(device(), Make(dtype, {n}, values), out), IsOk());
      ExpectNear(Read(out), {want}, dtype == DType::kF64 ? 1e-13 : 6e-8, 0);
    }
  }
}

TEST_P(ReduceTest, SumOfSquaresIsSummedInF64) {
  // The small squares vanish beside the large one in f32.
  Doubles values(10001, 1e-3);
  values[0] = 100;
  const Tensor out = Empty(DType::kF32, {});
  ASSERT_THAT(kernels::SumOfSquares(device(), Make(DType::kF32, {10001}, values), out), IsOk());
  ExpectNear(Read(out), {10000.01}, 6e-8, 0);
}

TEST_P(ReduceTest, SumOfSquaresOfViewsAndOfNothing) {
  const Doubles values = RandomWhole(30 * 600, -9, 9);
  double want = 0;
  for (const double v : values) want += v * v;
  const Tensor out = Empty(DType::kF32, {1});
  ASSERT_THAT(kernels::SumOfSquares(device(), MakeTransposed(DType::kF32, 30, 600, values), out),
              IsOk());
  EXPECT_EQ(Read(out), Doubles{want});
  ASSERT_THAT(kernels::SumOfSquares(device(), MakeInside(DType::kF32, 30, 600, values), out),
              IsOk());
  EXPECT_EQ(Read(out), Doubles{want});
  ASSERT_THAT(kernels::SumOfSquares(device(), Empty(DType::kF32, {0, 4}), out), IsOk());
  EXPECT_EQ(Read(out), Doubles{0});
}

// A sum over all dimensions is one of memory, in whatever order the dimensions stand.
TEST_P(ReduceTest, PermutedViewsHaveTheBitsOfTheirMemory) {
  const int64_t shape[] = {7, 60, 45};
  for (const DType dtype : kFloats) {
    const DType wide = AccumulatorOf(dtype);
    const Doubles values = Rounded(dtype, RandomValues(7 * 60 * 45, -1, 1));
    const Tensor x = Make(dtype, shape, values), squares = Empty(wide, {});
    const Doubles want = Run(ReduceOp::kSum, x, {0, 1, 2}, {}, wide);
    ASSERT_THAT(kernels::SumOfSquares(device(), x, squares), IsOk());
    const Doubles want_squares = Read(squares);
    for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      const Tensor swapped = x.Transpose(a, b);
      for (const Tensor& y : {swapped, swapped.Transpose(0, 1)}) {
        EXPECT_EQ(Run(ReduceOp::kSum, y, {0, 1, 2}, {}, wide), want) << a << " " << b;
        ASSERT_THAT(kernels::SumOfSquares(device(), y, squares), IsOk());
        EXPECT_EQ(Read(squares), want_squares) << a << " " << b;
      }
    }
  }
}

// Ids of no bin are not counted; more bins than a block of a GPU has for itself, and more ids.
TEST_P(ReduceTest, Bincount) {
  for (const int64_t bins : {0, 1, 7, 2048, 2049}) {
    for (const int64_t n : {0, 1, 30, 2'000'000}) {
      const Doubles ids = RandomWhole(n, -2, bins + 2, n);
      Doubles want(bins);
      for (const double id : ids) {
        if (0 <= id && id < static_cast<double>(bins)) ++want[static_cast<size_t>(id)];
      }
      const Tensor x = Make(n % 7 == 0 ? DType::kI32 : DType::kI64, {n}, ids);
      const Tensor counts = Empty(n == 30 ? DType::kF64 : DType::kF32, {bins});
      ASSERT_THAT(kernels::Bincount(device(), x, counts), IsOk());
      EXPECT_EQ(Read(counts), want) << bins << " " << n;
    }
  }
  const Tensor counts = Empty(DType::kF32, {3});
  ASSERT_THAT(
      kernels::Bincount(device(), MakeTransposed(DType::kI64, 2, 3, {0, 2, 2, 1, 2, 3}), counts),
      IsOk());
  EXPECT_EQ(Read(counts), Doubles({1, 1, 3}));
}

}  // namespace
}  // namespace dtensor::kernels
