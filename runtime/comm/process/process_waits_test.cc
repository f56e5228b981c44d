// Waits of ranks that lead nowhere: what each rank is told, and whose name it says.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Each rank calls its next one first.
TEST(ProcessWaits, ACycleIsNamed) {
  const auto start = NetClock::now();
  const auto results = RunProcesses(Launched(3, 60), [](ProcessWorld& world) {
    const std::vector<std::vector<int>> groups = {{0, 1}, {1, 2}, {0, 2}};
    DT_RETURN_IF_ERROR(Gather(world, {0, 1, 2}, 10));
    for (int i = 0; i < 3; ++i) {
      const std::vector<int>& group = groups[(world.rank() + i) % 3];
      if (i != 1) DT_RETURN_IF_ERROR(Gather(world, group, 100000));
    }
    return absl::OkStatus();
  });
  EXPECT_LT(SecondsSince(start), 10);  // and not 60
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_THAT(results[0],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("ranks wait for each other in a cycle"),
                             HasSubstr("op \"Gather\" (call 1 of ranks [1, 2]) for rank 2"),
                             HasSubstr("(call 1 of ranks [0, 2]) for rank 0"),
                             HasSubstr("in one common order"))));
}

// One half of a cycle is a rank that has made the call, and does not come to receive.
TEST(ProcessWaits, ACycleThroughAnExchangeThatBegan) {
  const std::vector<int> both = {0, 1}, all = {0, 1, 2};
  const auto results = RunProcesses(Launched(3, 60), [&](ProcessWorld& world) {
    if (world.rank() == 2) return Gather(world, all, 10);
    if (world.rank() == 0) {
      DT_RETURN_IF_ERROR(Gather(world, both, 100000));  // takes what it receives, and must be read
      return Gather(world, all, 10);
    }
    return Gather(world, both, 100000, [&] { return Gather(world, all, 10); });
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("ranks wait for each other in a cycle"))));
}

// Rank 0 sends to another host what nothing else could go on without, while it waits for a rank of
// its own host: more than any socket holds.
TEST(ProcessWaits, MessagesGoOnWhileMemoryIsWaitedFor) {
  constexpr int64_t kLong = 16 << 20;
  const std::vector<int> there = {2, 3}, back = {1, 3}, here = {0, 1};
  const auto run = [&](ProcessWorld& world) -> absl::Status {
    switch (world.rank()) {
      case 0:
        return Send(world, 0, 2, kLong, [&] { return Gather(world, here, 10); });
      case 1:
        DT_RETURN_IF_ERROR(Gather(world, back, 10));
        return Gather(world, here, 10);
      case 2:
        DT_RETURN_IF_ERROR(Send(world, 0, 2, kLong));
        return Gather(world, there, 10);
      default:
        DT_RETURN_IF_ERROR(Gather(world, there, 10));
        return Gather(world, back, 10);
    }
  };
  EXPECT_THAT(RunProcesses(Launched(4, 60, RankWay::kPairs), run), Each(IsOk()));
}

// Rank 0 waits longer than rank 1, for rank 1, which is not the one that is silent.
TEST(ProcessWaits, WhoWaitsIsNotSilent) {
  std::atomic<bool> rank0_begins = false;
  const auto results = RunProcesses(Launched(3, 4), [&](ProcessWorld& world) {
    DT_RETURN_IF_ERROR(Gather(world, {0, 1, 2}, 10));
    if (world.rank() == 2) {
      while (world.communicator().failure().ok()) Sleep(5);
      return absl::OkStatus();
    }
    if (world.rank() == 0) {
      rank0_begins = true;
      return Gather(world, {0, 1}, 10);
    }
    while (!rank0_begins && world.communicator().failure().ok()) Sleep(5);
    Sleep(1000);
    return Gather(world, {1, 2}, 10);
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr("rank 2: silent for 4 s while rank 0"),
                                           HasSubstr("for rank 1, which waits in op \"Gather\""),
                                           HasSubstr("for rank 2")))));
}

// It waited a while, and computes now.
TEST(ProcessWaits, WhoWaitedIsSilent) {
  const auto results = RunProcesses(Launched(3, 3), [](ProcessWorld& world) {
    DT_RETURN_IF_ERROR(Gather(world, {0, 1, 2}, 10));
    if (world.rank() == 0) return Gather(world, {0, 1}, 10);
    if (world.rank() == 2) Sleep(1200);
    DT_RETURN_IF_ERROR(Gather(world, {1, 2}, 10));
    while (world.communicator().failure().ok()) Sleep(5);
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(StatusIs(
                           absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("rank 1: silent for 3 s"), HasSubstr("rank 0 waits")))));
}

// Every rank says in which operator it met the failure.
TEST(ProcessWaits, TheOperatorIsNamed) {
  std::vector<absl::Status> met(3);
  RunProcesses(Launched(3, 30), [&](ProcessWorld& world) {
    if (world.rank() == 2) {
      Sleep(100);
      return world.communicator().Fail(absl::DataLossError("mine"));
    }
    if (world.rank() == 1) Sleep(500);
    met[world.rank()] =
        world.rank() == 0 ? Gather(world, {0, 1, 2}, 10) : world.communicator().Barrier("Meet");
    return met[world.rank()];
  });
  EXPECT_THAT(met[0], StatusIs(absl::StatusCode::kDataLoss,
                               HasSubstr("rank 2: mine (rank 0 met it in op \"Gather\"")));
  EXPECT_THAT(met[1], StatusIs(absl::StatusCode::kDataLoss,
                               HasSubstr("rank 2: mine (rank 1 met it in op \"Meet\"")));
}

// More groups than are kept; and not the same are forgotten everywhere.
TEST(ProcessWaits, ManyGroups) {
  const auto results = RunProcesses(Launched(8, 60), [](ProcessWorld& world) {
    for (int turn = 0; turn < 3; ++turn) {
      for (int mask = 3; mask < 256; ++mask) {
        std::vector<int> group;
        for (int rank = 0; rank < 8; ++rank) {
          if ((mask >> rank & 1) != 0) group.push_back(rank);
        }
        if (group.size() < 2 || (mask >> world.rank() & 1) == 0) continue;
        DT_RETURN_IF_ERROR(Gather(world, group, 3));
        if (mask % 5 == 0) DT_RETURN_IF_ERROR(Gather(world, group, 3000));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

}  // namespace
}  // namespace dtensor
