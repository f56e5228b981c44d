#include "dtensor/runtime/kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

struct RmsNormResult {
  Doubles y, rstd;
};
struct RmsNormGrads {
  Doubles dx, dweight;
};

class NormTest : public KernelTest {
 protected:
  RmsNormResult RunRmsNorm(const Tensor& x, const Tensor& weight) {
    const Tensor y = Empty(x.dtype(), x.shape());
    const Tensor rstd = Empty(AccumulatorOf(x.dtype()), Rows(x));
    EXPECT_THAT(RmsNorm(device(), x, weight, kEps, y, rstd), IsOk());
    return {Read(y), Read(rstd)};
  }
  RmsNormGrads RunRmsNormGrad(const Tensor& x, const Tensor& weight, const Tensor& rstd,
                              const Tensor& dy) {
    const Tensor dx = Empty(x.dtype(), x.shape()), dweight = Empty(x.dtype(), weight.shape());
    EXPECT_THAT(RmsNormGrad(device(), x, weight, rstd, dy, dx, dweight), IsOk());
    return {Read(dx), Read(dweight)};
  }
  static Dims Rows(const Tensor& x) { return Dims(x.shape().begin(), x.shape().end() - 1); }

  static constexpr double kEps = 1e-5;
};
DT_INSTANTIATE_KERNEL_TESTS(NormTest);

RmsNormResult ReferenceRmsNorm(const Doubles& x, const Doubles& weight, double eps) {
  const size_t n = weight.size();
  RmsNormResult result{Doubles(x.size()), {}};
  for (size_t row = 0; row < x.size(); row += n) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[row + i] * x[row + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    result.rstd.push_back(rstd);
    for (size_t i = 0; i < n; ++i) result.y[row + i] = x[row + i] * rstd * weight[i];
  }
  return result;
}

RmsNormGrads ReferenceRmsNormGrad(const Doubles& x, const Doubles& weight, const Doubles& rstd,
                                  const Doubles& dy) {
  const size_t n = weight.size();
  RmsNormGrads result{Doubles(x.size()), Doubles(n)};
  for (size_t row = 0; row < x.size(); row += n) {
    const double r = rstd[row / n];
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += dy[row + i] * weight[i] * x[row + i] * r;
    mean /= static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      const double xhat = x[row + i] * r;
      result.dx[row + i] = r * (dy[row + i] * weight[i] - xhat * mean);
      result.dweight[i] += dy[row + i] * xhat;
    }
  }
  return result;
}

// On a GPU rows above 1024 are a block's, not a warp's.
constexpr int64_t kWidths[] = {1, 3, 8, 16, 17, 64, 100, 333, 1027, 2048};

// Columns [begin, end) of rows of n.
Doubles Columns(const Doubles& values, int64_t n, int64_t begin, int64_t end) {
  Doubles out;
  for (size_t row = 0; row < values.size(); row += n) {
    out.insert(out.end(), values.begin() + row + begin, values.begin() + row + end);
  }
  return out;
}

TEST_P(NormTest, RmsNormOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles x = Rounded(dtype, RandomValues(6 * n, -2, 2, 1));
      const Doubles weight = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const RmsNormResult got = RunRmsNorm(Make(dtype, {2, 3, n}, x), Make(dtype, {n}, weight));
      const RmsNormResult want = ReferenceRmsNorm(x, weight, kEps);
      ExpectNear(got.y, want.y, Epsilon(dtype), 0);
      ExpectNear(got.rstd, want.rstd, dtype == DType::kF64 ? 1e-14 : 1e-6, 0);
    }
  }
}

// Rows of so many bytes that a GPU keeps one in a warp, in a block, and in neither, and from where
// it may not keep any.
TEST_P(NormTest, LongRowsHaveTheSameBitsFromEveryAddress) {
  for (const DType dtype : kFloats) {
    for (const int64_t bytes : {4112, 8192, 8208, 20'000, 40'000}) {
      const int64_t rows = 3, n = bytes / SizeOf(dtype);
      const Doubles x = Rounded(dtype, RandomValues(rows * n, -2, 2, 1));
      const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Tensor weight = Make(dtype, {n}, w);
      const RmsNormResult reference = ReferenceRmsNorm(x, w, kEps);
      const RmsNormResult want = RunRmsNorm(Make(dtype, {rows, n}, x), weight);
      ExpectNear(want.y, reference.y, Epsilon(dtype), 1e-7);  // subnormal in f16
      ExpectNear(want.rstd, reference.rstd, dtype == DType::kF64 ? 1e-13 : 1e-5, 0);
      const RmsNormResult got = RunRmsNorm(MakeInside(dtype, rows, n, x), weight);
      EXPECT_EQ(got.y, want.y) << bytes;
      EXPECT_EQ(got.rstd, want.rstd) << bytes;
    }
  }
}

TEST_P(NormTest, RmsNormOfViews) {
  const int64_t rows = 9, n = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Doubles x = RandomValues(rows * n, -2, 2, 1), w = RandomValues(n, 0.5, 1.5, 2);
    const Tensor weight = Make(dtype, {n}, w);
    const RmsNormResult want = RunRmsNorm(Make(dtype, {rows, n}, x), weight);
    EXPECT_EQ(RunRmsNorm(MakeTransposed(dtype, rows, n, x), weight).y, want.y);
    EXPECT_EQ(RunRmsNorm(MakeInside(dtype, rows, n, x), weight).y, want.y);
    const Tensor ones = Make(dtype, {1}, {1}).BroadcastTo({n});
    EXPECT_EQ(RunRmsNorm(Make(dtype, {rows, n}, x), ones).rstd, want.rstd);
  }
}

TEST_P(NormTest, RmsNormGradOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles x = Rounded(dtype, RandomValues(6 * n, -2, 2, 1));
      const Doubles weight = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Doubles dy = Rounded(dtype, RandomValues(6 * n, -1, 1, 3));
      const DType statistics = AccumulatorOf(dtype);
      const Doubles rstd = Rounded(statistics, ReferenceRmsNorm(x, weight, kEps).rstd);
      const RmsNormGrads want = ReferenceRmsNormGrad(x, weight, rstd, dy);
      const RmsNormGrads got = RunRmsNormGrad(Make(dtype, {6, n}, x), Make(dtype, {n}, weight),
                                              Make(statistics, {6}, rstd), Make(dtype, {6, n}, dy));
      // Both are differences of terms of the size of rstd.
      ExpectNear(
          got.dx, want.dx, Epsilon(dtype),
          (dtype == DType::kF64 ? 1e-13 : 2e-6) * *std::max_element(rstd.begin(), rstd.end()));
      ExpectNear(got.dweight, want.dweight, Epsilon(dtype), dtype == DType::kF64 ? 1e-14 : 2e-6);
    }
  }
}

TEST_P(NormTest, RmsNormGradOfViews) {
  const int64_t rows = 7, n = 40;
  const DType dtype = DType::kF32;
  const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
  const Tensor weight = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 3));
  const Tensor rstd = Make(dtype, {rows}, RandomValues(rows, 0.5, 1.5, 4));
  const RmsNormGrads want =
      RunRmsNormGrad(Make(dtype, {rows, n}, x), weight, rstd, Make(dtype, {rows, n}, dy));
  const RmsNormGrads got = RunRmsNormGrad(MakeInside(dtype, rows, n, x), weight, rstd,
                                          MakeTransposed(dtype, rows, n, dy));
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dweight, want.dweight);
}

// Rows that a GPU reads once, for all gradients at a time, and twice where they lie otherwise: from
// odd addresses, within others. Of one row, of a part of the rows and of several.
TEST_P(NormTest, LongRowsGradHasTheSameBitsFromEveryAddress) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1032, 2056, 4104, 8200}) {
      if (n > 4096 && dtype != DType::kF32 && dtype != DType::kBF16) continue;  // they take long
      for (const int64_t rows : {1, 19}) {
        const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
        const Doubles w = RandomValues(n, 0.5, 1.5, 3);
        const Tensor rstd = Make(AccumulatorOf(dtype), {rows}, RandomValues(rows, 0.5, 1.5, 4));
        const Tensor weight = Make(dtype, {n}, w), grad = Make(dtype, {rows, n}, dy);
        const RmsNormGrads want = RunRmsNormGrad(Make(dtype, {rows, n}, x), weight, rstd, grad);
        const RmsNormGrads inside =
            RunRmsNormGrad(MakeInside(dtype, rows, n, x), weight, rstd, grad);
        EXPECT_EQ(inside.dx, want.dx) << n;
        EXPECT_EQ(inside.dweight, want.dweight) << n;
        const RmsNormGrads reference = ReferenceRmsNormGrad(Rounded(dtype, x), Rounded(dtype, w),
                                                            Read(rstd), Rounded(dtype, dy));
        ExpectNear(want.dx, reference.dx, Epsilon(dtype), dtype == DType::kF64 ? 1e-13 : 2e-6);
        ExpectNear(want.dweight, reference.dweight, Epsilon(dtype),
                   dtype == DType::kF64 ? 1e-13 : 1e-5);
      }
    }
  }
}

// Two dimensions of rows that do not join, also in the statistics.
TEST_P(NormTest, RowsOfTwoStrides) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const int64_t n : {40, 1032}) {
      const DType statistics = AccumulatorOf(dtype);
      const Tensor x = Make(dtype, {3, 2, n}, RandomValues(6 * n, -2, 2, 1)).Transpose(0, 1);
      const Tensor dy = Make(dtype, {3, 2, n}, RandomValues(6 * n, -1, 1, 2)).Transpose(0, 1);
      const Tensor rstd = Make(statistics, {3, 2}, RandomValues(6, 0.5, 1.5, 3)).Transpose(0, 1);
      const Tensor w = Make(dtype, {2 * n}, RandomValues(2 * n, 0.5, 1.5, 4)).View({n}, {2}, 1);
      const Tensor rows = Make(dtype, {2, 3, n}, Read(x)), weight = Make(dtype, {n}, Read(w));
      EXPECT_EQ(RunRmsNorm(x, w).y, RunRmsNorm(rows, weight).y);
      EXPECT_EQ(RunRmsNorm(x, w).rstd, RunRmsNorm(rows, weight).rstd);
      const RmsNormGrads got = RunRmsNormGrad(x, w, rstd, dy);
      const RmsNormGrads want = RunRmsNormGrad(rows, weight, Make(statistics, {2, 3}, Read(rstd)),
                                               Make(dtype, {2, 3, n}, Read(dy)));
      EXPECT_EQ(got.dx, want.dx);
      EXPECT_EQ(got.dweight, want.dweight);
    }
  }
}

TEST_P(NormTest, OutputsInPlace) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {5, 64, 1027, 1032}) {
      const int64_t rows = n > 1024 ? 9 : 70;
      const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
      const auto make = [&](const Doubles& values) { return Make(dtype, {rows, n}, values); };
      const Tensor weight = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 3));
      const Tensor rstd = Empty(AccumulatorOf(dtype), {rows}), dweight = Empty(dtype, {n});
      const RmsNormResult want = RunRmsNorm(make(x), weight);
      const Tensor y = make(x);
      ASSERT_THAT(RmsNorm(device(), y, weight, kEps, y, rstd), IsOk());
      EXPECT_EQ(Read(y), want.y);
      EXPECT_EQ(Read(rstd), want.rstd);
      const RmsNormGrads grads = RunRmsNormGrad(make(x), weight, rstd, make(dy));
      for (const bool over_x : {false, true}) {
        const Tensor in = make(x), grad = make(dy), dx = over_x ? in : grad;
        ASSERT_THAT(RmsNormGrad(device(), in, weight, rstd, grad, dx, dweight), IsOk());
        EXPECT_EQ(Read(dx), grads.dx);
        EXPECT_EQ(Read(dweight), grads.dweight);
      }
    }
  }
}

TEST_P(NormTest, RmsNormGradAgreesWithDifferences) {
  const int64_t rows = 3, n = 9;
  const Doubles x = RandomValues(rows * n, -2, 2, 1), weight = RandomValues(n, 0.5, 1.5, 2);
  const Doubles dy = RandomValues(rows * n, -1, 1, 3);
  const auto make = [&](const Doubles& v) { return Make(DType::kF64, {rows, n}, v); };
  const auto row = [&](const Doubles& v) { return Make(DType::kF64, {n}, v); };
  const RmsNormGrads got =
      RunRmsNormGrad(make(x), row(weight),
                     Make(DType::kF64, {rows}, RunRmsNorm(make(x), row(weight)).rstd), make(dy));
  ExpectNear(got.dx,
             NumericGradient(
                 x, dy, [&](const Doubles& at) { return RunRmsNorm(make(at), row(weight)).y; }),
             1e-6, 1e-8);
  ExpectNear(got.dweight,
             NumericGradient(weight, dy,
                             [&](const Doubles& at) { return RunRmsNorm(make(x), row(at)).y; }),
             1e-6, 1e-8);
}

// Law 4: narrow inputs, sums in f32. Summed in bf16, a gradient over this many rows would stop
// growing.
TEST_P(NormTest, WeightGradientAccumulatesInF32) {
  const int64_t rows = 2000;
  const Tensor x = Make(DType::kBF16, {rows, 1}, Doubles(rows, 1));
  const Tensor one = Make(DType::kBF16, {1}, {1});
  const Tensor rstd = Make(DType::kF32, {rows}, Doubles(rows, 1));
  EXPECT_EQ(RunRmsNormGrad(x, one, rstd, x).dweight, Doubles{2000});
}

// Equal terms, whose sum a chain of additions takes too small or too large at many steps: by 1e-3
// of it here, and by 2e-5 if the sums of 64 rows each were such a chain.
TEST_P(NormTest, WeightGradientOfManyRowsLosesFewBits) {
  const int64_t rows = 131077;
  const Tensor x = Make(DType::kF32, {1, 1}, {0.3}).BroadcastTo({rows, 1});
  const Tensor one = Make(DType::kF32, {1}, {1});
  const Tensor ones = Make(DType::kF32, {1, 1}, {1}).BroadcastTo({rows, 1});
  const Tensor rstd = one.BroadcastTo({rows});
  const Doubles sum = {static_cast<double>(rows) * double{0.3f}};
  ExpectNear(RunRmsNormGrad(x, one, rstd, ones).dweight, sum, 1e-5, 0);
}

// On a GPU parts of more rows than are added one by one; each is 2^-k of the column's, which every
// order of addition gives exactly.
TEST_P(NormTest, WeightGradientOfManyLongRows) {
  const int64_t rows = 66001, n = 1032;
  Doubles of_columns(n);
  for (int64_t i = 0; i < n; ++i) of_columns[i] = std::exp2(-static_cast<double>(i % 7));
  const Tensor x = Make(DType::kBF16, {1, n}, of_columns).BroadcastTo({rows, n});
  const Tensor ones = Make(DType::kBF16, {1, n}, Doubles(n, 1));
  const Tensor rstd = Make(DType::kF32, {1}, {1}).BroadcastTo({rows});
  const Tensor dx = Empty(DType::kBF16, {rows, n}), dweight = Empty(DType::kBF16, {n});
  ASSERT_THAT(RmsNormGrad(device(), x, ones.View({n}, {1}, 0), rstd, ones.BroadcastTo({rows, n}),
                          dx, dweight),
              IsOk());
  Doubles want = of_columns;
  for (double& v : want) v *= static_cast<double>(rows);
  EXPECT_EQ(Read(dweight), Rounded(DType::kBF16, want));
  const Doubles first = Read(dx.Narrow(0, 0, 1));
  EXPECT_EQ(Read(dx.Narrow(0, rows - 1, 1)), first);
}

// Rows that begin at every place in a cache line, written past the caches.
TEST_P(NormTest, RmsNormOfLargeTensors) {
  const int64_t n = 1021, few = 7, rows = (int64_t{9} << 20) / 4 / n;
  const Doubles x = RandomValues(few * n, -2, 2, 1), dy = RandomValues(few * n, -1, 1, 2);
  const Tensor weight = Make(DType::kF32, {n}, RandomValues(n, 0.5, 1.5, 3));
  const auto repeated = [&](const Doubles& values) {
    Doubles all(rows * n);
    for (int64_t i = 0; i < rows * n; ++i) all[i] = values[i % (few * n)];
    return all;
  };
  const Tensor small = Make(DType::kF32, {few, n}, x),
               large = Make(DType::kF32, {rows, n}, repeated(x));
  const RmsNormResult want = RunRmsNorm(small, weight);
  EXPECT_EQ(RunRmsNorm(large, weight).y, repeated(want.y));
  const Tensor rstd = Make(DType::kF32, {few}, want.rstd);
  Doubles all_rstd(rows);
  for (int64_t r = 0; r < rows; ++r) all_rstd[r] = want.rstd[r % few];
  const RmsNormGrads grads = RunRmsNormGrad(large, weight, Make(DType::kF32, {rows}, all_rstd),
                                            Make(DType::kF32, {rows, n}, repeated(dy)));
  const RmsNormGrads part = RunRmsNormGrad(small, weight, rstd, Make(DType::kF32, {few, n}, dy));
  EXPECT_EQ(grads.dx, repeated(part.dx));
  const Doubles reference =
      ReferenceRmsNormGrad(Rounded(DType::kF32, repeated(x)), Rounded(DType::kF32, Read(weight)),
                           all_rstd, Rounded(DType::kF32, repeated(dy)))
          .dweight;
  ExpectNear(grads.dweight, reference, 2e-6, 1e-3);
}

// On a GPU parts of rows of whole packs are read once, as whole rows are.
TEST_P(NormTest, LongRowsGradInStagesIsThatOfWholeRows) {
  const int64_t rows = 5, n = 1032;
  for (const DType dtype : kFloats) {
    const DType statistics = AccumulatorOf(dtype);
    const Tensor x = Make(dtype, {rows, n}, RandomValues(rows * n, -2, 2, 1));
    const Tensor dy = Make(dtype, {rows, n}, RandomValues(rows * n, -1, 1, 2));
    const Tensor weight = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 3));
    const Tensor rstd = Make(statistics, {rows}, RandomValues(rows, 0.5, 1.5, 4));
    const Tensor dots = Empty(statistics, {1, rows}), dx = Empty(dtype, {rows, n}),
                 dweight = Empty(dtype, {n});
    ASSERT_THAT(RmsNormGradDots(device(), x, weight, dy, dots.View({rows}, {1}, 0)), IsOk());
    ASSERT_THAT(RmsNormGrad(device(), x, weight, rstd, dy, dx, dweight, &dots, n), IsOk());
    const RmsNormGrads want = RunRmsNormGrad(x, weight, rstd, dy);
    EXPECT_EQ(Read(dx), want.dx);
    EXPECT_EQ(Read(dweight), want.dweight);
  }
}

// Shards of 5, 0 and the other columns: each makes its statistics, and all merge them.
TEST_P(NormTest, RmsNormInStagesIsThatOfWholeRows) {
  const int64_t rows = 6, n = 37;
  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 5}, {5, 5}, {5, n}};
  for (const DType dtype : kFloats) {
    const Doubles x = Rounded(dtype, RandomValues(rows * n, -2, 2, 1));
    const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
    const Doubles dy = Rounded(dtype, RandomValues(rows * n, -1, 1, 3));
    const DType statistics = AccumulatorOf(dtype);
    const Tensor squares = Empty(statistics, {rows}), dots = Empty(statistics, {rows});
    Doubles all_squares, all_dots;
    const auto cut = [&](const Doubles& values, int64_t begin, int64_t end) {
      return Make(dtype, {rows, n}, values).Narrow(1, begin, end - begin);
    };
    for (const auto& [begin, end] : parts) {
      const Tensor weight = Make(dtype, {n}, w).Narrow(0, begin, end - begin);
      ASSERT_THAT(RowSquares(device(), cut(x, begin, end), squares), IsOk());
      ASSERT_THAT(RmsNormGradDots(device(), cut(x, begin, end), weight, cut(dy, begin, end), dots),
                  IsOk());
      const Doubles here = Read(squares), dots_here = Read(dots);
      all_squares.insert(all_squares.end(), here.begin(), here.end());
      all_dots.insert(all_dots.end(), dots_here.begin(), dots_here.end());
    }
    const Tensor merged = Make(statistics, {3, rows}, all_squares);
    const Tensor merged_dots = Make(statistics, {3, rows}, all_dots);
    const RmsNormResult want = ReferenceRmsNorm(x, w, kEps);
    const RmsNormGrads grads = ReferenceRmsNormGrad(x, w, want.rstd, dy);
    const double bound = dtype == DType::kF64 ? 1e-13 : 4e-6;
    for (const auto& [begin, end] : parts) {
      const Tensor weight = Make(dtype, {n}, w).Narrow(0, begin, end - begin);
      const Tensor y = Empty(dtype, {rows, end - begin}), rstd = Empty(statistics, {rows});
      const Tensor dx = Empty(dtype, {rows, end - begin}), dweight = Empty(dtype, {end - begin});
      ASSERT_THAT(RmsNorm(device(), cut(x, begin, end), weight, kEps, y, rstd, &merged, n), IsOk());
      ASSERT_THAT(RmsNormGrad(device(), cut(x, begin, end), weight, rstd, cut(dy, begin, end), dx,
                              dweight, &merged_dots, n),
                  IsOk());
      ExpectNear(Read(rstd), want.rstd, bound, 0);
      ExpectNear(Read(y), Columns(want.y, n, begin, end), Epsilon(dtype), 0);
      ExpectNear(Read(dx), Columns(grads.dx, n, begin, end), Epsilon(dtype), bound);
      ExpectNear(Read(dweight), Columns(grads.dweight, n, begin, end), Epsilon(dtype), bound);
    }
  }
}

TEST_P(NormTest, NoElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Tensor weight = Make(dtype, {4}, Doubles(4, 1)), none = Empty(dtype, {0});
    EXPECT_EQ(RunRmsNorm(Empty(dtype, {0, 4}), weight).y, Doubles());
    EXPECT_EQ(RunRmsNorm(Empty(dtype, {3, 0}), none).rstd.size(), 3);
    const DType statistics = AccumulatorOf(dtype);
    // No rows: the gradient of the weight is zero, not unwritten.
    EXPECT_EQ(
        RunRmsNormGrad(Empty(dtype, {0, 4}), weight, Empty(statistics, {0}), Empty(dtype, {0, 4}))
            .dweight,
        Doubles(4, 0));
    EXPECT_EQ(RunRmsNormGrad(Empty(dtype, {3, 0}), none, Make(statistics, {3}, {1, 1, 1}),
                             Empty(dtype, {3, 0}))
                  .dx,
              Doubles());
  }
}

}  // namespace
}  // namespace dtensor::kernels
