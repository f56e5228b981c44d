#include "dtensor/bench/beside_processes.h"

#include <functional>
#include <memory>
#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::bench {
namespace {

using ::testing::HasSubstr;

// Calls step(rank) in each part of a round.
class StepWork final : public RankWork {
 public:
  StepWork(Context& context, std::function<absl::Status(Context&)> step)
      : context_(context), step_(std::move(step)) {}
  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::StatusOr<double> TimeRound() override { return 1.0 + context_.rank(); }
  absl::Status CheckResults() override { return step_(context_); }

 private:
  Context& context_;
  const std::function<absl::Status(Context&)> step_;
};

// The check of such work on threads beside a world of two ranks.
absl::Status Check(const std::function<absl::Status(Context&)>& step) {
  return RunRanks(2, [&](Context& world) -> absl::Status {
    ThreadsBeside beside(world, [&](Context& context) -> std::unique_ptr<RankWork> {
      return std::make_unique<StepWork>(context, step);
    });
    DT_RETURN_IF_ERROR(beside.Prepare());
    DT_ASSIGN_OR_RETURN(const double seconds, beside.TimeRound());
    EXPECT_EQ(seconds > 0, world.rank() == 0);
    return beside.CheckResults();
  });
}

TEST(ThreadsBeside, EndsWithItsWork) {
  DT_EXPECT_OK(Check([](Context& context) { return context.communicator().Barrier("check"); }));
}

TEST(ThreadsBeside, OneThreadThatFailsIsTheErrorOfAll) {
  for (const bool others_wait : {false, true}) {
    EXPECT_THAT(Check([&](Context& context) -> absl::Status {
                  if (context.rank() == 1) return absl::DataLossError("wrong elements");
                  return others_wait ? context.communicator().Barrier("check") : absl::OkStatus();
                }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: wrong elements")));
  }
}

}  // namespace
}  // namespace dtensor::bench
