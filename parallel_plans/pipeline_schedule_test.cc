#include "dtensor/parallel_plans/pipeline_schedule.h"

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

std::string Steps(PipelineSchedule schedule, int64_t stage, int64_t stages, int64_t micro_batches) {
  return ToString(PipelineSteps(schedule, stage, stages, micro_batches));
}

TEST(PipelineSteps, AreThoseOf1F1B) {
  constexpr auto kSchedule = PipelineSchedule::k1F1B;
  EXPECT_EQ(Steps(kSchedule, 0, 3, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Steps(kSchedule, 1, 3, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Steps(kSchedule, 2, 3, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Steps(kSchedule, 0, 4, 2), "F0 F1 B0 B1");
  EXPECT_EQ(Steps(kSchedule, 0, 1, 2), "F0 B0 F1 B1");
  EXPECT_EQ(Steps(kSchedule, 0, 3, 0), "");
}

TEST(PipelineSteps, AreThoseOfZeroBubble) {
  constexpr auto kSchedule = PipelineSchedule::kZeroBubble;
  EXPECT_EQ(Steps(kSchedule, 0, 3, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Steps(kSchedule, 1, 3, 4), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
  EXPECT_EQ(Steps(kSchedule, 2, 3, 4), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  EXPECT_EQ(Steps(kSchedule, 3, 4, 2), "F0 I0 F1 I1 W0 W1");
  EXPECT_EQ(Steps(kSchedule, 0, 1, 2), "F0 B0 F1 B1");
  EXPECT_EQ(Steps(kSchedule, 2, 3, 0), "");
  const auto waiting = [](int64_t stage) {
    return ToString(PipelineSteps(kSchedule, stage, 3, 4, /*sends_wait=*/true));
  };
  EXPECT_EQ(waiting(0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(waiting(1), "F0 F1 I0 F2 W0 I1 F3 W1 I2 W2 I3 W3");
  EXPECT_EQ(waiting(2), "F0 I0 F1 I1 F2 W0 I2 F3 W1 I3 W2 W3");
}

// All micro-batches once, in order, in each kind of work; forward and the gradients of activations
// in the order of 1F1B, on which the order of exchanges depends; and never more put off than
// micro-batches that 1F1B would keep on the first stage.
TEST(PipelineSteps, ZeroBubbleIs1F1BWithTheGradientsOfWeightsPutOff) {
  for (int64_t stages = 1; stages <= 6; ++stages) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      for (int64_t i = 0; i < 20; ++i) {
        const int64_t n = i / 2;
        std::vector<PipelineStep> others;
        int64_t forward = 0, inputs = 0, weights = 0;
        for (PipelineStep step : PipelineSteps(PipelineSchedule::kZeroBubble, stage, stages, n,
                                               /*sends_wait=*/i % 2 == 1)) {
          const bool both = step.work == PipelineWork::kBackward;
          EXPECT_EQ(both, both && stage == 0);
          if (step.work == PipelineWork::kForward) {
            EXPECT_EQ(step.micro_batch, forward++);
          }
          if (both || step.work == PipelineWork::kInputGradients) {
            EXPECT_EQ(step.micro_batch, inputs++);
          }
          if (both || step.work == PipelineWork::kWeightGradients) {
            EXPECT_EQ(step.micro_batch, weights++);
          }
          EXPECT_LE(weights, inputs);
          EXPECT_LE(inputs, forward);
          EXPECT_LE(forward - weights, stages);
          if (step.work == PipelineWork::kWeightGradients) continue;
          if (step.work == PipelineWork::kInputGradients) step.work = PipelineWork::kBackward;
          others.push_back(step);
        }
        EXPECT_EQ(weights, n);
        EXPECT_EQ(others, PipelineSteps(PipelineSchedule::k1F1B, stage, stages, n));
      }
    }
  }
}

// The last stage is idle for s - 1 forwards and backwards, with as many micro-batches as stages or
// more; zero bubble leaves those of the weights out, twice: at the begin, where the first gradient
// comes earlier, and at the end, where it works while others do.
TEST(PipelineSeconds, AreThoseOfTheFormulas) {
  for (int64_t stages = 1; stages <= 5; ++stages) {
    for (int64_t n = stages; n <= 12; ++n) {
      const std::vector<StageSeconds> alike(stages, {1, 1, 1});
      const auto seconds = [&](PipelineSchedule schedule) {
        return PipelineSeconds(schedule, alike, n);
      };
      EXPECT_EQ(seconds(PipelineSchedule::k1F1B), 3 * n + 3 * (stages - 1));
      EXPECT_EQ(seconds(PipelineSchedule::kZeroBubble), 3 * n + (stages - 1)) << stages << ' ' << n;
    }
  }
  const StageSeconds fast = {1, 2, 0}, slow = {2, 4, 0};
  EXPECT_EQ(PipelineSeconds(PipelineSchedule::k1F1B, {fast, slow, fast}, 1), 12);
  // The slow one begins after 1, waits 1 for its first gradient, and 2 are left when it is done.
  EXPECT_EQ(PipelineSeconds(PipelineSchedule::k1F1B, {fast, slow, fast}, 4), 1 + 4 * 6 + 1 + 2);
}

TEST(PipelineSchedule, IsReadAsItIsWritten) {
  for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    EXPECT_THAT(ParsePipelineSchedule(ToString(schedule)), IsOkAndHolds(schedule));
  }
  EXPECT_THAT(ParsePipelineSchedule("gpipe"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no schedule 'gpipe'; take 1f1b or zero_bubble")));
}

}  // namespace
}  // namespace dtensor
