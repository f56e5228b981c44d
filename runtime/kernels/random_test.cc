#include <array>
#include <cmath>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/kernels/arguments/normal_pair.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that come with Random123, the authors' own implementation.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class RandomTest : public KernelTest {
 protected:
  Doubles Uniform(DType dtype, std::vector<IndexSet> region, absl::Span<const int64_t> shape,
                  uint64_t seed = 1, uint64_t stream = 2) {
    const Tensor out = Empty(dtype, Sizes(region));
    EXPECT_THAT(RandomUniform(device(), region, shape, seed, stream, out), IsOk());
    return Read(out);
  }
  Doubles Normal(DType dtype, std::vector<IndexSet> region, absl::Span<const int64_t> shape,
                 uint64_t seed = 1) {
    const Tensor out = Empty(dtype, Sizes(region));
    EXPECT_THAT(RandomNormal(device(), region, shape, seed, 2, 3, 0.5, out), IsOk());
    return Read(out);
  }
  static Dims Sizes(const std::vector<IndexSet>& region) {
    Dims sizes;
    for (const IndexSet& set : region) sizes.push_back(set.size());
    return sizes;
  }
  static std::vector<IndexSet> Whole(absl::Span<const int64_t> shape) {
    std::vector<IndexSet> region;
    for (const int64_t n : shape) region.push_back(IndexSet::Interval(0, n));
    return region;
  }
  // The elements of `whole` (of `shape`) that lie in `region`.
  static Doubles Pick(const Doubles& whole, const std::vector<IndexSet>& region,
                      absl::Span<const int64_t> shape) {
    Doubles picked;
    const Dims sizes = Sizes(region);
    for (int64_t i = 0; i < NumElements(sizes); ++i) {
      int64_t global = 0, rest = i;
      Dims at(sizes.size());
      for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d])
        at[d] = region[d].At(rest % sizes[d]);
      for (size_t d = 0; d < sizes.size(); ++d) global = global * shape[d] + at[d];
      picked.push_back(whole[global]);
    }
    return picked;
  }
};
DT_INSTANTIATE_KERNEL_TESTS(RandomTest);

TEST_P(RandomTest, UniformIsPhiloxOfTheGlobalIndex) {
  const uint64_t seed = 0x123456789abcdef0, stream = 0xfedcba9876543210;
  const Doubles got = Uniform(DType::kF32, Whole({4099}), {4099}, seed, stream);
  for (uint64_t g = 0; g < got.size(); ++g) {
    const uint32_t word = PhiloxBlock(seed, stream, g / 4)[g % 4];
    ASSERT_EQ(got[g], (word >> 8) * 0x1p-24) << g;
  }
}

// Bit by bit, whatever the instruction set or the GPU: in whole packs and vectors, and in a shard
// whose first element is the second of a pair.
TEST_P(RandomTest, NormalsAreBoxMullersOfTheGlobalIndex) {
  const int64_t n = 20011, first = 4093;
  Doubles want(n);
  for (int64_t g = 0; g < n; ++g) {
    const Words words = PhiloxBlock(1, 2, g / 4);
    const NormalPair pair = NormalsOf(words[g % 4 / 2 * 2], words[g % 4 / 2 * 2 + 1]);
    want[g] = ShiftedNormal(g % 2 == 0 ? pair.first : pair.second, 3, 0.5);
  }
  for (const DType dtype : kFloats) {
    const Doubles rounded = Rounded(dtype, want);
    EXPECT_EQ(Normal(dtype, Whole({n}), {n}), rounded);
    EXPECT_EQ(Normal(dtype, {IndexSet::Interval(first, n)}, {n}),
              Doubles(rounded.begin() + first, rounded.end()));
  }
}

TEST_P(RandomTest, CountersCarryIntoTheirSecondWord) {
  // Blocks around 2^32: elements around 2^34.
  const int64_t first = (int64_t{1} << 34) - 90, last = first + 200;
  const Doubles got = Uniform(DType::kF64, {IndexSet::Interval(first, last)}, {last + 5}, 7, 9);
  for (int64_t g = first; g < last; ++g) {
    const uint32_t word = PhiloxBlock(7, 9, static_cast<uint64_t>(g / 4))[g % 4];
    ASSERT_EQ(got[g - first], word * 0x1p-32) << g;
  }
}

TEST_P(RandomTest, EveryShardHoldsItsPartOfTheWhole) {
  const int64_t shape[] = {6, 11, 5};
  const dtensor::IndexRun dealt[] = {{1, 2, 5, 2}};  // 1, 2, 6, 7
  const dtensor::IndexRun zigzag[] = {{0, 1, 0, 1}, {5, 1, 0, 1}};
  const std::vector<std::vector<IndexSet>> regions = {
      {IndexSet::Interval(2, 5), IndexSet::Interval(0, 11), IndexSet::Interval(0, 5)},
      {IndexSet::Interval(0, 6), IndexSet::Interval(3, 9), IndexSet::Interval(0, 5)},
      {IndexSet::Interval(0, 6), IndexSet::Interval(0, 11), IndexSet::Interval(1, 4)},
      {IndexSet::FromIntervals(zigzag), IndexSet::FromIntervals(dealt), IndexSet::Interval(2, 5)},
      {IndexSet::Interval(0, 6), IndexSet(), IndexSet::Interval(0, 5)}};
  for (const DType dtype : kFloats) {
    const Doubles uniform = Uniform(dtype, Whole(shape), shape);
    const Doubles normal = Normal(dtype, Whole(shape), shape);
    for (const auto& region : regions) {
      EXPECT_EQ(Uniform(dtype, region, shape), Pick(uniform, region, shape));
      EXPECT_EQ(Normal(dtype, region, shape), Pick(normal, region, shape));
    }
  }
}

TEST_P(RandomTest, ShapesOfEqualElementsGiveEqualNumbers) {
  EXPECT_EQ(Uniform(DType::kF32, Whole({6, 20}), {6, 20}),
            Uniform(DType::kF32, Whole({120}), {120}));
}

TEST_P(RandomTest, Scalars) {
  EXPECT_EQ(Uniform(DType::kF32, {}, {}), Uniform(DType::kF32, Whole({1}), {1}));
}

TEST_P(RandomTest, SeedsAndStreamsDiffer) {
  const Doubles a = Uniform(DType::kF64, Whole({100}), {100}, 1, 2);
  for (const auto& [seed, stream] : {std::pair(2, 2), std::pair(1, 3), std::pair(2, 1)}) {
    const Doubles b = Uniform(DType::kF64, Whole({100}), {100}, seed, stream);
    int equal = 0;
    for (int i = 0; i < 100; ++i) equal += a[i] == b[i];
    EXPECT_EQ(equal, 0);
  }
}

TEST_P(RandomTest, UniformStaysBelowOneAndHasItsMoments) {
  const int64_t n = 100000;
  for (const DType dtype : kFloats) {
    const Doubles values = Uniform(dtype, Whole({n}), {n});
    double mean = 0, square = 0;
    for (const double v : values) {
      ASSERT_GE(v, 0);
      ASSERT_LT(v, 1);
      mean += v / n;
      square += v * v / n;
    }
    // Truncation to the 8 bits that bf16 holds takes half a step away.
    EXPECT_NEAR(mean, 0.5, 0.004);
    EXPECT_NEAR(square, 1 / 3.0, 0.004);
  }
}

TEST_P(RandomTest, NormalHasItsMoments) {
  const int64_t n = 200000;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Doubles values = Normal(dtype, Whole({n}), {n});
    double moments[5] = {};
    double product = 0;  // of neighbours: cosine and sine of one angle are independent
    for (int64_t i = 0; i < n; ++i) {
      const double z = (values[i] - 3) / 0.5;
      for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / n;
      if (i % 2 == 1) product += z * (values[i - 1] - 3) / 0.5 / (n / 2);
    }
    EXPECT_NEAR(moments[1], 0, 0.01);
    EXPECT_NEAR(moments[2], 1, 0.02);
    EXPECT_NEAR(moments[3], 0, 0.05);
    EXPECT_NEAR(moments[4], 3, 0.1);
    EXPECT_NEAR(product, 0, 0.02);
  }
}

TEST_P(RandomTest, DropoutKeepsWhereUniformReachesP) {
  const int64_t shape[] = {40, 33};
  const int64_t n = 40 * 33;
  const Doubles uniform = Uniform(DType::kF32, Whole(shape), shape, 5, 6);
  for (const DType dtype : kFloats) {
    const Doubles x = Rounded(dtype, RandomValues(n, 1, 2));
    for (const double p : {0.0, 0.1, 0.5, 1.0}) {
      const Tensor out = Empty(dtype, shape);
      ASSERT_THAT(Dropout(device(), Make(dtype, shape, x), Whole(shape), shape, 5, 6, p, out),
                  IsOk());
      Doubles want(n);
      for (int64_t i = 0; i < n; ++i) want[i] = uniform[i] >= p ? x[i] / (1 - p) : 0;
      ExpectNear(Read(out), want, Epsilon(dtype), 0);
    }
  }
}

TEST_P(RandomTest, DropoutOfShardsAndViews) {
  const int64_t shape[] = {8, 12};
  const Doubles x = RandomValues(96, 1, 2);
  const Tensor whole = Make(DType::kF32, shape, x), out = Empty(DType::kF32, shape);
  ASSERT_THAT(Dropout(device(), whole, Whole(shape), shape, 5, 6, 0.3, out), IsOk());
  const std::vector<IndexSet> region = {IndexSet::Interval(1, 7), IndexSet::Interval(5, 10)};
  const Tensor part = Empty(DType::kF32, {6, 5});
  ASSERT_THAT(
      Dropout(device(), whole.Narrow(0, 1, 6).Narrow(1, 5, 5), region, shape, 5, 6, 0.3, part),
      IsOk());
  EXPECT_EQ(Read(part), Pick(Read(out), region, shape));
}

TEST_P(RandomTest, NoElements) {
  const int64_t shape[] = {0, 5};
  EXPECT_EQ(Uniform(DType::kF32, Whole(shape), shape), Doubles());
  EXPECT_EQ(Normal(DType::kBF16, Whole(shape), shape), Doubles());
  const Tensor x = Empty(DType::kF32, shape);
  EXPECT_THAT(Dropout(device(), x, Whole(shape), shape, 1, 2, 0.5, x), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
