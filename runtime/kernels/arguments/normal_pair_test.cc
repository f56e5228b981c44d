#include "dtensor/runtime/kernels/arguments/normal_pair.h"

#include <cmath>
#include <cstdint>
#include <ios>
#include <vector>

#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using box_muller::LogOfUniform;
using box_muller::PointOfUniform;
using box_muller::UnitPoint;

constexpr uint32_t kEighth = uint32_t{1} << 29;  // of a turn

// Words of the whole range; all near its ends, near eighths of a turn, where the reduction of
// angles changes, and near sqrt(1/2) times powers of 2, where that of logarithms does.
std::vector<uint32_t> Words() {
  std::vector<uint32_t> words;
  for (uint64_t word = 0; word < uint64_t{1} << 32; word += 40009) words.push_back(word);
  const auto near = [&](uint32_t word) {
    for (uint32_t i = 0; i < 500; ++i) {
      words.push_back(word + i);
      words.push_back(word - i);
    }
  };
  for (uint32_t eighth = 0; eighth < 8; ++eighth) near(eighth * kEighth);
  for (int k = 8; k <= 32; ++k) near(std::lround(std::ldexp(std::sqrt(0.5), k)));
  return words;
}

// The distance from `exact` in units of the last place that an f64 of its size has.
double Ulps(double got, long double exact) {
  if (exact == 0) return got == 0 ? 0 : INFINITY;
  return std::abs((got - exact) / std::ldexp(1.0L, std::ilogb(exact) - 52));
}

TEST(NormalPair, LogarithmsAreWithinAnUlp) {
  for (const uint32_t word : Words()) {
    const long double exact = std::log((word + 0.5L) * 0x1p-32L);
    ASSERT_LT(Ulps(LogOfUniform(word), exact), 0.9) << word;
  }
}

// By the symmetries of a circle, so that the angle itself loses nothing in rounding.
TEST(NormalPair, SinesAndCosinesAreWithinAnUlp) {
  constexpr long double kStep = 6.283185307179586476925286766559L * 0x1p-32L;
  for (const uint32_t word : Words()) {
    const uint32_t quarter = (word + kEighth) >> 30;  // of the 4; past the last is the first
    const long double angle = static_cast<int32_t>(word - (quarter << 30)) * kStep;
    const long double c = std::cos(angle), s = std::sin(angle);
    const long double cosines[] = {c, -s, -c, s}, sines[] = {s, c, -s, -c};
    const UnitPoint point = PointOfUniform(word);
    ASSERT_LT(Ulps(point.cosine, cosines[quarter]), 0.9) << word;
    ASSERT_LT(Ulps(point.sine, sines[quarter]), 0.9) << word;
  }
}

TEST(NormalPair, QuartersOfATurnAreExact) {
  const double cosines[] = {1, 0, -1, 0}, sines[] = {0, 1, 0, -1};
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    const UnitPoint point = PointOfUniform(quarter << 30);
    EXPECT_EQ(point.cosine, cosines[quarter]) << quarter;
    EXPECT_EQ(point.sine, sines[quarter]) << quarter;
  }
}

TEST(NormalPair, ExtremesAreFinite) {
  EXPECT_NEAR(NormalsOf(0, 0).first, std::sqrt(66 * std::log(2.0)), 1e-14);
  EXPECT_NEAR(NormalsOf(~0u, 0).first, 0x1p-16, 1e-14);  // not 0: u is not 1
  EXPECT_EQ(NormalsOf(~0u, 0).second, 0);
}

struct KnownPair {
  uint32_t first, second;
  double normals[2];
};
constexpr KnownPair kKnownPairs[] = {
    {0x00000000, 0x00000001, {0x1.b0e08d9986a8dp+2, 0x1.53fb1e0735e5ep-27}},
    {0x6627E8D5, 0xE169C58D, {0x1.fb7665dc75753p-1, -0x1.d96d5ff1f1a46p-1}},
    {0xBC57AC4C, 0x9B00DBD8, {-0x1.3c373dd837701p-1, -0x1.eda3633efbfb3p-2}},
    {0x408F276D, 0x41C83B0E, {-0x1.294a797e2a8fep-4, 0x1.a8859da74b39fp+0}},
    {0xA20BC7C6, 0x6D5451FD, {-0x1.b721900e85ac7p-1, 0x1.b137902d07c8dp-2}},
    {0xFFFFFFFF, 0x1FFFFFFF, {0x1.6a09e67103bfap-17, 0x1.6a09e65f3e3c8p-17}},
    {0xB504F333, 0x20000000, {0x1.2d6abe45d4866p-1, 0x1.2d6abe45d4866p-1}},
};

// What every compiler, processor and option must give: these bits are data that others have.
TEST(NormalPair, KnownBits) {
  for (const KnownPair& known : kKnownPairs) {
    const NormalPair pair = NormalsOf(known.first, known.second);
    EXPECT_EQ(pair.first, known.normals[0]) << std::hexfloat << pair.first;
    EXPECT_EQ(pair.second, known.normals[1]) << std::hexfloat << pair.second;
  }
}

#if defined(__x86_64__)

// Compiled for processors that fuse products and sums: a compiler does that wherever it may.
__attribute__((target("avx2,fma"))) int CountOthersWhereItMayFuse(
    const std::vector<uint32_t>& words, const std::vector<double>& want) {
  int others = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const NormalPair pair = NormalsOf(words[i], words[words.size() - 1 - i]);
    others += ShiftedNormal(pair.first, 3, 0.1) + ShiftedNormal(pair.second, 3, 0.1) != want[i];
  }
  return others;
}

TEST(NormalPair, NothingIsFused) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "This processor has no fused operations.";
  const std::vector<uint32_t> words = Words();
  std::vector<double> want;
  for (size_t i = 0; i < words.size(); ++i) {
    const NormalPair pair = NormalsOf(words[i], words[words.size() - 1 - i]);
    want.push_back(ShiftedNormal(pair.first, 3, 0.1) + ShiftedNormal(pair.second, 3, 0.1));
  }
  EXPECT_EQ(CountOthersWhereItMayFuse(words, want), 0);
}

#endif

}  // namespace
}  // namespace dtensor::kernels
