#include "dtensor/runtime/kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class SoftmaxTest : public KernelTest {
 protected:
  Doubles RunSoftmax(const Tensor& x, SoftmaxForm form = SoftmaxForm::kPlain) {
    const Tensor y = Empty(x.dtype(), x.shape());
    EXPECT_THAT(Softmax(device(), form, x, y), IsOk());
    return Read(y);
  }
  Doubles RunSoftmaxGrad(const Tensor& y, const Tensor& dy,
                         SoftmaxForm form = SoftmaxForm::kPlain) {
    const Tensor dx = Empty(y.dtype(), y.shape());
    EXPECT_THAT(SoftmaxGrad(device(), form, y, dy, dx), IsOk());
    return Read(dx);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(SoftmaxTest);

Doubles ReferenceSoftmax(const Doubles& x, int64_t n) {
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    const double max = *std::max_element(x.begin() + row, x.begin() + row + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += y[row + i] = std::exp(x[row + i] - max);
    for (int64_t i = 0; i < n; ++i) y[row + i] /= sum;
  }
  return y;
}

Doubles ReferenceSoftmaxGrad(const Doubles& y, const Doubles& dy, int64_t n) {
  Doubles dx(y.size());
  for (size_t row = 0; row < y.size(); row += n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += y[row + i] * dy[row + i];
    for (int64_t i = 0; i < n; ++i) dx[row + i] = y[row + i] * (dy[row + i] - sum);
  }
  return dx;
}

Doubles ReferenceLogSoftmax(const Doubles& x, int64_t n) {
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    const double max = *std::max_element(x.begin() + row, x.begin() + row + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x[row + i] - max);
    for (int64_t i = 0; i < n; ++i) y[row + i] = x[row + i] - max - std::log(sum);
  }
  return y;
}

Doubles ReferenceLogSoftmaxGrad(const Doubles& y, const Doubles& dy, int64_t n) {
  Doubles dx(y.size());
  for (size_t row = 0; row < y.size(); row += n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += dy[row + i];
    for (int64_t i = 0; i < n; ++i) dx[row + i] = dy[row + i] - std::exp(y[row + i]) * sum;
  }
  return dx;
}

// On a GPU rows above 1024 are a block's, not a warp's.
constexpr int64_t kWidths[] = {1, 3, 8, 16, 17, 64, 100, 333, 1027, 2048};

TEST_P(SoftmaxTest, SoftmaxOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      // Differences of 16 round by half of Epsilon, and long rows have them.
      const double most = n > 1024 ? 4 : 8;
      const Doubles x = Rounded(dtype, RandomValues(7 * n, -most, most));
      ExpectNear(RunSoftmax(Make(dtype, {7, n}, x)), ReferenceSoftmax(x, n), Epsilon(dtype),
                 dtype == DType::kF16 ? 1e-7 : 0);
    }
  }
}

TEST_P(SoftmaxTest, SoftmaxOfLargeValuesDoesNotOverflow) {
  const Doubles x = {1000, 999, 998, -1000, 3e38, 3e38, 0, -3e38};
  ExpectNear(RunSoftmax(Make(DType::kF32, {2, 4}, x)), ReferenceSoftmax(x, 4), 1e-6, 1e-38);
}

TEST_P(SoftmaxTest, SoftmaxOfMaskedRows) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {3, 3}, {-kInf, -kInf, -kInf, 0, -kInf, 0, kNaN, 0, -kInf});
    ExpectNear(RunSoftmax(x), {0, 0, 0, 0.5, 0, 0.5, kNaN, kNaN, kNaN}, Epsilon(dtype), 0);
  }
  ExpectNear(RunSoftmax(Make(DType::kF32, {1, 2}, {-kInf, kNaN})), {kNaN, kNaN}, 0, 0);
}

TEST_P(SoftmaxTest, SoftmaxOfViews) {
  const int64_t rows = 9, n = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Doubles x = Rounded(dtype, RandomValues(rows * n, -8, 8));
    const Doubles want = RunSoftmax(Make(dtype, {rows, n}, x));
    EXPECT_EQ(RunSoftmax(MakeTransposed(dtype, rows, n, x)), want);
    EXPECT_EQ(RunSoftmax(MakeInside(dtype, rows, n, x)), want);
  }
  const Tensor broadcast = Make(DType::kF32, {2, 1}, {1, 2}).BroadcastTo({2, 4});
  EXPECT_EQ(RunSoftmax(broadcast), Doubles(8, 0.25));
}

TEST_P(SoftmaxTest, SoftmaxGrad) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles y = Rounded(dtype, ReferenceSoftmax(RandomValues(5 * n, -3, 3, 1), n));
      const Doubles dy = Rounded(dtype, RandomValues(5 * n, -2, 2, 2));
      ExpectNear(RunSoftmaxGrad(Make(dtype, {5, n}, y), Make(dtype, {5, n}, dy)),
                 ReferenceSoftmaxGrad(y, dy, n), Epsilon(dtype), Epsilon(dtype) * 0.5);
    }
  }
  const Doubles y = ReferenceSoftmax(RandomValues(60, -3, 3, 1), 12);
  const Doubles dy = RandomValues(60, -2, 2, 2);
  ExpectNear(
      RunSoftmaxGrad(MakeInside(DType::kF64, 5, 12, y), MakeTransposed(DType::kF64, 5, 12, dy)),
      ReferenceSoftmaxGrad(y, dy, 12), 1e-13, 1e-15);
}

TEST_P(SoftmaxTest, SoftmaxGradAgreesWithDifferences) {
  const Doubles x = RandomValues(24, -3, 3, 1), dy = RandomValues(24, -2, 2, 2);
  const auto forward = [&](const Doubles& at) { return RunSoftmax(Make(DType::kF64, {3, 8}, at)); };
  ExpectNear(RunSoftmaxGrad(Make(DType::kF64, {3, 8}, forward(x)), Make(DType::kF64, {3, 8}, dy)),
             NumericGradient(x, dy, forward), 1e-6, 1e-9);
}

TEST_P(SoftmaxTest, LogSoftmaxOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles x = Rounded(dtype, RandomValues(7 * n, -8, 8));
      ExpectNear(RunSoftmax(Make(dtype, {7, n}, x), SoftmaxForm::kLog), ReferenceLogSoftmax(x, n),
                 Epsilon(dtype), dtype == DType::kF64 ? 1e-14 : 2e-6);
      const Doubles y = Rounded(dtype, ReferenceLogSoftmax(x, n));
      const Doubles dy = Rounded(dtype, RandomValues(7 * n, -2, 2, 2));
      ExpectNear(RunSoftmaxGrad(Make(dtype, {7, n}, y), Make(dtype, {7, n}, dy), SoftmaxForm::kLog),
                 ReferenceLogSoftmaxGrad(y, dy, n), Epsilon(dtype),
                 dtype == DType::kF64 ? 1e-13 : 1e-5);
    }
  }
}

// Relative to a large maximum the small differences are kept.
TEST_P(SoftmaxTest, LogSoftmaxOfLargeAndMaskedValues) {
  const Tensor x =
      Make(DType::kF32, {3, 3}, {10000, 10001, -kInf, -kInf, -kInf, -kInf, kNaN, 0, 1});
  const double log = std::log(1 + std::exp(-1));
  ExpectNear(RunSoftmax(x, SoftmaxForm::kLog),
             {-1 - log, -log, -kInf, -kInf, -kInf, -kInf, kNaN, kNaN, kNaN}, 1e-6, 0);
}

// Shards of 5, 0 and the other columns: each makes its statistics, and all merge them.
TEST_P(SoftmaxTest, InStagesItIsThatOfWholeRows) {
  const int64_t rows = 5, n = 41;
  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 5}, {5, 5}, {5, n}};
  for (const SoftmaxForm form : {SoftmaxForm::kPlain, SoftmaxForm::kLog}) {
    for (const DType dtype : kFloats) {
      Doubles x = Rounded(dtype, RandomValues(rows * n, -8, 8));
      for (int64_t i = 0; i < n; ++i) x[i] = -kInf;          // a row of nothing
      for (int64_t i = 0; i < 5; ++i) x[n + i] = -kInf;      // nothing on the first shard
      for (int64_t i = 5; i < n; ++i) x[2 * n + i] = -kInf;  // and on the last
      x[3 * n + 7] = kNaN;
      const Tensor whole = Make(dtype, {rows, n}, x);
      const Doubles want = RunSoftmax(whole, form);
      const Tensor y = Make(dtype, {rows, n}, want);
      const Tensor dy = Make(dtype, {rows, n}, RandomValues(rows * n, -1, 1, 2));
      const Doubles want_grad = RunSoftmaxGrad(y, dy, form);
      const DType wide = AccumulatorOf(dtype);
      const Tensor stats = Empty(wide, {rows, 2}), sums = Empty(wide, {rows});
      Doubles all_stats, all_sums;
      for (const auto& [begin, end] : parts) {
        const auto cut = [&, b = begin, e = end](const Tensor& t) { return t.Narrow(1, b, e - b); };
        ASSERT_THAT(SoftmaxStats(device(), cut(whole), stats), IsOk());
        ASSERT_THAT(SoftmaxGradSums(device(), form, cut(y), cut(dy), sums), IsOk());
        const Doubles stats_here = Read(stats), sums_here = Read(sums);
        all_stats.insert(all_stats.end(), stats_here.begin(), stats_here.end());
        all_sums.insert(all_sums.end(), sums_here.begin(), sums_here.end());
      }
      const Tensor merged = Make(wide, {3, rows, 2}, all_stats);
      const Tensor merged_sums = Make(wide, {3, rows}, all_sums);
      const double bound = dtype == DType::kF64 ? 1e-13 : 1e-5;
      for (const auto& [begin, end] : parts) {
        const auto cut = [&, b = begin, e = end](const Tensor& t) { return t.Narrow(1, b, e - b); };
        const Tensor got = Empty(dtype, {rows, end - begin}), dx = Empty(dtype, got.shape());
        ASSERT_THAT(SoftmaxMerge(device(), form, cut(whole), merged, got), IsOk());
        ASSERT_THAT(SoftmaxGradMerge(device(), form, cut(y), cut(dy), merged_sums, dx), IsOk());
        ExpectNear(Read(got), Read(cut(y)), Epsilon(dtype), bound);
        ExpectNear(Read(dx), Read(cut(Make(dtype, {rows, n}, want_grad))), Epsilon(dtype), bound);
      }
    }
  }
}

// Two dimensions of rows that do not join, also in the statistics.
TEST_P(SoftmaxTest, RowsOfTwoStrides) {
  const int64_t n = 40;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const DType wide = AccumulatorOf(dtype);
    const Tensor x = Make(dtype, {3, 2, n}, RandomValues(6 * n, -8, 8, 1)).Transpose(0, 1);
    const Tensor dy = Make(dtype, {3, 2, n}, RandomValues(6 * n, -1, 1, 2)).Transpose(0, 1);
    const Tensor stats = Make(wide, {3, 2, 2, 2}, RandomValues(24, 1, 9, 3)).Transpose(0, 1);
    const Tensor sums = Make(wide, {3, 2, 2}, RandomValues(12, -1, 1, 4)).Transpose(0, 1);
    const Tensor rows = Make(dtype, {2, 3, n}, Read(x)), grads = Make(dtype, {2, 3, n}, Read(dy));
    for (const SoftmaxForm form : {SoftmaxForm::kPlain, SoftmaxForm::kLog}) {
      EXPECT_EQ(RunSoftmax(x, form), RunSoftmax(rows, form));
      EXPECT_EQ(RunSoftmaxGrad(x, dy, form), RunSoftmaxGrad(rows, grads, form));
      const Tensor got = Empty(dtype, {3, 2, n}), want = Empty(dtype, {3, 2, n});
      const Tensor y = Make(dtype, {3, 2, n}, Read(x)), dz = Make(dtype, {3, 2, n}, Read(dy));
      ASSERT_THAT(SoftmaxMerge(device(), form, y, stats, got), IsOk());
      ASSERT_THAT(SoftmaxMerge(device(), form, y, Make(wide, {2, 3, 2, 2}, Read(stats)), want),
                  IsOk());
      EXPECT_EQ(Read(got), Read(want));
      ASSERT_THAT(SoftmaxGradMerge(device(), form, y, dz, sums, got), IsOk());
      ASSERT_THAT(SoftmaxGradMerge(device(), form, y, dz, Make(wide, {2, 3, 2}, Read(sums)), want),
                  IsOk());
      EXPECT_EQ(Read(got), Read(want));
    }
  }
}

TEST_P(SoftmaxTest, OutputsInPlace) {
  const int64_t rows = 9;
  for (const DType dtype : kFloats) {
    for (const int64_t n : {5, 64, 1027}) {
      const Doubles x = RandomValues(rows * n, -8, 8, 1), dy = RandomValues(rows * n, -1, 1, 2);
      const auto make = [&](const Doubles& values) { return Make(dtype, {rows, n}, values); };
      for (const SoftmaxForm form : {SoftmaxForm::kPlain, SoftmaxForm::kLog}) {
        const Doubles want = RunSoftmax(make(x), form);
        const Tensor y = make(x);
        ASSERT_THAT(Softmax(device(), form, y, y), IsOk());
        EXPECT_EQ(Read(y), want);
        const Doubles want_grad = RunSoftmaxGrad(y, make(dy), form);
        for (const bool over_y : {false, true}) {
          const Tensor in = make(want), grad = make(dy), dx = over_y ? in : grad;
          ASSERT_THAT(SoftmaxGrad(device(), form, in, grad, dx), IsOk());
          EXPECT_EQ(Read(dx), want_grad);
        }
      }
    }
  }
}

// A row whose infinities, NaN and largest element lie far apart, among a block's threads.
TEST_P(SoftmaxTest, LongRowsOfUnlikeParts) {
  const int64_t n = 5003;
  for (const DType dtype : kFloats) {
    Doubles x = Rounded(dtype, RandomValues(4 * n, -8, 8));
    std::fill_n(x.begin(), n - 1, -kInf);
    std::fill_n(x.begin() + n, n / 2, -kInf);
    x[2 * n - 2] = 100;
    std::fill_n(x.begin() + 2 * n, n, -kInf);
    x[3 * n + 2700] = kNaN;
    const Tensor rows = Make(dtype, {4, n}, x);
    const Doubles y = RunSoftmax(rows), log = RunSoftmax(rows, SoftmaxForm::kLog);
    const Doubles two(x.begin(), x.begin() + 2 * n);
    Doubles want = ReferenceSoftmax(two, n), want_log = ReferenceLogSoftmax(two, n);
    for (Doubles* all : {&want, &want_log}) {
      all->insert(all->end(), n, all == &want ? 0 : -kInf);
      all->insert(all->end(), n, kNaN);
    }
    ExpectNear(y, want, 8 * Epsilon(dtype), dtype == DType::kF16 ? 1e-7 : 1e-38);
    ExpectNear(log, want_log, Epsilon(dtype), dtype == DType::kF64 ? 1e-13 : 1e-5);
  }
}

TEST_P(SoftmaxTest, NoElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const SoftmaxForm form : {SoftmaxForm::kPlain, SoftmaxForm::kLog}) {
      EXPECT_EQ(RunSoftmax(Empty(dtype, {0, 4}), form), Doubles());
      EXPECT_EQ(RunSoftmax(Empty(dtype, {4, 0}), form), Doubles());
      EXPECT_EQ(RunSoftmaxGrad(Empty(dtype, {0, 4}), Empty(dtype, {0, 4}), form), Doubles());
    }
    const Tensor stats = Empty(AccumulatorOf(dtype), {2, 2});
    ASSERT_THAT(SoftmaxStats(device(), Empty(dtype, {2, 0}), stats), IsOk());
    EXPECT_EQ(Read(stats), (Doubles{-kInf, 0, -kInf, 0}));
  }
}

}  // namespace
}  // namespace dtensor::kernels
