#include <cmath>
#include <thread>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/cpu/rope_table.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kTheta = 10000;

class RopeTest : public KernelTest {
 protected:
  Doubles Run(const Tensor& x, const IndexSet& positions, bool inverse = false) {
    const Tensor y = Empty(x.dtype(), x.shape());
    EXPECT_THAT(Rope(device(), x, positions, {.theta = kTheta}, inverse, y), IsOk());
    return Read(y);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(RopeTest);

// x: [b, t, h, d].
Doubles Reference(const Doubles& x, const IndexSet& positions, int64_t b, int64_t h, int64_t d) {
  Doubles y(x.size());
  const int64_t t = positions.size();
  for (int64_t row = 0; row < b * t * h; ++row) {
    const double p = static_cast<double>(positions.At(row / h % t));
    for (int64_t i = 0; i < d / 2; ++i) {
      const double angle =
          p * std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      const double x0 = x[row * d + i], x1 = x[row * d + d / 2 + i];
      y[row * d + i] = x0 * std::cos(angle) - x1 * std::sin(angle);
      y[row * d + d / 2 + i] = x1 * std::cos(angle) + x0 * std::sin(angle);
    }
  }
  return y;
}

IndexSet Zigzag() {
  const dtensor::IndexRun runs[] = {{0, 3, 0, 1}, {1000, 4, 0, 1}};
  return IndexSet::FromIntervals(runs);
}

TEST_P(RopeTest, RotatesByTheGlobalPosition) {
  const IndexSet positions = Zigzag();
  for (const int64_t d : {2, 8, 16, 34, 64, 128, 130, 528}) {
    const int64_t n = 2 * positions.size() * 3 * d;
    for (const DType dtype : kFloats) {
      const Doubles x = Rounded(dtype, RandomValues(n, -1, 1));
      ExpectNear(Run(Make(dtype, {2, 7, 3, d}, x), positions), Reference(x, positions, 2, 3, d),
                 Epsilon(dtype), Epsilon(dtype));
    }
  }
}

// As the paper has it: of 8 pairs with theta 10000, those that turn more than 32 times in 4096
// positions are left alone, those that turn less than once are 4 times slower.
TEST(RopeFrequenciesTest, GoOverByPairs) {
  RopeBase base = {kTheta, {4, 1, 32, 4096, RopeTransition::kByPairs, 1}};
  const double first = 16 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(kTheta));
  const double last = 16 * std::log(4096 / (2 * M_PI)) / (2 * std::log(kTheta));
  const auto expect = [&](double from, double to) {
    const std::vector<double> frequencies = RopeFrequencies(base, 16);
    for (int i = 0; i < 8; ++i) {
      const double plain = std::pow(kTheta, -i / 8.0);
      const double divided = i <= from ? 0 : i >= to ? 1 : (i - from) / (to - from);
      EXPECT_NEAR(frequencies[i] / plain, 1 - divided + divided / 4, 1e-12) << i;
    }
  };
  EXPECT_TRUE(2 < first && first < 3 && 5 < last && last < 6);
  expect(first, last);
  base.scaling.transition = RopeTransition::kByWholePairs;
  expect(2, 6);
  base.scaling.trained = 2;  // no pair turns once; the first stays, as in Hugging Face's models
  expect(0, 0.001);
}

TEST_P(RopeTest, MultipliesByTheAmplitude) {
  const IndexSet positions = Zigzag();
  const Doubles x = RandomValues(7 * 2 * 8, -1, 1);
  const Tensor y = Empty(DType::kF64, {1, 7, 2, 8});
  for (const bool inverse : {false, true}) {
    Doubles want = Run(Make(DType::kF64, {1, 7, 2, 8}, x), positions, inverse);
    for (double& value : want) value *= 1.25;
    const RopeBase base = {kTheta, {.amplitude = 1.25}};
    EXPECT_THAT(Rope(device(), Make(DType::kF64, {1, 7, 2, 8}, x), positions, base, inverse, y),
                IsOk());
    ExpectNear(Read(y), want, 1e-14, 1e-14);
  }
}

TEST_P(RopeTest, StridedRuns) {
  const dtensor::IndexRun runs[] = {{2, 2, 6, 3}};  // 2, 3, 8, 9, 14, 15
  const IndexSet positions = IndexSet::FromIntervals(runs);
  ASSERT_EQ(positions.size(), 6);
  const Doubles x = RandomValues(6 * 8, -1, 1);
  ExpectNear(Run(Make(DType::kF64, {1, 6, 1, 8}, x), positions), Reference(x, positions, 1, 1, 8),
             1e-14, 1e-14);
}

TEST_P(RopeTest, ManyRuns) {
  const int64_t begins[] = {0, 2, 5, 9, 14, 20, 27};
  std::vector<dtensor::IndexRun> runs;
  for (const int64_t begin : begins) runs.push_back({begin, 1 + begin % 2, 0, 1});
  const IndexSet positions = IndexSet::FromIntervals(runs);
  const int64_t t = positions.size();
  const Doubles x = RandomValues(2 * t * 8, -1, 1);
  ExpectNear(Run(Make(DType::kF64, {2, t, 1, 8}, x), positions), Reference(x, positions, 2, 1, 8),
             1e-14, 1e-14);
}

TEST_P(RopeTest, ShardsHaveTheBitsOfTheWhole) {
  const int64_t t = 12, d = 20;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = Make(dtype, {1, t, 2, d}, RandomValues(t * 2 * d, -1, 1));
    const Doubles whole = Run(x, IndexSet::Interval(0, t));
    const Doubles part = Run(x.Narrow(1, 5, 4), IndexSet::Interval(5, 9));
    EXPECT_EQ(part, Doubles(whole.begin() + 5 * 2 * d, whole.begin() + 9 * 2 * d));
  }
}

TEST_P(RopeTest, InverseRotatesBack) {
  const IndexSet positions = Zigzag();
  const Doubles x = RandomValues(7 * 2 * 32, -1, 1);
  const Doubles y = Run(Make(DType::kF32, {1, 7, 2, 32}, x), positions);
  ExpectNear(Run(Make(DType::kF32, {1, 7, 2, 32}, y), positions, /*inverse=*/true), x, 1e-6, 1e-6);
}

TEST_P(RopeTest, InverseIsTheGradient) {
  const IndexSet positions = Zigzag();
  const Doubles x = RandomValues(7 * 2 * 8, -1, 1, 1), dy = RandomValues(7 * 2 * 8, -1, 1, 2);
  const auto make = [&](const Doubles& v) { return Make(DType::kF64, {1, 7, 2, 8}, v); };
  ExpectNear(Run(make(dy), positions, /*inverse=*/true),
             NumericGradient(x, dy, [&](const Doubles& at) { return Run(make(at), positions); }),
             1e-7, 1e-9);
}

TEST_P(RopeTest, AnyStrides) {
  const int64_t b = 2, t = 5, h = 3, d = 8;
  const IndexSet positions = IndexSet::Interval(3, 3 + t);
  const Doubles x = RandomValues(b * t * h * d, -1, 1);
  const Doubles want = Reference(x, positions, b, h, d);
  // Heads before positions; features before heads; a part of a fused qkv projection.
  Doubles bhtd(x.size()), btdh(x.size()), qkv(2 * x.size());
  for (int64_t i = 0; i < b * t * h * d; ++i) {
    const int64_t id = i % d, ih = i / d % h, it = i / (d * h) % t, ib = i / (d * h * t);
    bhtd[((ib * h + ih) * t + it) * d + id] = x[i];
    btdh[((ib * t + it) * d + id) * h + ih] = x[i];
    qkv[((ib * t + it) * 2 * h + h + ih) * d + id] = x[i];
  }
  const DType dtype = DType::kF64;
  ExpectNear(Run(Make(dtype, {b, h, t, d}, bhtd).Transpose(1, 2), positions), want, 1e-14, 1e-14);
  ExpectNear(Run(Make(dtype, {b, t, d, h}, btdh).Transpose(2, 3), positions), want, 1e-14, 1e-14);
  const Tensor part = Make(dtype, {b, t, 2 * h, d}, qkv).Narrow(2, h, h);
  ExpectNear(Run(part, positions), want, 1e-14, 1e-14);
}

// As wide as packs of 16 bytes, from addresses and strides that are not.
TEST_P(RopeTest, PartsOfWiderRows) {
  const int64_t t = 4, h = 3, d = 16;
  const IndexSet positions = IndexSet::Interval(0, t);
  for (const DType dtype : kFloats) {
    const Tensor wide = Make(dtype, {1, t, h, d + 8}, RandomValues(t * h * (d + 8), -1, 1));
    for (const int64_t begin : {0, 1, 8}) {
      const Tensor x = wide.Narrow(3, begin, d);
      EXPECT_EQ(Run(x, positions), Run(Make(dtype, x.shape(), Read(x)), positions)) << begin;
    }
  }
}

TEST_P(RopeTest, NoElements) {
  EXPECT_EQ(Run(Empty(DType::kF32, {2, 0, 3, 8}), IndexSet()), Doubles());
  EXPECT_EQ(Run(Empty(DType::kF32, {0, 4, 3, 8}), IndexSet::Interval(0, 4)), Doubles());
  EXPECT_EQ(Run(Empty(DType::kF32, {2, 4, 3, 0}), IndexSet::Interval(0, 4)), Doubles());
}

TEST(RopeTable, IsComputedOnceAndEvicted) {
  const auto first = GetRopeTable<float>(IndexSet::Interval(0, 10), {500}, 8);
  EXPECT_EQ(GetRopeTable<float>(IndexSet::Interval(0, 10), {500}, 8), first);
  EXPECT_NE(GetRopeTable<float>(IndexSet::Interval(0, 11), {500}, 8), first);
  EXPECT_NE(GetRopeTable<float>(IndexSet::Interval(0, 10), {501}, 8), first);
  EXPECT_NE(GetRopeTable<float>(IndexSet::Interval(0, 10), {500}, 16), first);
  for (int i = 0; i < 100; ++i) GetRopeTable<float>(IndexSet::Interval(i, i + 1), {500}, 8);
  const auto again = GetRopeTable<float>(IndexSet::Interval(0, 10), {500}, 8);
  EXPECT_NE(again, first);
  EXPECT_EQ(again->cos, first->cos);  // values do not depend on the cache
  EXPECT_EQ(GetRopeTable<double>(IndexSet::Interval(0, 10), {500}, 8)->cos[4], std::cos(1.));
}

TEST(RopeTable, IsSharedByThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 200; ++k) {
        const auto table = GetRopeTable<float>(IndexSet::Interval(k % 70, k % 70 + 2), {700}, 4);
        EXPECT_EQ(table->cos[0], static_cast<float>(std::cos(k % 70)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace dtensor::kernels
