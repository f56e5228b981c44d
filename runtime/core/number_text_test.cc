#include "dtensor/runtime/core/number_text.h"

#include <clocale>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr double kTiny = std::numeric_limits<double>::denorm_min();

TEST(NumberTextTest, IsShort) {
  EXPECT_EQ(ExactText(0.1), "0.1");
  EXPECT_EQ(ExactText(0), "0");
  EXPECT_EQ(ExactText(65536), "65536");
  EXPECT_EQ(ExactText(-1e-24), "-1e-24");
  EXPECT_EQ(ExactText(1e300), "1e+300");
  EXPECT_EQ(ExactText(INFINITY), "inf");
  EXPECT_EQ(RoundedText(2.0 / 3, 4), "0.6667");
  EXPECT_EQ(RoundedText(2.5e-30, 6), "2.5e-30");
  EXPECT_EQ(RoundedText(1e6, 6), "1e+06");
}

// Each exponent, of numbers whose digits all count.
TEST(NumberTextTest, ReadsBackAndIsWhatPrintfWrites) {
  std::minstd_rand random(1);
  for (int exponent = -1074; exponent < 1024; ++exponent) {
    const double value = std::ldexp(1 + static_cast<double>(random()) / 0x1p31, exponent);
    double read = 0;
    ASSERT_TRUE(absl::SimpleAtod(ExactText(value), &read));
    EXPECT_EQ(read, value);
    for (const int digits : {1, 4, 6, 17}) {
      char printed[40];
      std::snprintf(printed, sizeof(printed), "%.*g", digits, value);
      EXPECT_EQ(RoundedText(value, digits), printed);
    }
  }
  EXPECT_EQ(ExactText(kTiny), "5e-324");
}

TEST(NumberTextTest, HasAPointInEveryLocale) {
  const char* found = nullptr;
  for (const char* name : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "ru_RU.UTF-8"}) {
    if (found == nullptr) found = std::setlocale(LC_ALL, name);
  }
  if (found == nullptr) GTEST_SKIP() << "this machine has no locale with a decimal comma";
  EXPECT_EQ(ExactText(1.5e-24), "1.5e-24");
  EXPECT_EQ(RoundedText(2.5e-30, 6), "2.5e-30");
  std::setlocale(LC_ALL, "C");
}

}  // namespace
}  // namespace dtensor
