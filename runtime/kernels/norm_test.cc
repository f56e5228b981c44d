#include "dtensor/runtime/kernels/norm.h"

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

struct RmsNormResult {
  Doubles y, rstd;
};
struct RmsNormGrads {
  Doubles dx, dweight;
};

class NormTest : public KernelTest {
 protected:
  Doubles RunSoftmax(const Tensor& x) {
    const Tensor y = Empty(x.dtype(), x.shape());
    EXPECT_THAT(Softmax(device(), x, y), IsOk());
    return Read(y);
  }
  Doubles RunSoftmaxGrad(const Tensor& y, const Tensor& dy) {
    const Tensor dx = Empty(y.dtype(), y.shape());
    EXPECT_THAT(SoftmaxGrad(device(), y, dy, dx), IsOk());
    return Read(dx);
  }
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

constexpr int64_t kWidths[] = {1, 3, 8, 16, 17, 64, 100, 333};

TEST_P(NormTest, SoftmaxOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : kWidths) {
      const Doubles x = Rounded(dtype, RandomValues(7 * n, -8, 8));
      ExpectNear(RunSoftmax(Make(dtype, {7, n}, x)), ReferenceSoftmax(x, n), Epsilon(dtype),
                 dtype == DType::kF16 ? 1e-7 : 0);
    }
  }
}

TEST_P(NormTest, SoftmaxOfLargeValuesDoesNotOverflow) {
  const Doubles x = {1000, 999, 998, -1000, 3e38, 3e38, 0, -3e38};
  ExpectNear(RunSoftmax(Make(DType::kF32, {2, 4}, x)), ReferenceSoftmax(x, 4), 1e-6, 1e-38);
}

TEST_P(NormTest, SoftmaxOfMaskedRows) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {3, 3}, {-kInf, -kInf, -kInf, 0, -kInf, 0, kNaN, 0, -kInf});
    ExpectNear(RunSoftmax(x), {0, 0, 0, 0.5, 0, 0.5, kNaN, kNaN, kNaN}, Epsilon(dtype), 0);
  }
  ExpectNear(RunSoftmax(Make(DType::kF32, {1, 2}, {-kInf, kNaN})), {kNaN, kNaN}, 0, 0);
}

TEST_P(NormTest, SoftmaxOfViews) {
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

TEST_P(NormTest, SoftmaxGrad) {
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

TEST_P(NormTest, SoftmaxGradAgreesWithDifferences) {
  const Doubles x = RandomValues(24, -3, 3, 1), dy = RandomValues(24, -2, 2, 2);
  const auto forward = [&](const Doubles& at) { return RunSoftmax(Make(DType::kF64, {3, 8}, at)); };
  ExpectNear(RunSoftmaxGrad(Make(DType::kF64, {3, 8}, forward(x)), Make(DType::kF64, {3, 8}, dy)),
             NumericGradient(x, dy, forward), 1e-6, 1e-9);
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

TEST_P(NormTest, NoElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    EXPECT_EQ(RunSoftmax(Empty(dtype, {0, 4})), Doubles());
    EXPECT_EQ(RunSoftmax(Empty(dtype, {4, 0})), Doubles());
    EXPECT_EQ(RunSoftmaxGrad(Empty(dtype, {0, 4}), Empty(dtype, {0, 4})), Doubles());
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
