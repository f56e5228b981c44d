#include "dtensor/runtime/net/admission.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const JobKey kKey = {"job", "a secret", 8};

// A listener that lets in the ranks that a test names, each once.
class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() {
    Socket listener = ListenAt({"127.0.0.1", 0}).value();
    at_ = {"127.0.0.1", PortOf(listener).value()};
    door_ = std::make_unique<Admission>(std::move(listener), LinkKind::kControl, kKey,
                                        [this](int rank) { return awaited_.count(rank) > 0; });
  }

  Socket Call() const { return ConnectTo(at_, In(20)).value(); }
  absl::Status CallAs(uint32_t rank, const JobKey& key = kKey,
                      LinkKind kind = LinkKind::kControl) const {
    Socket socket = Call();
    return Introduce(socket, kind, rank, key, In(20));
  }
  // Lets in all that are awaited, if they come by then.
  void LetIn(double seconds) {
    const auto deadline = In(seconds);
    while (!awaited_.empty()) {
      auto guest = door_->Next(deadline);
      ASSERT_THAT(guest, IsOk());
      if (!*guest) return;
      EXPECT_EQ(awaited_.erase((*guest)->rank), 1);
      guests_.push_back(std::move((*guest)->socket));
    }
  }

  HostPort at_;
  std::set<int> awaited_;
  std::vector<Socket> guests_;
  std::unique_ptr<Admission> door_;
};

TEST_F(AdmissionTest, NobodyComes) {
  const auto start = NetClock::now();
  const auto nobody = door_->Next(In(0.1));
  ASSERT_THAT(nobody, IsOk());
  EXPECT_FALSE(nobody->has_value());
  EXPECT_GE(SecondsSince(start), 0.099);
  EXPECT_LT(SecondsSince(start), 5);
}

TEST_F(AdmissionTest, LetsInEachRankOnce) {
  awaited_ = {1, 2, 3};
  std::vector<std::thread> callers;
  for (const int rank : {3, 1, 2}) {
    callers.emplace_back([this, rank] { DT_EXPECT_OK(CallAs(rank)); });
  }
  LetIn(20);
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(awaited_, UnorderedElementsAre());
}

TEST_F(AdmissionTest, WhatIsSaidAfterwardsIsKept) {
  awaited_ = {1};
  std::thread caller([this] {
    Socket socket = Call();
    DT_ASSERT_OK(Introduce(socket, LinkKind::kControl, 1, kKey, In(20)));
    DT_EXPECT_OK(SendAll(socket, BytesOf("first words"), In(20)));
  });
  LetIn(20);
  caller.join();
  std::string words(11, '\0');
  DT_EXPECT_OK(ReceiveAll(guests_.at(0), BytesOf(words), In(20)));
  EXPECT_EQ(words, "first words");
}

TEST_F(AdmissionTest, TwoCallersOfOneRank) {
  awaited_ = {1, 2};
  std::atomic<int> welcome = 0, refused = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      const absl::Status met = CallAs(1);
      met.ok() ? ++welcome : ++refused;
      if (!met.ok()) {
        EXPECT_THAT(met,
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a rank 1 already")));
      }
    });
  }
  std::thread last([&] {
    while (welcome + refused < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    DT_EXPECT_OK(CallAs(2));
  });
  LetIn(20);
  for (std::thread& caller : callers) caller.join();
  last.join();
  EXPECT_EQ(welcome, 1);
}

TEST_F(AdmissionTest, SaysWhoWasTurnedAway) {
  EXPECT_EQ(door_->TurnedAway(), "");
  awaited_ = {1};
  std::thread callers([this] {
    EXPECT_FALSE(CallAs(1, {"job", "guessed", 8}).ok());
    EXPECT_FALSE(CallAs(1, {"another", "a secret", 8}).ok());
    EXPECT_FALSE(CallAs(2, {"job", "a secret", 7}).ok());
    EXPECT_FALSE(CallAs(3).ok());
    DT_EXPECT_OK(CallAs(1));
  });
  LetIn(20);
  callers.join();
  EXPECT_EQ(door_->TurnedAway(),
            "; rank 2 called, and says that its world has another number of ranks; another rank 3 "
            "called; 2 callers were of another job, or had another secret");
}

TEST_F(AdmissionTest, RefusesWhoIsNotOfTheJob) {
  awaited_ = {1};
  std::thread callers([this] {
    EXPECT_THAT(CallAs(1, {"job", "guessed", 8}), StatusIs(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(CallAs(1, {"other", "a secret", 8}), StatusIs(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(CallAs(1, {"job", "a secret", 9}), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(CallAs(1, kKey, LinkKind::kData), StatusIs(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(CallAs(5), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(CallAs(8), StatusIs(absl::StatusCode::kFailedPrecondition));
    DT_EXPECT_OK(CallAs(1));
  });
  LetIn(30);
  callers.join();
}

// As slow as is still in time: in pieces, with pauses.
TEST_F(AdmissionTest, ACallerThatTrickles) {
  awaited_ = {1};
  std::thread caller([this] {
    Socket socket = Call();
    std::string nonce(kNonceBytes, '\0');
    DT_ASSERT_OK(ReceiveAll(socket, BytesOf(nonce), In(20)));
    for (const char byte : Hello{LinkKind::kControl, 1, RandomNonce()}.Encode(kKey, nonce)) {
      DT_ASSERT_OK(SendAll(socket, BytesOf(std::string(1, byte)), In(20)));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::string answer(1 + kProofBytes, '\0');
    DT_EXPECT_OK(ReceiveAll(socket, BytesOf(answer), In(20)));
    EXPECT_EQ(answer[0], static_cast<char>(Verdict::kWelcome));
  });
  LetIn(20);
  caller.join();
}

TEST_F(AdmissionTest, ACallerThatTricklesForeverGoes) {
  Socket slow = Call();
  const auto start = NetClock::now();
  std::thread caller([&] {
    while (SendAll(slow, BytesOf("x"), In(1)).ok() && SecondsSince(start) < 40) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  EXPECT_THAT(door_->Next(In(6)), IsOk());
  caller.join();
  EXPECT_LT(SecondsSince(start), 20);
}

// 10,000 that say nothing, nonsense, too much, or hang up, before, after and while ranks come.
TEST_F(AdmissionTest, AFloodOfStrangers) {
  awaited_ = {1, 2, 3};
  std::atomic<bool> over = false;
  std::atomic<int> called = 0;
  std::vector<std::thread> strangers;
  for (int i = 0; i < 2; ++i) {
    strangers.emplace_back([&, i] {
      std::mt19937 random(i);
      std::deque<Socket> held;
      while (called < 10000) {
        auto socket = ConnectTo(at_, In(1));
        if (!socket.ok()) continue;
        ++called;
        const std::string garbage(random() % 200, static_cast<char>(random()));
        if (random() % 2) socket->SendSome(BytesOf(garbage)).IgnoreError();
        if (random() % 3) held.push_back(*std::move(socket));
        if (held.size() > 200) held.pop_front();
      }
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
  }
  std::vector<std::thread> ranks;
  for (const int rank : {1, 2, 3}) {
    ranks.emplace_back([&, rank] {
      while (called < 2500 * rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto start = NetClock::now();
      // Who gets no core for 100 ms is let go, and comes again.
      DT_EXPECT_OK(ConnectAs(LinkKind::kControl, rank, kKey, at_, In(20)));
      EXPECT_LT(SecondsSince(start), 20);
    });
  }
  LetIn(50);
  EXPECT_THAT(awaited_, UnorderedElementsAre());
  while (called < 10000) EXPECT_THAT(door_->Next(In(0.05)), IsOk());
  over = true;
  for (std::thread& thread : ranks) thread.join();
  for (std::thread& thread : strangers) thread.join();
}

// Strangers wait in the listener's queue already, many more than are heard at once.
TEST_F(AdmissionTest, ARankBehindManyThatWait) {
  int most = 0;  // in a queue: 128 where Linux is older than 5.4
  ASSERT_TRUE(std::ifstream("/proc/sys/net/core/somaxconn") >> most);
  if (most < 700) GTEST_SKIP() << "net.core.somaxconn is " << most;
  awaited_ = {1};
  std::vector<Socket> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(Call());
  std::thread rank([this] { DT_EXPECT_OK(CallAs(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (int i = 0; i < 200; ++i) idle.push_back(Call());
  LetIn(20);
  rank.join();
  EXPECT_THAT(awaited_, UnorderedElementsAre());
}

// Runs fn while the process may have descriptors below `most` alone. What fn gives is looked at
// afterwards, as threads end then: sanitizers look at objects through a pipe.
template <typename Fn>
auto WithDescriptorsBelow(int most, const Fn& fn) {
  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = most;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto result = fn();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  return result;
}

TEST_F(AdmissionTest, MoreCallersThanDescriptors) {
  awaited_ = {1};
  std::vector<Socket> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(Call());
  Socket rank = Call();
  std::atomic<bool> over = false;
  std::thread caller([&] {
    const absl::Status met = Introduce(rank, LinkKind::kControl, 1, kKey, In(20));
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    DT_EXPECT_OK(met);
  });
  const auto guest = WithDescriptorsBelow(rank.fd() + 20, [&] { return door_->Next(In(20)); });
  over = true;
  caller.join();
  ASSERT_THAT(guest, IsOk());
  ASSERT_TRUE(guest->has_value());
  EXPECT_EQ((*guest)->rank, 1);
}

// An error, and no end of it: who waits is let in when there are some again.
TEST_F(AdmissionTest, NoDescriptorIsLeftForAWhile) {
  awaited_ = {1};
  Socket rank = Call();
  const auto nobody = WithDescriptorsBelow(rank.fd() + 1, [&] { return door_->Next(In(0.1)); });
  EXPECT_THAT(nobody, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("no connection can be accepted")));
  std::thread caller([&] { DT_EXPECT_OK(Introduce(rank, LinkKind::kControl, 1, kKey, In(20))); });
  LetIn(20);
  caller.join();
  EXPECT_THAT(awaited_, UnorderedElementsAre());
}

}  // namespace
}  // namespace dtensor
