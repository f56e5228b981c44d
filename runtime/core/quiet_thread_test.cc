#include "dtensor/runtime/core/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Those that this thread blocks.
std::vector<int> Blocked() {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  std::vector<int> blocked;
  for (int signal = 1; signal < 32; ++signal) {
    if (sigismember(&set, signal) == 1) blocked.push_back(signal);
  }
  return blocked;
}

TEST(QuietThread, TakesNoneOfTheProgramsSignals) {
  const std::vector<int> before = Blocked();
  std::vector<int> there;
  QuietThread([&] { there = Blocked(); }).join();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM}) {
    EXPECT_THAT(there, testing::Contains(signal));
  }
  EXPECT_THAT(there, testing::Not(testing::Contains(SIGSEGV)));
  EXPECT_EQ(Blocked(), before);
}

}  // namespace
}  // namespace dtensor
