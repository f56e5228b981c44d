// Ranks as threads, each with a world of its own, as processes have.
#include "dtensor/runtime/comm/process/process_world.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/process/control_plane.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/comm/process/host_memory.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/comm/testing/reordered_sends.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
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

class ProcessWorldTest : public testing::TestWithParam<RankWay> {
 protected:
  static LaunchedRank World(int size, double timeout_seconds = 30) {
    return Launched(size, timeout_seconds, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(, ProcessWorldTest,
                         testing::Values(RankWay::kShared, RankWay::kTcp, RankWay::kPairs),
                         [](const auto& info) {
                           return std::string(info.param == RankWay::kShared ? "Shared"
                                              : info.param == RankWay::kTcp  ? "Tcp"
                                                                             : "Pairs");
                         });

TEST_P(ProcessWorldTest, Exchanges) {
  for (const int size : {1, 2, 4}) {
    std::vector<int> everyone;
    for (int rank = 0; rank < size; ++rank) everyone.push_back(rank);
    const auto results = RunProcesses(World(size), [&](ProcessWorld& world) {
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
  const auto results = RunProcesses(World(4), [](ProcessWorld& world) {
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
    const auto results = RunProcesses(World(3), [&](ProcessWorld& world) {
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

TEST(ProcessWorld, RefusesARankThatDoesNotKnowWhereRankZeroIs) {
  const auto refused = [](const std::string& launcher, const std::string& remedy) {
    LaunchedRank rank;
    rank.rank = 1;
    rank.size = 4;
    rank.launcher = launcher;
    EXPECT_THAT(
        ProcessWorld::Join(rank).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("JoinWorld: rank 1 of 4 (" + launcher + ")"), HasSubstr(remedy))));
  };
  refused("dtrun", "set DTENSOR_ADDRESS=host:port");
  refused("OpenMPI", "mpirun -x DTENSOR_ADDRESS");
}

TEST_P(ProcessWorldTest, LeavingAgainChangesNothing) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) {
    if (world.rank() == 1) return world.Leave(absl::OkStatus());
    const absl::Status left = world.Leave(absl::NotFoundError("mine"));
    EXPECT_THAT(left, StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank 0: mine")));
    EXPECT_EQ(world.Leave(absl::OkStatus()), left);
    return absl::OkStatus();
  });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kNotFound));
  DT_EXPECT_OK(results[1]);
}

TEST_P(ProcessWorldTest, AWorldThatIsOver) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) {
    DT_EXPECT_OK(Gather(world, {0, 1}, 10));
    DT_EXPECT_OK(world.Leave(absl::OkStatus()));
    const auto is_refused =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the world is over"));
    EXPECT_THAT(Gather(world, {0, 1}, 10), is_refused);
    EXPECT_THAT(world.communicator().Barrier("late"), is_refused);
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// What was on its way when the world ended has not come.
TEST_P(ProcessWorldTest, AnExchangeThatIsFinishedTooLate) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) {
    EXPECT_THAT(Gather(world, {0, 1}, 10, [&] { return world.Leave(absl::OkStatus()); }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the world is over")));
    EXPECT_EQ(world.device().tensors(), 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// A loop that drops what it begins keeps the last one's memory, not all of it, and none in the end.
TEST_P(ProcessWorldTest, DroppedExchangesAreFinishedByTheNextOne) {
  const auto results = RunProcesses(World(4), [](ProcessWorld& world) -> absl::Status {
    const int first = world.rank() / 2 * 2;
    const std::vector<std::vector<int>> groups = {{first, first + 1}, {0, 1, 2, 3}};
    for (const std::vector<int>& group : groups) {
      std::vector<std::weak_ptr<Collective>> dropped;
      for (int i = 0; i < 5; ++i) {
        DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(world.device(), {1, 2}, {2}));
        const auto collective = std::make_shared<Collective>(Collective{.op = "x", .group = group});
        DT_RETURN_IF_ERROR(world.communicator().Begin(*collective, {}));
        world.communicator().Drop(
            *collective,
            std::make_shared<std::pair<std::shared_ptr<Collective>, Tensor>>(collective, source));
        dropped.push_back(collective);
      }
      for (size_t i = 0; i + 1 < dropped.size(); ++i) EXPECT_TRUE(dropped[i].expired()) << i;
    }
    DT_RETURN_IF_ERROR(world.Leave(absl::OkStatus()));
    EXPECT_EQ(world.device().tensors(), 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// Ranks of one world have one time-out, that of rank 0.
TEST_P(ProcessWorldTest, TimeOutsThatDiffer) {
  const LaunchedRank launched = World(2, 30);
  LaunchedRank hasty = As(launched, 1);
  hasty.timeout_seconds = 0.3;
  std::thread other([&] {
    DT_EXPECT_OK(RunProcess(hasty, [](ProcessWorld& world) { return Gather(world, {0, 1}, 10); }));
  });
  DT_EXPECT_OK(RunProcess(As(launched, 0), [](ProcessWorld& world) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    return Gather(world, {0, 1}, 10);
  }));
  other.join();
}

TEST_P(ProcessWorldTest, ARankReturnsAnErrorWhileOthersWait) {
  const auto results = RunProcesses(World(3), [](ProcessWorld& world) {
    if (world.rank() == 1) return absl::DataLossError("mine");
    return Gather(world, {0, 1, 2}, 10);
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDataLoss,
                                     AllOf(HasSubstr("rank 1: "), HasSubstr("mine")))));
}

TEST_P(ProcessWorldTest, ARankReturnsEarly) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) {
    return world.rank() == 0 ? absl::OkStatus() : Gather(world, {0, 1}, 100000);
  });
  EXPECT_THAT(
      results,
      Each(StatusIs(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("rank 0: returned while rank 1 waits"), HasSubstr("Gather")))));
}

TEST_P(ProcessWorldTest, RanksThatDisagree) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) {
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
    LaunchedRank open = World(2);
    open.address.host = host;
    EXPECT_THAT(ProcessWorld::Join(open).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("has no secret"), HasSubstr("set DTENSOR_SECRET"))))
        << host;
  }
  for (const char* host : {"127.0.0.1", "localhost"}) {
    LaunchedRank closed = World(2);
    closed.address.host = host;
    EXPECT_THAT(RunProcesses(closed, [](ProcessWorld&) { return absl::OkStatus(); }), Each(IsOk()));
  }
}

// A host whose name begins as a loopback address does is any host.
TEST_P(ProcessWorldTest, ANameIsNoLoopbackAddress) {
  LaunchedRank open = World(2, 0.2);
  open.address.host = "127.evil.invalid";
  EXPECT_THAT(ProcessWorld::Join(open).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no secret")));
}

// Rank 1 comes, and says that others reach it where nobody listens.
TEST_P(ProcessWorldTest, ARankThatCannotBeReached) {
  const LaunchedRank launched = World(3, 1);
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
    results[1] = RunProcess(As(launched, 2), [](ProcessWorld&) { return absl::OkStatus(); });
  });
  results[0] = RunProcess(As(launched, 0), [](ProcessWorld&) { return absl::OkStatus(); });
  last.join();
  unreachable.join();
  EXPECT_LT(SecondsSince(start), 10);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AnyOf(HasSubstr("nobody answers at 127.0.0.1:"),
                                           HasSubstr("did not connect to rank 0")))));
}

// Which callers seem to have 127.0.0.1: there nobody listens.
TEST(ProcessWorldLinks, RanksOfAnotherLoopbackAddress) {
  LaunchedRank launched = Launched(3, 3, RankWay::kTcp);
  launched.address.host = "127.0.1.1";
  const auto results = RunProcesses(launched, [](ProcessWorld& world) {
    return Gather(world, {0, 1, 2}, 10);
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// Ranks may bring a transport of their own, and rank 0 a listener, whose port nobody else takes.
TEST(ProcessWorldLinks, AnotherTransport) {
  std::vector<Socket> ends(2);
  std::tie(ends[0], ends[1]) = SocketPair();
  const auto links = [&](int rank) {
    RankLinks made;
    made.name = "sockets";
    made.transport = [&ends, rank](WorldState& world) {
      EXPECT_THAT(world.failure(), IsOk());
      std::vector<Socket> peers(2);
      peers[1 - rank] = std::move(ends[rank]);
      return std::make_unique<TcpTransport>(std::move(peers));
    };
    return made;
  };
  LaunchedRank launched = Launched(2, 30, RankWay::kTcp);
  Socket listener = ListenAt({"127.0.0.1", 0}).value();
  launched.address.port = PortOf(listener).value();
  const auto run = [&](int rank) {
    RankLinks mine = links(rank);
    if (rank == 0) mine.listener = std::move(listener);
    const auto world = ProcessWorld::Join(As(launched, rank), std::move(mine));
    return world.ok() ? (*world)->Leave((*world)->communicator().Barrier("meet")) : world.status();
  };
  std::thread other([&] { DT_EXPECT_OK(run(1)); });
  DT_EXPECT_OK(run(0));
  other.join();
}

TEST(HostIds, AHostThatCannotBeToldIsNobodysNeighbour) {
  const std::string self = absl::StrCat(getpid());
  EXPECT_EQ(HostIdOf("", self, ""), "");
  EXPECT_EQ(HostIdOf("", self, "node0"), "");
  EXPECT_NE(HostIdOf("a boot", self, ""), "");
  EXPECT_NE(HostIdOf("a boot", self, ""), HostIdOf("another", self, ""));
  EXPECT_NE(HostIdOf("a boot", self, "node0"), HostIdOf("a boot", self, "node1"));
  EXPECT_NE(HostId(""), "");
}

// `unshare --pid --fork` without a /proc of its own: there /proc/3/fd is another process's.
TEST(HostIds, OtherProcessNumbersThanThoseOfProcShareNoMemory) {
  EXPECT_EQ(HostIdOf("a boot", absl::StrCat(getpid() + 1), ""), "");
  EXPECT_EQ(HostIdOf("a boot", "", "node0"), "");  // /proc does not know this process
}

// Of other processes' arenas.
int CountViews() {
  std::ifstream maps("/proc/self/maps");
  int views = 0;
  for (std::string line; std::getline(maps, line);) {
    views += absl::StrContains(line, "memfd:dtensor") && absl::StrContains(line, " r--s ") ? 1 : 0;
  }
  return views;
}

// As batch systems limit addresses (ulimit -v).
TEST(RankArena, LeavesAddressesForThoseOfOthers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limits that this sets";
#else
  const auto ends = [](int size, int64_t bytes) {
    const rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    setrlimit(RLIMIT_AS, &limit);
    const auto arena = MakeRankArena(size);
    if (!arena.ok()) return 1;
    std::vector<ArenaView> views;
    for (int peer = 1; peer < size; ++peer) {
      absl::StatusOr<ArenaView> view = ArenaView::Open((*arena)->name());
      if (!view.ok()) return 2;
      views.push_back(*std::move(view));
    }
    return (*arena)->bytes() > bytes / (size + 2) ? 0 : 3;
  };
  constexpr int64_t kGiB = int64_t{1} << 30;
  for (const int size : {2, 3, 64}) {
    for (const int64_t bytes : {100 * kGiB, 500 * kGiB, 2000 * kGiB}) {
      const pid_t child = fork();
      if (child == 0) _exit(ends(size, bytes));
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << size << " ranks, " << bytes / kGiB << " GiB";
    }
  }
#endif
}

// Each has as many addresses as a rank's own arena. A tensor that outlives the world keeps that.
TEST(ProcessWorldLinks, WhoHasLeftMapsNobodysMemory) {
  std::latch all_joined(3), all_left(3);
  const LaunchedRank launched = Launched(3, 30);
  const auto run = [&](int rank) {
    const auto world = ProcessWorld::Join(As(launched, rank));
    DT_ASSERT_OK(world);
    DT_ASSERT_OK_AND_ASSIGN(const Tensor kept, FromHost<float>((*world)->device(), {1, 2}, {2}));
    DT_EXPECT_OK(Gather(**world, {0, 1, 2}, 1000));
    all_joined.arrive_and_wait();
    EXPECT_GT(CountViews(), 0);
    DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
    all_left.arrive_and_wait();
    EXPECT_EQ(CountViews(), 0);
    EXPECT_THAT(ToHost<float>(kept), IsOkAndHolds(std::vector<float>{1, 2}));
    EXPECT_FALSE(Gather(**world, {0, 1, 2}, 1000).ok());
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) threads.emplace_back([&, rank] { run(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Notes that it is destroyed.
class WatchedTransport final : public ReorderedSends {
 public:
  WatchedTransport(std::unique_ptr<TcpTransport> inner, std::atomic<int>& gone)
      : ReorderedSends(*inner), inner_(std::move(inner)), gone_(gone) {}
  ~WatchedTransport() override { ++gone_; }

 private:
  const std::unique_ptr<TcpTransport> inner_;
  std::atomic<int>& gone_;
};

// A world of which a tensor is left is never destroyed; MPI is finalized all the same.
TEST(ProcessWorldLinks, TheTransportEndsWhenItsRankLeaves) {
  std::vector<Socket> ends(2);
  std::tie(ends[0], ends[1]) = SocketPair();
  const LaunchedRank launched = Launched(2, 30, RankWay::kTcp);
  const auto run = [&](int rank) {
    std::atomic<int> gone = 0, ended = 0;
    RankLinks links;
    links.name = "sockets";
    links.transport = [&](WorldState&) {
      std::vector<Socket> peers(2);
      peers[1 - rank] = std::move(ends[rank]);
      return std::make_unique<WatchedTransport>(std::make_unique<TcpTransport>(std::move(peers)),
                                                gone);
    };
    links.ended = [&](const absl::Status& failure) {
      DT_EXPECT_OK(failure);
      EXPECT_EQ(gone, 1);
      ++ended;
    };
    const auto world = ProcessWorld::Join(As(launched, rank), std::move(links));
    DT_ASSERT_OK(world);
    DT_EXPECT_OK((*world)->communicator().Barrier("meet"));
    DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
    EXPECT_EQ(ended, 1);
    DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
    EXPECT_EQ(ended, 1);
    EXPECT_FALSE((*world)->communicator().Barrier("too late").ok());
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(ProcessWorldLinks, UnlikeTransports) {
  const LaunchedRank launched = Launched(2, 30, RankWay::kTcp);
  const auto never = [](WorldState&) -> absl::StatusOr<std::unique_ptr<MessageTransport>> {
    ADD_FAILURE() << "asked for a transport";
    return absl::InternalError("never");
  };
  RankLinks links;
  links.name = "mpi";
  links.transport = never;
  absl::Status other;
  std::thread tcp([&] { other = ProcessWorld::Join(As(launched, 1)).status(); });
  const absl::Status status = ProcessWorld::Join(As(launched, 0), std::move(links)).status();
  tcp.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("mpi"), HasSubstr("TCP"),
                                     HasSubstr("same DTENSOR_TRANSPORT"))));
  EXPECT_EQ(status, other);
}

TEST_P(ProcessWorldTest, ACardThatCannotBeRead) {
  const std::string good = Encode(HostCard{.port = 1});
  for (const std::string& card :
       {std::string(), good + "x", good.substr(1), Encode(HostCard{.port = 65536}),
        Encode(HostCard{.arena = {.bytes = -1}})}) {
    const LaunchedRank launched = World(2, 5);
    std::thread strange([&] {
      DT_EXPECT_OK(ControlPlane::Join(
          {1, 2, launched.address, launched.job, launched.secret, launched.timeout_seconds}, card));
    });
    EXPECT_THAT(RunProcess(As(launched, 0), [](ProcessWorld&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("card cannot be read")))
        << card;
    strange.join();
  }
}

}  // namespace
}  // namespace dtensor
