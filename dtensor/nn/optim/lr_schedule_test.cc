#include "dtensor/nn/optim/lr_schedule.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(LrSchedule, Constant) {
  const LrSchedule plain = LrSchedule::Constant(0.5);
  for (const int64_t step : {0, 1, 1000}) EXPECT_EQ(plain.At(step), 0.5);
  const LrSchedule warm = LrSchedule::Constant(0.5, 4);
  EXPECT_EQ(warm.At(0), 0);
  EXPECT_EQ(warm.At(1), 0.125);
  EXPECT_EQ(warm.At(3), 0.375);
  EXPECT_EQ(warm.At(4), 0.5);
  EXPECT_EQ(warm.At(400), 0.5);
}

// Hugging Face's lambda: (training - current) / max(1, training - warmup).
TEST(LrSchedule, Linear) {
  const LrSchedule schedule = LrSchedule::Linear(2, 10, 50);
  EXPECT_EQ(schedule.At(0), 0);
  EXPECT_EQ(schedule.At(5), 1);
  EXPECT_EQ(schedule.At(10), 2);
  EXPECT_EQ(schedule.At(20), 1.5);
  EXPECT_EQ(schedule.At(49), 0.05);
  EXPECT_EQ(schedule.At(50), 0);
  EXPECT_EQ(schedule.At(60), 0);
}

TEST(LrSchedule, Cosine) {
  const LrSchedule half = LrSchedule::Cosine(2, 10, 50);
  EXPECT_EQ(half.At(5), 1);
  EXPECT_EQ(half.At(10), 2);
  EXPECT_NEAR(half.At(20), 1 + std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(half.At(30), 1, 1e-12);
  EXPECT_NEAR(half.At(50), 0, 1e-12);
  EXPECT_NEAR(half.At(90), 2, 1e-12);  // as Hugging Face's
  const LrSchedule two = LrSchedule::Cosine(1, 0, 8, 2);
  EXPECT_NEAR(two.At(0), 1, 1e-12);
  EXPECT_NEAR(two.At(1), 0.5, 1e-12);
  EXPECT_NEAR(two.At(2), 0, 1e-12);
  EXPECT_NEAR(two.At(4), 1, 1e-12);
}

TEST(LrSchedule, WithoutStepsInBetween) {
  EXPECT_EQ(LrSchedule::Linear(1, 3, 3).At(2), 2.0 / 3);
  EXPECT_EQ(LrSchedule::Linear(1, 3, 3).At(3), 0);
  EXPECT_EQ(LrSchedule::Cosine(1, 3, 3).At(3), 1);
  EXPECT_EQ(LrSchedule::Constant(1, 0).At(0), 1);
}

TEST(LrSchedule, NoNumberOfStepsOverflows) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(LrSchedule::Linear(1, kLeast, kMost).At(0), 0.5);
  EXPECT_EQ(LrSchedule::Linear(1, 0, kLeast).At(kMost), 0);
  EXPECT_NEAR(LrSchedule::Cosine(1, kLeast, kMost).At(0), 0.5, 1e-12);
}

TEST(LrSchedule, IsReadFromItsText) {
  for (const LrSchedule& schedule :
       {LrSchedule::Constant(0.1), LrSchedule::Constant(1.0 / 3, 7),
        LrSchedule::Linear(1e-300, 0, 5), LrSchedule::Cosine(3e-4, 10, 1'000'000'000'000, 0.7)}) {
    EXPECT_THAT(LrSchedule::Parse(schedule.ToString()), IsOkAndHolds(schedule));
  }
  EXPECT_EQ(LrSchedule::Cosine(0.5, 10, 100).ToString(), "cosine(0.5, 10, 100, 0.5)");
  for (const char* text :
       {"", "constant", "constant(1)", "linear(1, 2)", "cosine(1, 2, 3)", "step(1, 2)",
        "constant(nan, 1)", "constant(1, x)", "constant(1, 2) ", "cosine(1, 2, 3, 1e300)"}) {
    EXPECT_THAT(LrSchedule::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace dtensor
