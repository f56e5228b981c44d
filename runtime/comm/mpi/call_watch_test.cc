#include "dtensor/runtime/comm/mpi/call_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <thread>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using std::chrono::milliseconds;
using std::this_thread::sleep_for;
using testing::AllOf;
using testing::ExitedWithCode;
using testing::HasSubstr;

// --- The mark.

TEST(CallMark, ACallThatHasReturnedIsNotEnded) {
  CallMark mark;
  EXPECT_EQ(mark.number() % 2, 0u);
  mark.Enter("MPI_Test");
  const uint64_t call = mark.number();
  EXPECT_EQ(call % 2, 1u);
  EXPECT_STREQ(mark.name(), "MPI_Test");
  mark.Leave();
  EXPECT_EQ(mark.number() % 2, 0u);
  EXPECT_FALSE(mark.End(call));
  mark.Enter("MPI_Isend");
  EXPECT_FALSE(mark.End(call)) << "another call";
  mark.Leave();
  EXPECT_EQ(mark.number() % 2, 0u);
}

// One of the two wins: the thread takes no step after a call that was ended.
TEST(CallMark, ACallEitherReturnsOrIsEnded) {
  struct Shared {
    CallMark mark;
    std::atomic<int64_t> returned = 0;
  };
  // Never destroyed: a thread may stay in one for good.
  static auto& kept = *new std::list<Shared>;
  int calls_ended = 0;
  // More if on a busy machine all threads are through before one is looked at.
  for (int i = 0; i < 50 || (calls_ended == 0 && i < 2000); ++i) {
    Shared& shared = kept.emplace_back();
    constexpr int64_t kCalls = 1000;
    std::thread([&shared] {
      while (shared.returned < kCalls) {
        shared.mark.Enter("call");
        shared.mark.Leave();
        ++shared.returned;
      }
    }).detach();
    bool ended = false;
    while (!ended && shared.returned < kCalls) {
      const uint64_t call = shared.mark.number();
      ended = call % 2 == 1 && shared.mark.End(call);
    }
    const int64_t returned = shared.returned;
    if (ended) sleep_for(milliseconds(1));
    EXPECT_EQ(shared.returned, ended ? returned : kCalls);
    calls_ended += ended ? 1 : 0;
  }
  EXPECT_GT(calls_ended, 0);
}

// --- The watch.

// A world that fails when it is told to.
class World {
 public:
  absl::Status failure() const {
    return failed_ ? absl::UnavailableError("rank 1: its process is gone") : absl::OkStatus();
  }
  void Fail() { failed_ = true; }

 private:
  std::atomic<bool> failed_ = false;
};

[[noreturn]] int NeverReturns() {
  while (true) sleep_for(std::chrono::hours(1));
}

CallWatchOptions Hasty(bool polls = false) {
  return {.who = "rank 2", .grace = milliseconds(100), .polls = polls};
}

class CallWatchDeathTest : public testing::Test {
 protected:
  // The threads of this process are in no state to be forked.
  CallWatchDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

const auto kEndsTheProcess =
    AllOf(HasSubstr("error: UNAVAILABLE: rank 1: its process is gone (rank 2: MPI_Improbe has not "
                    "returned for 0.1 s; "),
          HasSubstr("this process ends"), HasSubstr("DTENSOR_TRANSPORT=tcp"));

TEST_F(CallWatchDeathTest, EndsACallThatNeverReturns) {
  const auto hangs = [](bool fails_before) {
    World world;
    CallWatch watch([&] { return world.failure(); }, Hasty());
    std::atexit([] { NeverReturns(); });  // as MPI's
    const auto fail = [&] {
      world.Fail();
      watch.Wake();
    };
    if (fails_before) fail();
    watch.Call("MPI_Isend", [] { return 0; });
    watch.Call("MPI_Improbe", [&] {
      if (!fails_before) fail();
      return NeverReturns();
    });
  };
  EXPECT_EXIT(hangs(false), ExitedWithCode(1), kEndsTheProcess);
  EXPECT_EXIT(hangs(true), ExitedWithCode(1), kEndsTheProcess);
}

TEST_F(CallWatchDeathTest, LooksForAFailureThatNobodyTells) {
  const auto hangs = [] {
    World world;
    CallWatch watch([&] { return world.failure(); }, Hasty(/*polls=*/true));
    watch.Call("MPI_Improbe", [&] {
      world.Fail();
      return NeverReturns();
    });
  };
  EXPECT_EXIT(hangs(), ExitedWithCode(1), kEndsTheProcess);
}

// Nobody reads what MPI has filled the pipe with.
TEST_F(CallWatchDeathTest, AFullPipeHoldsNothingUp) {
  const auto hangs = [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(2);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], "invalid connection state\n", 25) > 0) {
    }
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    World world;
    CallWatch watch([&] { return world.failure(); }, Hasty());
    world.Fail();
    watch.Wake();
    watch.Call("MPI_Improbe", NeverReturns);
  };
  EXPECT_EXIT(hangs(), ExitedWithCode(1), "");
}

// Ends with 0: the watch has let it live.
TEST_F(CallWatchDeathTest, LeavesAloneWhatHasReturned) {
  const auto lives = [](CallWatchOptions options, bool in_call) {
    World world;
    CallWatch watch([&] { return world.failure(); }, options);
    const auto fail = [&] {
      world.Fail();
      watch.Wake();
      return 7;
    };
    // After the failure, and in time.
    const int result = in_call ? watch.Call("MPI_Improbe", fail) : fail();
    sleep_for(options.grace + milliseconds(500));
    _exit(result == 7 ? 0 : 2);
  };
  EXPECT_EXIT(lives(Hasty(), false), ExitedWithCode(0), "") << "was within no call";
  CallWatchOptions patient = Hasty();
  patient.grace = milliseconds(1000);
  EXPECT_EXIT(lives(patient, true), ExitedWithCode(0), "");
}

// A world that works is as patient as its calls are long.
TEST(CallWatch, NothingFails) {
  World world;
  for (const bool polls : {false, true}) {
    CallWatch watch([&] { return world.failure(); }, Hasty(polls));
    watch.Wake();  // for nothing
    EXPECT_EQ(watch.Call("MPI_Improbe",
                         [] {
                           sleep_for(milliseconds(500));
                           return 3;
                         }),
              3);
  }
}

// A failed world's watch ends at once, whatever its grace.
TEST(CallWatch, EndsWithItsOwner) {
  World world;
  CallWatch watch([&] { return world.failure(); }, {.grace = std::chrono::hours(1)});
  const auto fail = [&] {
    world.Fail();
    watch.Wake();
    return 0;
  };
  EXPECT_EQ(watch.Call("MPI_Improbe", fail), 0);
}

}  // namespace
}  // namespace dtensor
