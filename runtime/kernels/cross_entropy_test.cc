#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using ::testing::HasSubstr;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kIgnore = -100;

struct Loss {
  Doubles max, log_sum, loss;
};

class CrossEntropyTest : public KernelTest {
 protected:
  Tensor Stats(const Tensor& logits, const Tensor& targets, const IndexSet& classes,
               int64_t num_classes) {
    const CrossEntropyTerms terms = {num_classes, kIgnore, smoothing};
    const Tensor stats = Empty(AccumulatorOf(logits.dtype()), {logits.size(0), terms.num_stats()});
    EXPECT_THAT(CrossEntropyStats(device(), logits, targets, classes, terms, stats), IsOk());
    return stats;
  }
  Loss Merge(const Tensor& stats, const Tensor& targets, int64_t num_classes) {
    const CrossEntropyTerms terms = {num_classes, kIgnore, smoothing};
    const Dims rows = {stats.size(1)};
    const LogSumExp lse = {Empty(stats.dtype(), rows), Empty(stats.dtype(), rows)};
    const Tensor loss = Empty(stats.dtype(), rows);
    EXPECT_THAT(CrossEntropyMerge(device(), stats, targets, terms, lse, loss), IsOk());
    return {Read(lse.max), Read(lse.log_sum), Read(loss)};
  }
  LogSumExp Lse(DType wide, const Loss& of) {
    const Dims rows = {static_cast<int64_t>(of.max.size())};
    return {Make(wide, rows, of.max), Make(wide, rows, of.log_sum)};
  }
  Doubles Grad(const Tensor& logits, const Tensor& targets, const IndexSet& classes,
               const LogSumExp& lse, const Tensor& dloss, int64_t num_classes = 0) {
    const CrossEntropyTerms terms = {num_classes, kIgnore, smoothing};
    const Tensor dlogits = Empty(logits.dtype(), logits.shape());
    EXPECT_THAT(CrossEntropyGrad(device(), logits, targets, classes, terms, lse, dloss, dlogits),
                IsOk());
    return Read(dlogits);
  }
  Loss RunWhole(const Tensor& logits, const Tensor& targets) {
    const int64_t rows = logits.size(0), n = logits.size(1);
    const Tensor stats = Stats(logits, targets, IndexSet::Interval(0, n), n);
    const int64_t width = stats.size(1);
    return Merge(stats.View({1, rows, width}, {width * rows, width, 1}, 0), targets, n);
  }

  double smoothing = 0;
};
DT_INSTANTIATE_KERNEL_TESTS(CrossEntropyTest);

Loss Reference(const Doubles& logits, const Doubles& targets) {
  const size_t n = logits.size() / targets.size();
  Loss result;
  for (size_t t = 0; t < targets.size(); ++t) {
    const double* x = logits.data() + t * n;
    const double max = *std::max_element(x, x + n);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
    result.max.push_back(max);
    result.log_sum.push_back(std::log(sum));
    const bool ignored = targets[t] == kIgnore;
    result.loss.push_back(ignored ? 0
                                  : result.log_sum[t] - (x[static_cast<size_t>(targets[t])] - max));
  }
  return result;
}

// A relative and an absolute error of losses: they are differences of logits.
double Bound(DType dtype) { return dtype == DType::kF64 ? 1e-13 : 2e-6; }

TEST_P(CrossEntropyTest, LossOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 3, 16, 37, 256, 1000, 1027, 5000}) {
      const Doubles x = Rounded(dtype, RandomValues(5 * n, -8, 8));
      Doubles targets = RandomWhole(5, 0, static_cast<double>(n), 2);
      targets[3] = kIgnore;
      const Loss want = Reference(x, targets);
      for (const DType id : {DType::kI32, DType::kI64}) {
        const Loss got = RunWhole(Make(dtype, {5, n}, x), Make(id, {5}, targets));
        EXPECT_EQ(got.max, want.max);
        ExpectNear(got.log_sum, want.log_sum, Bound(dtype), Bound(dtype));
        ExpectNear(got.loss, want.loss, Bound(dtype), Bound(dtype));
        EXPECT_EQ(got.loss[3], 0);
      }
    }
  }
}

TEST_P(CrossEntropyTest, StatsAreMaxSumAndTargetLogit) {
  const Tensor x = Make(DType::kF32, {3, 2}, {1, 3, -2, -2, 5, 4});
  const Tensor targets = Make(DType::kI32, {3}, {4, 5, 0});
  const Doubles got = Read(Stats(x, targets, IndexSet::Interval(4, 6), 8));
  const double e = std::exp(-1), e2 = std::exp(-2);
  ExpectNear(got, {3, 1 + e2, 1, -2, 2, -2, 5, 1 + e, 0}, 1e-6, 0);
}

TEST_P(CrossEntropyTest, ShardsOfTheClassesGiveTheWholeLoss) {
  const int64_t rows = 6, n = 20;
  const dtensor::IndexRun dealt[] = {{0, 3, 10, 2}};  // 0, 1, 2, 10, 11, 12
  const dtensor::IndexRun others[] = {{3, 7, 10, 2}};
  const IndexSet sets[] = {IndexSet::FromIntervals(dealt), IndexSet(),
                           IndexSet::FromIntervals(others)};
  for (const DType dtype : kFloats) {
    const Doubles x = Rounded(dtype, RandomValues(rows * n, -8, 8));
    const Doubles target_values = {0, 12, 13, 19, kIgnore, 3};
    const Tensor targets = Make(DType::kI32, {rows}, target_values);
    Doubles all_stats, dlogits(rows * n);
    const Loss want = Reference(x, target_values);
    const DType wide = AccumulatorOf(dtype);
    const LogSumExp lse = Lse(wide, want);
    const Doubles dloss = RandomValues(rows, -1, 1, 3);
    for (const IndexSet& classes : sets) {
      Doubles part;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < classes.size(); ++c) part.push_back(x[r * n + classes.At(c)]);
      }
      const Tensor logits = Make(dtype, {rows, classes.size()}, part);
      const Doubles stats = Read(Stats(logits, targets, classes, n));
      all_stats.insert(all_stats.end(), stats.begin(), stats.end());
      const Doubles grad = Grad(logits, targets, classes, lse, Make(wide, {rows}, dloss));
      for (int64_t i = 0; i < static_cast<int64_t>(grad.size()); ++i) {
        dlogits[i / classes.size() * n + classes.At(i % classes.size())] = grad[i];
      }
    }
    const Loss got = Merge(Make(wide, {3, rows, 3}, all_stats), targets, n);
    EXPECT_EQ(got.max, want.max);
    ExpectNear(got.log_sum, want.log_sum, Bound(dtype), Bound(dtype));
    ExpectNear(got.loss, want.loss, Bound(dtype), Bound(dtype));
    // The gradient of the shards, put together, is the gradient of the whole, bit by bit.
    EXPECT_EQ(dlogits, Grad(Make(dtype, {rows, n}, x), targets, IndexSet::Interval(0, n), lse,
                            Make(wide, {rows}, dloss)));
  }
}

TEST_P(CrossEntropyTest, NoClassesHere) {
  const Tensor targets = Make(DType::kI32, {2}, {0, 3});
  EXPECT_EQ(Read(Stats(Empty(DType::kF32, {2, 0}), targets, IndexSet(), 4)),
            Doubles({-kInf, 0, 0, -kInf, 0, 0}));
  const Tensor none = Empty(DType::kF32, {2, 0}), zeros = Make(DType::kF32, {2}, {0, 0});
  EXPECT_EQ(Grad(none, targets, IndexSet(), {zeros, zeros}, zeros), Doubles());
}

TEST_P(CrossEntropyTest, LargeAndMaskedLogits) {
  const Tensor x = Make(DType::kF32, {3, 3}, {1000, 0, -1000, -kInf, 2, -kInf, 3e38, 3e38, 0});
  const Loss got = RunWhole(x, Make(DType::kI32, {3}, {0, 1, 2}));
  ExpectNear(got.loss, {0, 0, 3e38}, 1e-6, 0);
}

// Logits k / 16, also behind an offset of 2^19 (f64: 2^48): their differences are the same numbers.
TEST_P(CrossEntropyTest, ANumberInAllLogitsChangesNothing) {
  const int64_t rows = 4;
  for (const double s : {0., .3}) {
    smoothing = s;
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const int64_t n : {5, 300, 3000}) {
        const Doubles x = RandomWhole(rows * n, -100, 100);
        const Tensor targets = Make(DType::kI64, {rows}, RandomWhole(rows, 0, n, 2));
        const Tensor dloss = Make(dtype, {rows}, Doubles(rows, 1));
        std::vector<std::pair<Doubles, Doubles>> losses_and_gradients;
        for (const double offset : {0., dtype == DType::kF32 ? 0x1p19 : 0x1p48}) {
          Doubles logits;
          for (const double value : x) logits.push_back(value / 16 + offset);
          const Tensor all = Make(dtype, {rows, n}, logits);
          const Loss got = RunWhole(all, targets);
          losses_and_gradients.emplace_back(
              got.loss, Grad(all, targets, IndexSet::Interval(0, n), Lse(dtype, got), dloss, n));
        }
        EXPECT_EQ(losses_and_gradients[0], losses_and_gradients[1]) << n;
      }
    }
  }
}

// NaN counts for nothing in the largest, and makes all sums NaN, wherever it stands; so does +inf.
TEST_P(CrossEntropyTest, NanAndInfinities) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloats) {
    for (const int64_t n : {5, 1500}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        Doubles x(4 * n, -1);  // the target is none of those below
        x[at] = nan;
        x[n + at] = kInf;
        x[2 * n + at] = -kInf;
        std::fill(x.begin() + 3 * n, x.end(), nan);
        const Doubles got =
            Read(Stats(Make(dtype, {4, n}, x), Make(DType::kI32, {4}, Doubles(4, n == 5 ? 3 : 9)),
                       IndexSet::Interval(0, n), n));
        const double rest = static_cast<double>(n - 1);
        ExpectNear(got, {-1, nan, -1, kInf, nan, -1, -1, rest, -1, -kInf, nan, nan}, 1e-6, 0);
      }
    }
  }
}

TEST_P(CrossEntropyTest, GradOfAllTypesAndWidths) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 3, 16, 37, 256, 1027, 5000}) {
      const Doubles x = Rounded(dtype, RandomValues(4 * n, -3, 3, 1));
      Doubles targets = RandomWhole(4, 0, static_cast<double>(n), 2);
      targets[1] = kIgnore;
      const DType wide = AccumulatorOf(dtype);
      const Loss of = Reference(x, targets);
      const Doubles dloss = {0.5, kInf, -1, 0.25};
      const Doubles got = Grad(Make(dtype, {4, n}, x), Make(DType::kI32, {4}, targets),
                               IndexSet::Interval(0, n), Lse(wide, of), Make(wide, {4}, dloss));
      Doubles want(4 * n, 0);  // and zeros where the target is ignored, whatever dloss is
      for (int64_t i = 0; i < 4 * n; ++i) {
        const int64_t t = i / n;
        if (t == 1) continue;
        const double p = std::exp(x[i] - of.max[t] - of.log_sum[t]) - (i % n == targets[t] ? 1 : 0);
        want[i] = p * dloss[t];
      }
      ExpectNear(got, want, Epsilon(dtype), dtype == DType::kF64 ? 1e-15 : 1e-6);
    }
  }
}

TEST_P(CrossEntropyTest, GradAgreesWithDifferences) {
  const int64_t rows = 3, n = 7;
  const Doubles x = RandomValues(rows * n, -3, 3, 1), dloss = RandomValues(rows, -1, 1, 2);
  const Tensor targets = Make(DType::kI64, {rows}, {6, kIgnore, 2});
  const auto make = [&](const Doubles& v) { return Make(DType::kF64, {rows, n}, v); };
  const LogSumExp lse = Lse(DType::kF64, RunWhole(make(x), targets));
  ExpectNear(
      Grad(make(x), targets, IndexSet::Interval(0, n), lse, Make(DType::kF64, {rows}, dloss)),
      NumericGradient(x, dloss,
                      [&](const Doubles& at) { return RunWhole(make(at), targets).loss; }),
      1e-6, 1e-9);
}

TEST_P(CrossEntropyTest, AnyStrides) {
  const int64_t rows = 5;
  for (const int64_t n : {40, 1500}) {
    const Doubles x = RandomValues(rows * n, -3, 3), targets = RandomWhole(rows, 0, n, 2);
    const Tensor plain = Make(DType::kF32, {rows, n}, x);
    const Tensor ids = Make(DType::kI32, {rows}, targets);
    const Tensor strided_ids = MakeInside(DType::kI32, rows, 1, targets).View({rows}, {4}, 0);
    const Loss want = RunWhole(plain, ids);
    const LogSumExp lse = Lse(DType::kF32, want);
    const Tensor mean = Make(DType::kF32, {}, {0.2}).BroadcastTo({rows});  // of a mean over rows
    const Doubles grad = Grad(plain, ids, IndexSet::Interval(0, n), lse, mean);
    for (const Tensor& logits :
         {MakeTransposed(DType::kF32, rows, n, x), MakeInside(DType::kF32, rows, n, x)}) {
      EXPECT_EQ(RunWhole(logits, strided_ids).loss, want.loss);
      EXPECT_EQ(Grad(logits, strided_ids, IndexSet::Interval(0, n), lse, mean), grad);
    }
  }
}

TEST_P(CrossEntropyTest, GradInPlace) {
  for (const int64_t n : {37, 1500}) {
    const Tensor x = Make(DType::kF32, {2, n}, RandomValues(2 * n, -3, 3));
    const Tensor targets = Make(DType::kI32, {2}, {5, 36}), one = Make(DType::kF32, {2}, {1, 1});
    const LogSumExp lse = Lse(DType::kF32, RunWhole(x, targets));
    const Doubles want = Grad(x, targets, IndexSet::Interval(0, n), lse, one);
    ASSERT_THAT(
        CrossEntropyGrad(device(), x, targets, IndexSet::Interval(0, n), {n, kIgnore}, lse, one, x),
        IsOk());
    EXPECT_EQ(Read(x), want);
  }
}

TEST_P(CrossEntropyTest, ATargetOutOfRangeFailsTheDevice) {
  const Tensor x = Make(DType::kF32, {2, 3}, Doubles(6, 0)), stats = Empty(DType::kF32, {2, 3});
  (void)CrossEntropyStats(device(), x, Make(DType::kI32, {2}, {1, 9}), IndexSet::Interval(0, 3),
                          {9, kIgnore}, stats);
  EXPECT_EQ(device().Synchronize(),
            absl::OutOfRangeError("CrossEntropy: target 9 at position 1 is outside [0, 9)"));
}

// The cross-entropy of the probabilities and of (1 - s) onehot(target) + s / K, term by term.
double SmoothedReference(const double* x, int64_t n, int64_t target, double s) {
  double sum = 0, loss = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i]);
  for (int64_t i = 0; i < n; ++i) {
    const double wanted = (i == target ? 1 - s : 0) + s / static_cast<double>(n);
    loss -= wanted * (x[i] - std::log(sum));
  }
  return loss;
}

TEST_P(CrossEntropyTest, SmoothedLabels) {
  const int64_t rows = 4;
  for (const double s : {.1, .5, 1.}) {
    smoothing = s;
    for (const DType dtype : kFloats) {
      for (const int64_t n : {1, 3, 37, 300, 1500}) {
        const Doubles x = Rounded(dtype, RandomValues(rows * n, -4, 4));
        Doubles targets = RandomWhole(rows, 0, static_cast<double>(n), 2);
        targets[2] = kIgnore;
        const Tensor ids = Make(DType::kI64, {rows}, targets);
        const Loss got = RunWhole(Make(dtype, {rows, n}, x), ids);
        Doubles want;
        for (int64_t t = 0; t < rows; ++t) {
          const auto target = static_cast<int64_t>(targets[t]);
          want.push_back(t == 2 ? 0 : SmoothedReference(x.data() + t * n, n, target, s));
        }
        ExpectNear(got.loss, want, 2 * Bound(dtype), 2 * Bound(dtype));
        const DType wide = AccumulatorOf(dtype);
        const Doubles grad = Grad(Make(dtype, {rows, n}, x), ids, IndexSet::Interval(0, n),
                                  Lse(wide, got), Make(wide, {rows}, Doubles(rows, 2)), n);
        Doubles want_grad(rows * n);
        for (int64_t i = 0; i < rows * n; ++i) {
          const int64_t t = i / n;
          const double wanted = (i % n == targets[t] ? 1 - s : 0) + s / static_cast<double>(n);
          const double p = std::exp(x[i] - got.max[t] - got.log_sum[t]);
          want_grad[i] = t == 2 ? 0 : 2 * (p - wanted);
        }
        ExpectNear(grad, want_grad, Epsilon(dtype), dtype == DType::kF64 ? 1e-14 : 2e-6);
      }
    }
  }
}

// Columns after the classes are not read, whatever stands there, and get zeros.
TEST_P(CrossEntropyTest, PaddingTakesNoPart) {
  const int64_t rows = 3, n = 21, padded = 40;
  for (const double s : {0., .2}) {
    smoothing = s;
    for (const DType dtype : kFloats) {
      const Doubles x = Rounded(dtype, RandomValues(rows * n, -4, 4));
      Doubles wide_x(rows * padded, std::numeric_limits<double>::quiet_NaN());
      for (int64_t i = 0; i < rows * n; ++i) wide_x[i / n * padded + i % n] = x[i];
      const Tensor targets = Make(DType::kI32, {rows}, {20, kIgnore, 0});
      const Tensor logits = Make(dtype, {rows, n}, x), wide = Make(dtype, {rows, padded}, wide_x);
      const IndexSet classes = IndexSet::Interval(0, n);
      EXPECT_EQ(Read(Stats(wide, targets, classes, n)), Read(Stats(logits, targets, classes, n)));
      const DType accumulator = AccumulatorOf(dtype);
      const LogSumExp lse = Lse(accumulator, RunWhole(logits, targets));
      const Tensor dloss = Make(accumulator, {rows}, {1, 2, 3});
      const Doubles want = Grad(logits, targets, classes, lse, dloss, n);
      const Doubles got = Grad(wide, targets, classes, lse, dloss, n);
      for (int64_t i = 0; i < rows * padded; ++i) {
        const int64_t column = i % padded;
        ASSERT_EQ(got[i], column < n ? want[i / padded * n + column] : 0) << i;
      }
      // A shard of nothing but padding.
      const Tensor padding = wide.Narrow(1, n, padded - n);
      const Doubles none = Read(Stats(padding, targets, IndexSet(), n));
      EXPECT_EQ(none[0], -kInf);
      EXPECT_EQ(none[1], 0);
      EXPECT_EQ(Grad(padding, targets, IndexSet(), lse, dloss, n), Doubles(rows * (padded - n), 0));
    }
  }
}

TEST_P(CrossEntropyTest, ATargetAmongThePaddingFailsTheDevice) {
  const Tensor x = Make(DType::kF32, {1, 4}, Doubles(4, 0)), stats = Empty(DType::kF32, {1, 3});
  (void)CrossEntropyStats(device(), x, Make(DType::kI32, {1}, {3}), IndexSet::Interval(0, 3),
                          {3, kIgnore}, stats);
  EXPECT_THAT(device().Synchronize(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("[0, 3)")));
}

TEST_P(CrossEntropyTest, NoRows) {
  const Tensor targets = Empty(DType::kI32, {0}), none = Empty(DType::kF32, {0});
  const Loss got = RunWhole(Empty(DType::kF32, {0, 5}), targets);
  EXPECT_EQ(got.loss, Doubles());
  EXPECT_EQ(Grad(Empty(DType::kF32, {0, 5}), targets, IndexSet::Interval(0, 5), {none, none}, none),
            Doubles());
}

}  // namespace
}  // namespace dtensor::kernels
