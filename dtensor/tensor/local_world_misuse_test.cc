// The errors of a LocalWorld for a program that misuses it.
#include <memory>
#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// A thread that comes late hears why there is nothing to do.
TEST(LocalWorld, ARankOfAFailedWorldIsNotTaken) {
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld world, LocalWorld::Create(3));
  DT_ASSERT_OK_AND_ASSIGN(LocalRank first, world.Take(0));
  const absl::Status failure =
      first.context().communicator().Fail(absl::DataLossError("bad block"));
  EXPECT_THAT(failure, StatusIs(Code::kDataLoss, HasSubstr("rank 0: bad block")));
  EXPECT_EQ(world.failure(), failure);
  EXPECT_EQ(world.Take(1).status(), failure);
  EXPECT_THAT(world.Take(0), StatusIs(Code::kFailedPrecondition, HasSubstr("taken before")));
  EXPECT_THAT(world.Take(3), StatusIs(Code::kInvalidArgument));
}

TEST(SingleRank, PinsNoThreadOfTheCallers) {
  if (!CanPin(1)) GTEST_SKIP() << "all cores are taken";
  EXPECT_THAT(SingleRank({.pin_threads = true}),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("SingleRank"), HasSubstr("pin"))));
}

TEST(LocalWorldDeathTest, SaysWhatWasDoneToOneThatWasMovedFrom) {
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld world, LocalWorld::Create(1));
  LocalWorld moved = std::move(world);
  const auto fn = [](Context&) { return absl::OkStatus(); };
  const char* const message = "^dtensor: LocalWorld: a call of one that was moved from";
  EXPECT_DEATH(world.size(), message);
  EXPECT_DEATH(world.failure().IgnoreError(), message);
  EXPECT_DEATH(world.Run(fn).IgnoreError(), message);
  EXPECT_DEATH(world.Take(0).status().IgnoreError(), message);
  world = std::move(moved);
  DT_EXPECT_OK(world.Run(fn));
}

TEST(LocalWorldDeathTest, SaysThatItGoesWhileItRuns) {
  EXPECT_DEATH(
      {
        auto world = std::make_unique<LocalWorld>(*LocalWorld::Create(2));
        world
            ->Run([&](Context& context) {
              if (context.rank() == 1) world = nullptr;
              return context.communicator().Barrier("the end");
            })
            .IgnoreError();
      },
      "dtensor: LocalWorld: one that goes while Run is on its way");
}

}  // namespace
}  // namespace dtensor
