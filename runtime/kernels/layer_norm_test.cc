#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kEps = 1e-5;
// On a GPU rows above 1024 are a block's, not a warp's, where gradients are concerned.
constexpr int64_t kWidths[] = {1, 3, 8, 16, 17, 64, 100, 333, 1027, 2048};

struct Result {
  Doubles y, mean, rstd;
};
struct Grads {
  Doubles dx, dweight, dbias;
};
struct Parameters {
  Tensor weight, bias;
};

class LayerNormTest : public KernelTest {
 protected:
  Result Run(const Tensor& x, const Parameters& p, const Tensor* stats = nullptr) {
    const DType wide = AccumulatorOf(x.dtype());
    const Dims rows(x.shape().begin(), x.shape().end() - 1);
    const Tensor y = Empty(x.dtype(), x.shape()), mean = Empty(wide, rows),
                 rstd = Empty(wide, rows);
    EXPECT_THAT(LayerNorm(device(), x, p.weight, p.bias, kEps, y, mean, rstd, stats), IsOk());
    return {Read(y), Read(mean), Read(rstd)};
  }
  Grads RunGrad(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                const Tensor& dy, const Tensor* stats = nullptr, int64_t total = 0) {
    const Tensor dx = Empty(x.dtype(), x.shape());
    const Tensor dweight = Empty(x.dtype(), weight.shape()),
                 dbias = Empty(x.dtype(), weight.shape());
    EXPECT_THAT(
        LayerNormGrad(device(), x, weight, mean, rstd, dy, dx, dweight, dbias, stats, total),
        IsOk());
    return {Read(dx), Read(dweight), Read(dbias)};
  }
};
DT_INSTANTIATE_KERNEL_TESTS(LayerNormTest);

Result Reference(const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const size_t n = weight.size();
  Result result{Doubles(x.size()), {}, {}};
  for (size_t row = 0; row < x.size(); row += n) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; ++i) mean += x[row + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(n);
    }
    const double rstd = 1 / std::sqrt(variance + kEps);
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
    for (size_t i = 0; i < n; ++i) {
      result.y[row + i] = (x[row + i] - mean) * rstd * weight[i] + bias[i];
    }
  }
  return result;
}

Grads ReferenceGrad(const Doubles& x, const Doubles& weight, const Result& forward,
                    const Doubles& dy) {
  const size_t n = weight.size();
  Grads result{Doubles(x.size()), Doubles(n), Doubles(n)};
  for (size_t row = 0; row < x.size(); row += n) {
    const double mean = forward.mean[row / n], rstd = forward.rstd[row / n];
    const auto xhat = [&](size_t i) { return (x[row + i] - mean) * rstd; };
    double g_mean = 0, dot_mean = 0;
    for (size_t i = 0; i < n; ++i) {
      const double g = dy[row + i] * weight[i] / static_cast<double>(n);
      g_mean += g;
      dot_mean += g * xhat(i);
      result.dweight[i] += dy[row + i] * xhat(i);
      result.dbias[i] += dy[row + i];
    }
    for (size_t i = 0; i < n; ++i) {
      result.dx[row + i] = rstd * (dy[row + i] * weight[i] - g_mean - xhat(i) * dot_mean);
    }
  }
  return result;
}

// Of terms of the size of rstd, which is large where a row is nearly constant.
double Bound(DType dtype) { return dtype == DType::kF64 ? 1e-12 : 1e-5; }

TEST_P(LayerNormTest, OfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles x = Rounded(dtype, RandomValues(6 * n, -2, 2, 1));
      const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Doubles b = Rounded(dtype, RandomValues(n, -1, 1, 3));
      const Result want = Reference(x, w, b);
      const Result got = Run(Make(dtype, {2, 3, n}, x), {Make(dtype, {n}, w), Make(dtype, {n}, b)});
      ExpectNear(got.y, want.y, Epsilon(dtype), Bound(dtype));
      ExpectNear(got.mean, want.mean, Bound(dtype), Bound(dtype));
      ExpectNear(got.rstd, want.rstd, Bound(dtype), 0);
    }
  }
}

// Rows of so many bytes that a GPU keeps one in a warp, in a block, and in neither, and from where
// it may not keep any.
TEST_P(LayerNormTest, LongRowsHaveTheSameBitsFromEveryAddress) {
  for (const DType dtype : kFloats) {
    for (const int64_t bytes : {4112, 8192, 8208, 20'000, 40'000}) {
      const int64_t rows = 3, n = bytes / SizeOf(dtype);
      const Doubles x = Rounded(dtype, RandomValues(rows * n, -2, 2, 1));
      const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Doubles b = Rounded(dtype, RandomValues(n, -1, 1, 3));
      const Parameters parameters = {Make(dtype, {n}, w), Make(dtype, {n}, b)};
      const Result reference = Reference(x, w, b);
      const Result want = Run(Make(dtype, {rows, n}, x), parameters);
      ExpectNear(want.y, reference.y, Epsilon(dtype), Bound(dtype));
      ExpectNear(want.mean, reference.mean, Bound(dtype), Bound(dtype));
      ExpectNear(want.rstd, reference.rstd, Bound(dtype), 0);
      const Result got = Run(MakeInside(dtype, rows, n, x), parameters);
      EXPECT_EQ(got.y, want.y) << bytes;
      EXPECT_EQ(got.mean, want.mean) << bytes;
      EXPECT_EQ(got.rstd, want.rstd) << bytes;
    }
  }
}

TEST_P(LayerNormTest, GradOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      if (n == 1) continue;  // below: differences of what is nearly 1 / sqrt(eps)
      const Doubles x = Rounded(dtype, RandomValues(6 * n, -2, 2, 1));
      const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Doubles dy = Rounded(dtype, RandomValues(6 * n, -1, 1, 3));
      const DType wide = AccumulatorOf(dtype);
      Result forward = Reference(x, w, Doubles(n));
      forward.mean = Rounded(wide, forward.mean);
      forward.rstd = Rounded(wide, forward.rstd);
      const Grads want = ReferenceGrad(x, w, forward, dy);
      const Grads got =
          RunGrad(Make(dtype, {6, n}, x), Make(dtype, {n}, w), Make(wide, {6}, forward.mean),
                  Make(wide, {6}, forward.rstd), Make(dtype, {6, n}, dy));
      ExpectNear(got.dx, want.dx, Epsilon(dtype), Bound(dtype));
      ExpectNear(got.dweight, want.dweight, Epsilon(dtype), Bound(dtype));
      ExpectNear(got.dbias, want.dbias, Epsilon(dtype), Bound(dtype));
    }
  }
}

// A row of one element is its own mean.
TEST_P(LayerNormTest, OneColumnIsTheBias) {
  const Tensor x = Make(DType::kF32, {3, 1}, {5, -7, 1e6}), one = Make(DType::kF32, {1}, {1});
  EXPECT_EQ(Run(x, {one, Make(DType::kF32, {1}, {.5})}).y, Doubles(3, .5));
  const Tensor mean = Make(DType::kF32, {3}, {5, -7, 1e6}),
               rstd = Make(DType::kF32, {3}, {3, 3, 3});
  EXPECT_EQ(RunGrad(x, one, mean, rstd, x).dx, Doubles(3, 0));
}

// Squares about zero would leave nothing of a variance of 1: 1e8 has a last bit of 8. Nor does the
// mean of many lose what the sum of them rounds away.
TEST_P(LayerNormTest, ALargeMeanCostsNoDigitsOfTheVariance) {
  for (const int64_t n : {64, 1000, 20'000}) {
    Doubles x = RandomValues(2 * n, 1e4 - std::sqrt(3), 1e4 + std::sqrt(3), 1);
    x = Rounded(DType::kF32, x);
    const Result want = Reference(x, Doubles(n, 1), Doubles(n, 0));
    const Tensor one = Make(DType::kF32, {n}, Doubles(n, 1));
    const Result got = Run(Make(DType::kF32, {2, n}, x), {one, Make(DType::kF32, {n}, Doubles(n))});
    ExpectNear(got.mean, want.mean, 0, 1e-3);  // the last bit of 1e4
    ExpectNear(got.rstd, want.rstd, 4e-6, 0);
    ExpectNear(got.y, want.y, 0, 1e-3);
  }
}

TEST_P(LayerNormTest, OfViews) {
  const int64_t rows = 7, n = 40;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
    const Tensor w = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 3));
    const Tensor b = Make(dtype, {1}, {.25}).BroadcastTo({n});
    const Tensor plain = Make(dtype, {rows, n}, x);
    const Result want = Run(plain, {w, b});
    EXPECT_EQ(Run(MakeTransposed(dtype, rows, n, x), {w, b}).y, want.y);
    EXPECT_EQ(Run(MakeInside(dtype, rows, n, x), {w, b}).y, want.y);
    const DType wide = AccumulatorOf(dtype);
    const Tensor mean = Make(wide, {rows}, want.mean), rstd = Make(wide, {rows}, want.rstd);
    const Grads grads = RunGrad(plain, w, mean, rstd, Make(dtype, {rows, n}, dy));
    const Grads got =
        RunGrad(MakeInside(dtype, rows, n, x), w, mean, rstd, MakeTransposed(dtype, rows, n, dy));
    EXPECT_EQ(got.dx, grads.dx);
    EXPECT_EQ(got.dweight, grads.dweight);
    EXPECT_EQ(got.dbias, grads.dbias);
  }
}

// Rows that a GPU reads once, for all gradients at a time, and twice where they lie otherwise; a
// shard that is all there is has the bits of rows that are whole.
TEST_P(LayerNormTest, LongRowsGradHasTheSameBitsFromEveryAddress) {
  for (const DType dtype : kFloats) {
    const DType wide = AccumulatorOf(dtype);
    for (const int64_t n : {1032, 2056, 4104}) {
      if (n > 2048 && dtype != DType::kF32 && dtype != DType::kBF16) continue;  // they take long
      const int64_t rows = 19;
      const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
      const Doubles w = RandomValues(n, 0.5, 1.5, 3);
      const Tensor weight = Make(dtype, {n}, w), grad = Make(dtype, {rows, n}, dy);
      const Tensor mean = Make(wide, {rows}, RandomValues(rows, -1, 1, 4)),
                   rstd = Make(wide, {rows}, RandomValues(rows, 0.5, 1.5, 5));
      const Tensor plain = Make(dtype, {rows, n}, x), sums = Empty(wide, {1, rows, 2});
      const Grads want = RunGrad(plain, weight, mean, rstd, grad);
      const Grads inside = RunGrad(MakeInside(dtype, rows, n, x), weight, mean, rstd, grad);
      EXPECT_EQ(inside.dx, want.dx) << n;
      EXPECT_EQ(inside.dweight, want.dweight) << n;
      EXPECT_EQ(inside.dbias, want.dbias) << n;
      ASSERT_THAT(LayerNormGradSums(device(), plain, weight, mean, rstd, grad,
                                    sums.View({rows, 2}, {2, 1}, 0)),
                  IsOk());
      const Grads staged = RunGrad(plain, weight, mean, rstd, grad, &sums, n);
      EXPECT_EQ(staged.dx, want.dx) << n;
      EXPECT_EQ(staged.dweight, want.dweight) << n;
      const Grads reference = ReferenceGrad(Rounded(dtype, x), Rounded(dtype, w),
                                            {{}, Read(mean), Read(rstd)}, Rounded(dtype, dy));
      ExpectNear(want.dx, reference.dx, Epsilon(dtype), Bound(dtype));
      ExpectNear(want.dweight, reference.dweight, Epsilon(dtype), 10 * Bound(dtype));
      ExpectNear(want.dbias, reference.dbias, Epsilon(dtype), 10 * Bound(dtype));
    }
  }
}

// Shards of 5, 0 and the other columns, about a mean that is large: each makes its statistics, and
// all merge them.
TEST_P(LayerNormTest, InStagesItIsThatOfWholeRows) {
  const int64_t rows = 6, n = 37;
  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 5}, {5, 5}, {5, n}};
  for (const double centre : {0., 1e4}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Doubles x = Rounded(dtype, RandomValues(rows * n, centre - 2, centre + 2, 1));
      const Tensor whole = Make(dtype, {rows, n}, x), w = Make(dtype, {n}, RandomValues(n, .5, 2));
      const Tensor b = Make(dtype, {n}, RandomValues(n, -1, 1, 2));
      const Tensor dy = Make(dtype, {rows, n}, RandomValues(rows * n, -1, 1, 3));
      const Result want = Reference(x, Read(w), Read(b));
      const Grads grads = ReferenceGrad(x, Read(w), want, Read(dy));
      const Tensor mean = Make(dtype, {rows}, want.mean), rstd = Make(dtype, {rows}, want.rstd);
      const Tensor moments = Empty(DType::kF64, {rows, 3}), sums = Empty(dtype, {rows, 2});
      Doubles all_moments, all_sums;
      for (const auto& [begin, end] : parts) {
        const auto cut = [&, b0 = begin, e = end](const Tensor& t) {
          return t.Narrow(t.ndim() - 1, b0, e - b0);
        };
        ASSERT_THAT(RowMoments(device(), cut(whole), moments), IsOk());
        ASSERT_THAT(LayerNormGradSums(device(), cut(whole), cut(w), mean, rstd, cut(dy), sums),
                    IsOk());
        const Doubles here = Read(moments), sums_here = Read(sums);
        all_moments.insert(all_moments.end(), here.begin(), here.end());
        all_sums.insert(all_sums.end(), sums_here.begin(), sums_here.end());
      }
      const Tensor merged = Make(DType::kF64, {3, rows, 3}, all_moments);
      const Tensor merged_sums = Make(dtype, {3, rows, 2}, all_sums);
      // The last bit of the mean, where it is large.
      const double bound = dtype == DType::kF64 ? 1e-11 : centre > 0 ? 2e-3 : 1e-5;
      for (const auto& [begin, end] : parts) {
        const auto cut = [&, b0 = begin, e = end](const Tensor& t) {
          return t.Narrow(t.ndim() - 1, b0, e - b0);
        };
        const Result got = Run(cut(whole), {cut(w), cut(b)}, &merged);
        ExpectNear(got.mean, want.mean, 1e-7, bound);
        ExpectNear(got.rstd, want.rstd, dtype == DType::kF64 ? 1e-13 : 1e-5, 0);
        ExpectNear(got.y, Read(cut(Make(dtype, {rows, n}, want.y))), 0, bound);
        const Grads got_grads = RunGrad(cut(whole), cut(w), mean, rstd, cut(dy), &merged_sums, n);
        ExpectNear(got_grads.dx, Read(cut(Make(dtype, {rows, n}, grads.dx))), 0, bound);
        ExpectNear(got_grads.dweight, Read(cut(Make(dtype, {n}, grads.dweight))), 0, 4 * bound);
        ExpectNear(got_grads.dbias, Read(cut(Make(dtype, {n}, grads.dbias))), 0, bound);
      }
    }
  }
}

// Two dimensions of rows that do not join, also in the statistics.
TEST_P(LayerNormTest, RowsOfTwoStrides) {
  const int64_t n = 40;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const DType wide = AccumulatorOf(dtype);
    const Tensor x = Make(dtype, {3, 2, n}, RandomValues(6 * n, -2, 2, 1)).Transpose(0, 1);
    const Tensor dy = Make(dtype, {3, 2, n}, RandomValues(6 * n, -1, 1, 2)).Transpose(0, 1);
    const Tensor mean = Make(wide, {3, 2}, RandomValues(6, -1, 1, 3)).Transpose(0, 1);
    const Tensor rstd = Make(wide, {3, 2}, RandomValues(6, 0.5, 1.5, 4)).Transpose(0, 1);
    const Tensor w = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 5));
    const Tensor b = Make(dtype, {2 * n}, RandomValues(2 * n, -1, 1, 6)).View({n}, {2}, 1);
    const Tensor rows = Make(dtype, {2, 3, n}, Read(x));
    const Result want = Run(rows, {w, Make(dtype, {n}, Read(b))}), got = Run(x, {w, b});
    EXPECT_EQ(got.y, want.y);
    EXPECT_EQ(got.mean, want.mean);
    EXPECT_EQ(got.rstd, want.rstd);
    const Grads want_grads =
        RunGrad(rows, w, Make(wide, {2, 3}, Read(mean)), Make(wide, {2, 3}, Read(rstd)),
                Make(dtype, {2, 3, n}, Read(dy)));
    const Grads grads = RunGrad(x, w, mean, rstd, dy);
    EXPECT_EQ(grads.dx, want_grads.dx);
    EXPECT_EQ(grads.dweight, want_grads.dweight);
    EXPECT_EQ(grads.dbias, want_grads.dbias);
  }
}

TEST_P(LayerNormTest, OutputsInPlace) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {5, 64, 1027, 1032}) {
      const int64_t rows = n > 1024 ? 9 : 70;
      const Doubles x = RandomValues(rows * n, -2, 2, 1), dy = RandomValues(rows * n, -1, 1, 2);
      const auto make = [&](const Doubles& values) { return Make(dtype, {rows, n}, values); };
      const Tensor w = Make(dtype, {n}, RandomValues(n, 0.5, 1.5, 3));
      const Tensor b = Make(dtype, {n}, RandomValues(n, -1, 1, 4));
      const DType wide = AccumulatorOf(dtype);
      const Tensor mean = Empty(wide, {rows}), rstd = Empty(wide, {rows});
      const Result want = Run(make(x), {w, b});
      const Tensor y = make(x);
      ASSERT_THAT(LayerNorm(device(), y, w, b, kEps, y, mean, rstd), IsOk());
      EXPECT_EQ(Read(y), want.y);
      EXPECT_EQ(Read(mean), want.mean);
      EXPECT_EQ(Read(rstd), want.rstd);
      const Grads grads = RunGrad(make(x), w, mean, rstd, make(dy));
      const Tensor dw = Empty(dtype, {n}), db = Empty(dtype, {n});
      for (const bool over_x : {false, true}) {
        const Tensor in = make(x), grad = make(dy), dx = over_x ? in : grad;
        ASSERT_THAT(LayerNormGrad(device(), in, w, mean, rstd, grad, dx, dw, db), IsOk());
        EXPECT_EQ(Read(dx), grads.dx);
        EXPECT_EQ(Read(dw), grads.dweight);
        EXPECT_EQ(Read(db), grads.dbias);
      }
    }
  }
}

// Sums of many rows, the last of whose parts is smaller.
TEST_P(LayerNormTest, ParameterGradientsOfManyRows) {
  const int64_t rows = 203;
  for (const DType dtype : kFloats) {
    for (const int64_t n : {2, 40}) {
      const Doubles x = Rounded(dtype, RandomValues(rows * n, -2, 2, 1));
      const Doubles w = Rounded(dtype, RandomValues(n, 0.5, 1.5, 2));
      const Doubles dy = Rounded(dtype, RandomValues(rows * n, -1, 1, 3));
      const DType wide = AccumulatorOf(dtype);
      Result forward;
      forward.mean = Rounded(wide, RandomValues(rows, -1, 1, 4));
      forward.rstd = Rounded(wide, RandomValues(rows, 0.5, 1.5, 5));
      const Grads want = ReferenceGrad(x, w, forward, dy);
      const Grads got =
          RunGrad(Make(dtype, {rows, n}, x), Make(dtype, {n}, w), Make(wide, {rows}, forward.mean),
                  Make(wide, {rows}, forward.rstd), Make(dtype, {rows, n}, dy));
      ExpectNear(got.dweight, want.dweight, Epsilon(dtype), 100 * Bound(dtype));
      ExpectNear(got.dbias, want.dbias, Epsilon(dtype), 100 * Bound(dtype));
    }
  }
}

// Narrow inputs, sums in f32.
TEST_P(LayerNormTest, ParameterGradientsAccumulateInF32) {
  const int64_t rows = 2000;
  const Tensor x = Make(DType::kBF16, {rows, 1}, Doubles(rows, 1));
  const Tensor zeros = Make(DType::kF32, {rows}, Doubles(rows, 0));
  const Tensor ones = Make(DType::kF32, {rows}, Doubles(rows, 1));
  const Grads got = RunGrad(x, Make(DType::kBF16, {1}, {1}), zeros, ones, x);
  EXPECT_EQ(got.dweight, Doubles{2000});
  EXPECT_EQ(got.dbias, Doubles{2000});
}

TEST_P(LayerNormTest, NoElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const DType wide = AccumulatorOf(dtype);
    const Tensor w = Make(dtype, {4}, Doubles(4, 1)), none = Empty(dtype, {0});
    EXPECT_EQ(Run(Empty(dtype, {0, 4}), {w, w}).y, Doubles());
    EXPECT_EQ(Run(Empty(dtype, {3, 0}), {none, none}).mean, Doubles(3, 0));
    // No rows: the gradients of the parameters are zero, not unwritten.
    const Tensor no_rows = Empty(wide, {0});
    const Grads got = RunGrad(Empty(dtype, {0, 4}), w, no_rows, no_rows, Empty(dtype, {0, 4}));
    EXPECT_EQ(got.dweight, Doubles(4, 0));
    EXPECT_EQ(got.dbias, Doubles(4, 0));
  }
}

}  // namespace
}  // namespace dtensor::kernels
