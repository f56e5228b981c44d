#include "dtensor/tools/program/progress.h"

#include <string>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

struct Stage {
  Progress::Options Options(bool terminal) {
    return {.shows = true,
            .terminal = terminal,
            .seconds = [this] { return now; },
            .write = [this](absl::string_view text) { said += std::string(text); }};
  }
  double now = 1000;
  std::string said;
};

TEST(ProgressTest, SaysNothingOfShortRuns) {
  Stage run;
  {
    Progress progress("rounds", 10, run.Options(true));
    for (int i = 1; i <= 10; ++i) {
      run.now += 0.19;
      progress.Report(i);
    }
  }
  EXPECT_EQ(run.said, "");
}

TEST(ProgressTest, EstimatesWhatIsLeft) {
  Stage run;
  Progress progress("rounds", 100, run.Options(false));
  run.now += 2;
  progress.Report(0);  // nothing is known yet
  EXPECT_EQ(run.said, "");
  progress.Report(10);
  EXPECT_EQ(run.said, "10 of 100 rounds, 0:18 left\n");
  run.now += 9;  // too soon
  progress.Report(20);
  EXPECT_EQ(run.said, "10 of 100 rounds, 0:18 left\n");
  run.said.clear();
  run.now += 9;
  progress.Report(20, "loss 2.5");
  EXPECT_EQ(run.said, "20 of 100 rounds, loss 2.5, 1:20 left\n");
  run.said.clear();
  run.now += 1000;
  progress.Report(100);
  EXPECT_EQ(run.said, "100 of 100 rounds, 0:00 left\n");
}

TEST(ProgressTest, OnATerminalItIsOneLine) {
  Stage run;
  {
    Progress progress("steps", 4, run.Options(true));
    run.now += 3;
    progress.Report(1);
    run.now += 0.4;  // too soon
    progress.Report(2);
    run.now += 2.6;
    progress.Report(2);
  }
  EXPECT_EQ(run.said, "\r\x1b[K1 of 4 steps, 0:09 left\r\x1b[K2 of 4 steps, 0:06 left\r\x1b[K");
}

TEST(ProgressTest, KeepsQuietUnlessItShows) {
  Stage run;
  Progress::Options options = run.Options(true);
  options.shows = false;
  {
    Progress progress("steps", 4, options);
    run.now += 3;
    progress.Report(1);
  }
  EXPECT_EQ(run.said, "");
}

TEST(ProgressTest, WritesDurations) {
  EXPECT_EQ(DurationText(0), "0:00");
  EXPECT_EQ(DurationText(6.1), "0:07");
  EXPECT_EQ(DurationText(65), "1:05");
  EXPECT_EQ(DurationText(7200), "2:00:00");
  EXPECT_EQ(DurationText(1e300), "9999:00:00");
}

}  // namespace
}  // namespace dtensor
