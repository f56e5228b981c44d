// Ranks as threads, each with a control plane of its own, as processes have.
#include "dtensor/runtime/comm/process/control_plane.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/net/admission.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// Whether the system has no thread for this one.
thread_local bool refuses_threads = false;

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*fn)(void*), void* argument) {
  if (refuses_threads) return EAGAIN;
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, fn, argument);
}

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Worlds {
 public:
  explicit Worlds(int size, double timeout_seconds = 20)
      : options_{0, size, {"127.0.0.1", FreePort()}, "job", "secret", timeout_seconds} {}

  void set_report(std::function<void(const absl::Status&)> report) {
    options_.report = std::move(report);
  }
  const ControlPlaneOptions& options() const { return options_; }
  ControlPlaneOptions OptionsOf(int rank) const {
    ControlPlaneOptions options = options_;
    options.rank = rank;
    return options;
  }
  // Runs fn on the ranks, each on its thread, which does `first` before it joins; returns what they
  // returned.
  std::vector<absl::Status> Run(
      const std::vector<int>& ranks, const std::function<absl::Status(ControlPlane&)>& fn,
      const std::function<void()>& first = [] {}) const {
    std::vector<absl::Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        first();
        const auto plane =
            ControlPlane::Join(OptionsOf(ranks[i]), "card of " + std::to_string(ranks[i]));
        results[i] = plane.ok() ? fn(**plane) : plane.status();
        if (plane.ok()) (*plane)->Leave(results[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

 private:
  ControlPlaneOptions options_;
};

absl::Status AwaitFailure(ControlPlane& plane) {
  while (!plane.failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return plane.failure();
}

// A connection of rank `rank` that does nothing but what a test says.
FramedLink Impostor(const ControlPlaneOptions& options, int rank) {
  const auto deadline = NetClock::now() + std::chrono::seconds(10);
  Socket socket = ConnectTo(options.address, deadline).value();
  DT_EXPECT_OK(Introduce(socket, LinkKind::kControl, rank,
                         {options.job, options.secret, static_cast<uint32_t>(options.size)},
                         deadline));
  FramedLink link(std::move(socket), kMostControlBytes);
  link.Queue(static_cast<uint8_t>(ControlMessage::kCard), "impostor");
  DT_EXPECT_OK(link.Flush());
  EXPECT_EQ(link.Await(deadline)->type, static_cast<uint8_t>(ControlMessage::kCards));
  return link;
}

// A process that is stopped as soon as it has connected is not gone.
TEST(ControlPlane, SaysWhoComesAndSaysNothing) {
  const Worlds worlds(2, /*timeout_seconds=*/5);
  std::promise<void> over;
  std::thread silent([&] {
    const auto deadline = NetClock::now() + std::chrono::seconds(5);
    const ControlPlaneOptions& options = worlds.options();
    Socket socket = ConnectTo(options.address, deadline).value();
    DT_EXPECT_OK(
        Introduce(socket, LinkKind::kControl, 1, {options.job, options.secret, 2}, deadline));
    over.get_future().wait();
  });
  const auto results = worlds.Run({0}, [](ControlPlane&) { return absl::OkStatus(); });
  over.set_value();
  silent.join();
  EXPECT_THAT(results, ElementsAre(StatusIs(
                           absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("rank 1 came, and then said nothing for 3 s; is its"))));
}

TEST(ControlPlane, GivesEachRankAllCards) {
  for (int size : {1, 2, 5}) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    const auto results = Worlds(size).Run(ranks, [&](ControlPlane& plane) {
      EXPECT_EQ(plane.cards().size(), size);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(plane.cards()[rank].text, "card of " + std::to_string(rank));
        // Who comes by loopback is of rank 0's host: elsewhere that address is another's.
        EXPECT_EQ(plane.cards()[rank].host, "");
      }
      return plane.failure();
    });
    EXPECT_THAT(results, ::testing::Each(IsOk()));
  }
}

std::atomic<bool> was_taken = false;

// A program that joins, and then waits for a signal by sigwait on one thread: all its threads block
// it, so the world's must not take it.
TEST(ControlPlane, TheProgramsSignalsAreItsOwn) {
  sigset_t usr1, before;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  struct sigaction action = {}, old_action;
  action.sa_handler = [](int) { was_taken = true; };
  sigaction(SIGUSR1, &action, &old_action);
  pthread_sigmask(SIG_BLOCK, &usr1, &before);
  std::latch all_block(2);
  const auto results = Worlds(2).Run(
      {0, 1},
      [&](ControlPlane& plane) {
        pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
        all_block.arrive_and_wait();
        if (plane.rank() == 1) return absl::OkStatus();
        kill(getpid(), SIGUSR1);
        // A thread that may take it does so now.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const timespec most = {5, 0};
        EXPECT_EQ(sigtimedwait(&usr1, nullptr, &most), SIGUSR1);
        return absl::OkStatus();
      },
      [&] { pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr); });
  EXPECT_THAT(results, ::testing::Each(IsOk()));
  EXPECT_FALSE(was_taken);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  sigaction(SIGUSR1, &old_action, nullptr);
}

TEST(ControlPlane, SaysWhatToRaiseWhereThereIsNoThread) {
  const auto fn = [](ControlPlane&) { return absl::OkStatus(); };
  const std::vector<absl::Status> results =
      Worlds(2).Run({0, 1}, fn, [] { refuses_threads = true; });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kResourceExhausted,
                                   AllOf(HasSubstr("rank 0 of 2 cannot join the world"),
                                         HasSubstr("no thread"), HasSubstr("ulimit -u"))));
  EXPECT_FALSE(results[1].ok());
}

TEST(ControlPlane, SaysWhoIsMissing) {
  const auto results = Worlds(4, 0.5).Run({0, 2}, [](ControlPlane&) { return absl::OkStatus(); });
  EXPECT_THAT(results,
              ::testing::Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                       HasSubstr("ranks 1, 3 of 4 did not come within 0.5 s"))));
}

TEST(ControlPlane, SaysWhereNobodyAnswers) {
  const Worlds worlds(2, 0.3);
  const auto results = worlds.Run({1}, [](ControlPlane&) { return absl::OkStatus(); });
  EXPECT_THAT(results,
              ElementsAre(StatusIs(
                  absl::StatusCode::kDeadlineExceeded,
                  AllOf(HasSubstr("rank 1 of 2 cannot join"),
                        HasSubstr("nobody answers at " + worlds.options().address.ToString())))));
}

TEST(ControlPlane, KeepsOtherJobsOut) {
  const Worlds worlds(2, 2);
  ControlPlaneOptions other = worlds.OptionsOf(1);
  other.secret = "another";
  std::thread stranger([&] {
    EXPECT_THAT(ControlPlane::Join(other, "").status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another secret")));
    other.secret = worlds.options().secret;
    other.size = 3;
    EXPECT_THAT(ControlPlane::Join(other, "").status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not 3 ranks")));
  });
  EXPECT_THAT(worlds.Run({0}, [](ControlPlane&) { return absl::OkStatus(); }),
              ElementsAre(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("rank 1 of 2 did not come within 2 s; rank 1 "
                                                   "called, and says that its world has another"),
                                         HasSubstr("; 1 caller was of another job, or had")))));
  stranger.join();
}

TEST(ControlPlane, TwoProcessesOfOneRank) {
  const auto results = Worlds(3, 1).Run({0, 1, 1}, [](ControlPlane&) { return absl::OkStatus(); });
  EXPECT_THAT(results, ::testing::Contains(StatusIs(absl::StatusCode::kFailedPrecondition,
                                                    HasSubstr("a rank 1 already"))));
}

TEST(ControlPlane, TheFirstFailureIsEverybodys) {
  const auto results = Worlds(4).Run({0, 1, 2, 3}, [](ControlPlane& plane) {
    if (plane.rank() == 0) return AwaitFailure(plane);
    return plane.Fail(plane.rank(), absl::DataLossError("mine"));
  });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kDataLoss, HasSubstr(": mine")));
  EXPECT_THAT(results, ::testing::Each(results[0]));
}

TEST(ControlPlane, TellsOfAFailureOnceItIsThere) {
  std::latch all_ask(3);
  const auto results = Worlds(3).Run({0, 1, 2}, [&](ControlPlane& plane) -> absl::Status {
    std::promise<void> told;
    bool of_another = false, at_once = false;
    plane.TellOfFailure([&] { of_another = true; });
    plane.TellOfFailure([&] { told.set_value(); });
    all_ask.arrive_and_wait();
    // Rank 0 is told by its own call, the others by their threads.
    if (plane.rank() == 0) plane.Fail(0, absl::DataLossError("lost")).IgnoreError();
    told.get_future().wait();
    EXPECT_TRUE(plane.failed());
    plane.TellOfFailure(nullptr);
    plane.TellOfFailure([&] { at_once = true; });
    EXPECT_TRUE(at_once);
    EXPECT_FALSE(of_another);
    plane.TellOfFailure(nullptr);
    return plane.failure();
  });
  EXPECT_THAT(results,
              ::testing::Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 0: lost"))));
}

TEST(ControlPlane, TellsWhatOthersReturned) {
  const auto results = Worlds(3).Run({0, 1, 2}, [](ControlPlane& plane) {
    if (plane.rank() == 2) return absl::NotFoundError("gone home");
    while (!plane.returned(2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(*plane.returned(2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gone home")));
    EXPECT_FALSE(plane.failed());
    return absl::OkStatus();
  });
  EXPECT_THAT(results, ElementsAre(IsOk(), IsOk(), StatusIs(absl::StatusCode::kNotFound)));
}

// It may write a file for an hour, and it may be stuck: nobody ends it, and somebody says so.
TEST(ControlPlane, SaysOnceWhoDoesNotReturn) {
  std::mutex mutex;
  std::vector<absl::Status> told;  // by one rank alone
  Worlds worlds(3, 2);
  worlds.set_report([&](const absl::Status& trouble) {
    const std::lock_guard lock(mutex);
    told.push_back(trouble);
  });
  const auto results = worlds.Run({0, 1, 2}, [](ControlPlane& plane) {
    if (plane.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
    return absl::OkStatus();
  });
  EXPECT_THAT(told, ::testing::ElementsAre(absl::DeadlineExceededError(
                        "rank 1 has not returned 2 s after rank 0, and the world waits for "
                        "that")));
  EXPECT_THAT(results, ::testing::Each(IsOk()));
}

// A transport has something to send as long as others wait for it.
TEST(ControlPlane, SaysSoAmidWork) {
  std::atomic<bool> told = false;
  Worlds worlds(2, 2);
  worlds.set_report([&](const absl::Status&) { told = true; });
  int calls = 0;
  const auto results = worlds.Run({0, 1}, [&](ControlPlane& plane) {
    if (plane.rank() == 1) {
      for (int i = 0; i < 500 && !told; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      EXPECT_TRUE(told);
      return absl::OkStatus();
    }
    plane.Leave(absl::OkStatus());
    plane.AwaitEnd([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++calls;
      return !plane.returned(1).has_value();
    });
    return absl::OkStatus();
  });
  EXPECT_GT(calls, 1);
  EXPECT_THAT(results, ::testing::Each(IsOk()));
}

TEST(ControlPlane, AClosedConnectionIsADeath) {
  const Worlds worlds(3, 30);
  NetClock::time_point died;
  std::thread killed([&] {
    FramedLink link = Impostor(worlds.options(), 2);
    died = NetClock::now();
  });
  const auto results = worlds.Run({0, 1}, [](ControlPlane& plane) { return AwaitFailure(plane); });
  killed.join();
  EXPECT_LT(SecondsSince(died), 15);  // and not 30
  EXPECT_THAT(results, ::testing::Each(StatusIs(absl::StatusCode::kUnavailable,
                                                HasSubstr("rank 2: its process is gone"))));
}

// Who died while others are missing is not waited for, nor are they.
TEST(ControlPlane, ADeathWhileTheWorldForms) {
  const Worlds worlds(4, 30);
  const auto start = NetClock::now();
  std::thread killed([&] {
    Socket socket = ConnectTo(worlds.options().address, In(10)).value();
    DT_EXPECT_OK(Introduce(socket, LinkKind::kControl, 2, {"job", "secret", 4}, In(10)));
  });
  const auto results = worlds.Run({0, 1}, [](ControlPlane&) { return absl::OkStatus(); });
  killed.join();
  EXPECT_LT(SecondsSince(start), 10);
  EXPECT_THAT(results, ::testing::Each(StatusIs(absl::StatusCode::kUnavailable,
                                                HasSubstr("rank 2: its process is gone: before"))));
}

TEST(ControlPlane, Rank0DiesWhileTheWorldForms) {
  const Worlds worlds(3, 30);
  std::thread killed([&] {
    Socket listener = ListenAt(worlds.options().address).value();
    Admission door(std::move(listener), LinkKind::kControl, {"job", "secret", 3},
                   [](int) { return true; });
    EXPECT_TRUE(door.Next(In(10)).value().has_value());
  });
  EXPECT_THAT(
      worlds.Run({1}, [](ControlPlane&) { return absl::OkStatus(); }),
      ElementsAre(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0: its process is"))));
  killed.join();
}

// A listener that is asked by too many lets some go before they could say who they are.
TEST(ControlPlane, ComesAgainWhereTheConnectionCloses) {
  const Worlds worlds(2, 20);
  std::thread fickle([&] {
    Socket listener = ListenAt(worlds.options().address).value();
    for (int calls = 0; calls < 3;) {
      Socket caller = AcceptFrom(listener).value();
      if (caller.is_open() && ++calls == 2)
        SendAll(caller, BytesOf(RandomNonce()), In(5)).IgnoreError();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    listener.Close();
    EXPECT_THAT(worlds.Run({0}, [](ControlPlane&) { return absl::OkStatus(); }),
                ElementsAre(IsOk()));
  });
  EXPECT_THAT(worlds.Run({1}, [](ControlPlane&) { return absl::OkStatus(); }), ElementsAre(IsOk()));
  fickle.join();
}

// Who closes with something unread resets the connection, and takes back what is on its way.
TEST(ControlPlane, Rank0StaysUntilTheOthersHaveGone) {
  const Worlds worlds(2, 30);
  std::atomic<bool> gone = false;
  std::thread other([&] {
    FramedLink link = Impostor(worlds.options(), 1);
    link.Queue(static_cast<uint8_t>(ControlMessage::kLeave), Encode(RankStatus{1, {}}));
    DT_EXPECT_OK(link.Flush());
    while (link.Await(In(10))->type != static_cast<uint8_t>(ControlMessage::kOver)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    gone = true;
  });
  const auto results = worlds.Run({0}, [](ControlPlane& plane) {
    plane.Leave(absl::OkStatus());
    plane.AwaitEnd();
    return absl::OkStatus();
  });
  EXPECT_TRUE(gone);
  EXPECT_THAT(results, ElementsAre(IsOk()));
  other.join();
}

TEST(ControlPlane, ASilentProcessIsLost) {
  const Worlds worlds(3, 2);
  std::latch over(1);
  std::thread stopped([&] {
    const FramedLink link = Impostor(worlds.options(), 2);
    over.wait();
  });
  const auto start = NetClock::now();
  const auto results = worlds.Run({0, 1}, [&](ControlPlane& plane) {
    const absl::Status failure = AwaitFailure(plane);
    EXPECT_GT(SecondsSince(start), 1.9);
    return failure;
  });
  EXPECT_THAT(results,
              ::testing::Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                       HasSubstr("rank 2: its process has given no sign"))));
  over.count_down();
  stopped.join();
}

// A rank that returns a file's text, say: the others hear of it all the same.
TEST(ControlPlane, AnErrorOfAnyLengthIsTold) {
  const std::string text(100 << 20, 'x');
  const Worlds worlds(2, 20);
  const auto results = worlds.Run({0, 1}, [&](ControlPlane& plane) {
    if (plane.rank() == 1) return plane.Fail(1, absl::DataLossError(text));
    return AwaitFailure(plane);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr(" bytes) ..."));
  EXPECT_LT(results[0].message().size(), 1 << 16);
}

// Messages of any kind, sound, cut, or changed in a byte: the world fails, or the rank has left.
TEST(ControlPlane, AnythingThatAProcessMaySay) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 60; ++turn) {
    const Worlds worlds(3, 20);
    std::thread mad([&] {
      FramedLink link = Impostor(worlds.options(), 1 + turn % 2);
      for (int i = 0; i < 5; ++i) {
        const RankStatus status = {
            static_cast<int>(random() % 3),
            absl::Status(static_cast<absl::StatusCode>(random() % 17), "it")};
        std::string body = random() % 4 == 0 ? Pattern(random() % 50, turn) : Encode(status);
        if (random() % 3 == 0) body.resize(random() % (body.size() + 1));
        if (random() % 3 == 0 && !body.empty()) body[random() % body.size()] ^= 1 << random() % 8;
        link.Queue(static_cast<uint8_t>(random() % 10), body);
      }
      link.Flush().IgnoreError();
    });
    // It dies, which is a failure, unless it has left before.
    const auto results = worlds.Run({0, 2 - turn % 2}, [&](ControlPlane& plane) {
      while (!plane.failed() && !plane.returned(1 + turn % 2)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return plane.failure();
    });
    mad.join();
    EXPECT_EQ(results.size(), 2);
  }
}

TEST(ControlPlane, AProcessThatTalksNonsenseIsLost) {
  const Worlds worlds(2, 30);
  std::thread mad([&] {
    FramedLink link = Impostor(worlds.options(), 1);
    link.Queue(99, "nonsense");
    DT_EXPECT_OK(link.Flush());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  EXPECT_THAT(worlds.Run({0}, [](ControlPlane& plane) { return AwaitFailure(plane); }),
              ElementsAre(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1: its"))));
  mad.join();
}

}  // namespace
}  // namespace dtensor
