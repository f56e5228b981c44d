// Ranks as threads, each with a world of its own, as processes have.
#include "dtensor/runtime/comm/process/process_world.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/process/control_plane.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Function = std::function<absl::Status(ProcessWorld&)>;

LaunchedRank Launched(int size, double timeout_seconds = 30) {
  LaunchedRank rank;
  rank.size = size;
  rank.address = {"127.0.0.1", FreePort()};
  rank.job = "job";
  rank.timeout_seconds = timeout_seconds;
  return rank;
}

// How ranks reach each other: all by shared memory, all by TCP, or two and two by shared memory.
enum class Way { kShared, kTcp, kHosts };
Way way = Way::kShared;

LaunchedRank As(LaunchedRank launched, int rank) {
  launched.rank = launched.local_rank = rank;
  launched.shares_memory = way != Way::kTcp;
  if (way == Way::kHosts) launched.host = absl::StrCat(rank / 2);
  return launched;
}

class ProcessWorldTest : public testing::TestWithParam<Way> {
 protected:
  ProcessWorldTest() { way = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(, ProcessWorldTest, testing::Values(Way::kShared, Way::kTcp, Way::kHosts),
                         [](const auto& info) {
                           return std::string(info.param == Way::kShared ? "Shared"
                                              : info.param == Way::kTcp  ? "Tcp"
                                                                         : "Hosts");
                         });

absl::Status RunRank(const LaunchedRank& rank, const Function& fn) {
  const auto world = ProcessWorld::Join(rank);
  return world.ok() ? (*world)->Leave(fn(**world)) : world.status();
}

// What each rank's Leave, or Join, returned.
std::vector<absl::Status> RunAll(const LaunchedRank& launched, const Function& fn) {
  std::vector<absl::Status> results(launched.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < launched.size; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = RunRank(As(launched, rank), fn); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Each rank of `group` receives `length` elements of every one, its own too.
class GatherBoxes final : public ExchangeBoxes {
 public:
  GatherBoxes(std::vector<int> group, int64_t length) : group_(std::move(group)), length_(length) {}
  std::vector<ReceiveBox> Receives(size_t, int) const override {
    std::vector<ReceiveBox> boxes;
    for (size_t i = 0; i < group_.size(); ++i) {
      const auto begin = static_cast<int64_t>(i) * length_;
      boxes.push_back({.peers = {group_[i]}, .dims = {{.dst = begin, .length = length_}}});
    }
    return boxes;
  }
  uint64_t digest() const override {
    uint64_t digest = static_cast<uint64_t>(length_);
    for (const int rank : group_) digest = digest * 64 + static_cast<uint64_t>(rank + 1);
    return digest;
  }

 private:
  const std::vector<int> group_;
  const int64_t length_;
};

float ValueOf(int rank, int64_t i) { return static_cast<float>(rank * 1000 + i % 997); }

absl::Status Gather(ProcessWorld& world, const std::vector<int>& group, int64_t length) {
  DT_ASSIGN_OR_RETURN(const Tensor source, Tensor::Empty(world.device(), DType::kF32, {length}));
  DT_ASSIGN_OR_RETURN(
      const Tensor result,
      Tensor::Empty(world.device(), DType::kF32, {static_cast<int64_t>(group.size()) * length}));
  for (int64_t i = 0; i < length; ++i) source.data<float>()[i] = ValueOf(world.rank(), i);
  const GatherBoxes boxes(group, length);
  const std::vector<ReceiveBox> receives = boxes.Receives(0, world.rank());
  const ExchangePart part{source, result, receives};
  DT_RETURN_IF_ERROR(world.communicator().Exchange(
      {.axes = "dp", .op = "Gather", .group = group, .boxes = &boxes}, {&part, 1}));
  DT_RETURN_IF_ERROR(world.device().Synchronize());
  for (size_t peer = 0; peer < group.size(); ++peer) {
    for (int64_t i = 0; i < length; ++i) {
      if (result.data<float>()[peer * length + i] != ValueOf(group[peer], i)) {
        return absl::DataLossError(absl::StrCat("element ", i, " of rank ", group[peer]));
      }
    }
  }
  return absl::OkStatus();
}

TEST_P(ProcessWorldTest, Exchanges) {
  for (const int size : {1, 2, 4}) {
    std::vector<int> everyone;
    for (int rank = 0; rank < size; ++rank) everyone.push_back(rank);
    const auto results = RunAll(Launched(size), [&](ProcessWorld& world) {
      EXPECT_EQ(world.size(), size);
      EXPECT_EQ(world.communicator().rank(), world.rank());
      for (const int64_t length : {1, 100, 100000, 0, 1000000}) {
        DT_RETURN_IF_ERROR(Gather(world, everyone, length));
      }
      return world.communicator().Barrier("end");
    });
    EXPECT_THAT(results, Each(IsOk()));
  }
}

TEST_P(ProcessWorldTest, GroupsOfRanks) {
  const auto results = RunAll(Launched(4), [](ProcessWorld& world) {
    const std::vector<int> row = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column =
        world.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(Gather(world, row, 5000));
      DT_RETURN_IF_ERROR(Gather(world, column, 5000));
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// Whoever leaves first waits for the others, who go on without it.
TEST_P(ProcessWorldTest, LeavesInAnyOrder) {
  for (const int first : {0, 1, 2}) {
    std::atomic<bool> went_on = false;
    const auto results = RunAll(Launched(3), [&](ProcessWorld& world) {
      if (world.rank() == first) return absl::OkStatus();
      std::vector<int> others;
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != first) others.push_back(rank);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int i = 0; i < 20; ++i) DT_RETURN_IF_ERROR(Gather(world, others, 20000));
      went_on = true;
      return absl::OkStatus();
    });
    EXPECT_THAT(results, Each(IsOk())) << first;
    EXPECT_TRUE(went_on);
  }
}

TEST_P(ProcessWorldTest, LeavingAgainChangesNothing) {
  const auto results = RunAll(Launched(2), [](ProcessWorld& world) {
    if (world.rank() == 1) return world.Leave(absl::OkStatus());
    const absl::Status left = world.Leave(absl::NotFoundError("mine"));
    EXPECT_THAT(left, StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank 0: mine")));
    EXPECT_EQ(world.Leave(absl::OkStatus()), left);
    return absl::OkStatus();
  });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kNotFound));
  DT_EXPECT_OK(results[1]);
}

TEST_P(ProcessWorldTest, ARankReturnsAnErrorWhileOthersWait) {
  const auto results = RunAll(Launched(3), [](ProcessWorld& world) {
    if (world.rank() == 1) return absl::DataLossError("mine");
    return Gather(world, {0, 1, 2}, 10);
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDataLoss,
                                     AllOf(HasSubstr("rank 1: "), HasSubstr("mine")))));
}

TEST_P(ProcessWorldTest, ARankReturnsEarly) {
  const auto results = RunAll(Launched(2), [](ProcessWorld& world) {
    return world.rank() == 0 ? absl::OkStatus() : Gather(world, {0, 1}, 100000);
  });
  EXPECT_THAT(
      results,
      Each(StatusIs(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("rank 0: returned while rank 1 waits"), HasSubstr("Gather")))));
}

TEST_P(ProcessWorldTest, RanksThatDisagree) {
  const auto results = RunAll(Launched(2), [](ProcessWorld& world) {
    return world.rank() == 0 ? Gather(world, {0, 1}, 10)
                             : world.communicator().Barrier("something else");
  });
  EXPECT_FALSE(results[0].ok());
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(std::string(results[0].message()),
              AllOf(HasSubstr("Gather"), HasSubstr("something else")));
}

TEST_P(ProcessWorldTest, RefusesAWorldThatStrangersCouldJoin) {
  for (const char* host : {"192.0.2.1", "node0", "0.0.0.0", "", "::", "fe80::1"}) {
    LaunchedRank open = Launched(2);
    open.address.host = host;
    EXPECT_THAT(ProcessWorld::Join(open).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("has no secret"), HasSubstr("set DTENSOR_SECRET"))))
        << host;
  }
  for (const char* host : {"127.0.0.1", "localhost"}) {
    LaunchedRank closed = Launched(2);
    closed.address.host = host;
    EXPECT_THAT(RunAll(closed, [](ProcessWorld&) { return absl::OkStatus(); }), Each(IsOk()));
  }
}

// A host whose name begins as a loopback address does is any host.
TEST_P(ProcessWorldTest, ANameIsNoLoopbackAddress) {
  LaunchedRank open = Launched(2, 0.2);
  open.address.host = "127.evil.invalid";
  EXPECT_THAT(ProcessWorld::Join(open).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no secret")));
}

// Rank 1 comes, and says that others reach it where nobody listens.
TEST_P(ProcessWorldTest, ARankThatCannotBeReached) {
  const LaunchedRank launched = Launched(3, 1);
  std::vector<absl::Status> results(2);
  const auto start = NetClock::now();
  std::thread unreachable([&] {
    const auto plane = ControlPlane::Join(
        {1, 3, launched.address, launched.job, launched.secret, launched.timeout_seconds},
        Encode(HostCard{.port = FreePort()}));
    DT_ASSERT_OK(plane);
    while (!(*plane)->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  std::thread last([&] {
    results[1] = RunRank(As(launched, 2), [](ProcessWorld&) { return absl::OkStatus(); });
  });
  results[0] = RunRank(As(launched, 0), [](ProcessWorld&) { return absl::OkStatus(); });
  last.join();
  unreachable.join();
  EXPECT_LT(SecondsSince(start), 10);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AnyOf(HasSubstr("nobody answers at 127.0.0.1:"),
                                           HasSubstr("did not connect to rank 0")))));
}

TEST_P(ProcessWorldTest, ACardThatCannotBeRead) {
  const std::string good = Encode(HostCard{.port = 1});
  for (const std::string& card :
       {std::string(), good + "x", good.substr(1), Encode(HostCard{.port = 65536}),
        Encode(HostCard{.arena = {.bytes = -1}})}) {
    const LaunchedRank launched = Launched(2, 5);
    std::thread strange([&] {
      DT_EXPECT_OK(ControlPlane::Join(
          {1, 2, launched.address, launched.job, launched.secret, launched.timeout_seconds}, card));
    });
    EXPECT_THAT(RunRank(As(launched, 0), [](ProcessWorld&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("card cannot be read")))
        << card;
    strange.join();
  }
}

}  // namespace
}  // namespace dtensor
