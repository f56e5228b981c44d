// What RunLocalRanks refuses, what ends a rank, and what outlives it.
#include "dtensor/runtime/comm/local/run_ranks.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

absl::Status Nothing(Communicator&, Device&) { return absl::OkStatus(); }

TEST(RunLocalRanks, RefusesWhatIsNoWorld) {
  EXPECT_THAT(RunLocalRanks(0, Nothing), StatusIs(Code::kInvalidArgument, HasSubstr("not 0")));
  EXPECT_THAT(RunLocalRanks(std::numeric_limits<int>::max(), Nothing),
              StatusIs(Code::kInvalidArgument, HasSubstr("2147483647")));
  EXPECT_THAT(RunLocalRanks(2, nullptr), StatusIs(Code::kInvalidArgument, HasSubstr("function")));
  EXPECT_THAT(RunLocalRanks(2, Nothing, {.device = Device::Kind::kMeta}),
              StatusIs(Code::kInvalidArgument, HasSubstr("meta")));
}

TEST(RunLocalRanks, RefusesWhatIsForGpus) {
  EXPECT_THAT(RunLocalRanks(2, Nothing, {.gpus = {0}}),
              StatusIs(Code::kInvalidArgument, HasSubstr("gpus is for the cuda device")));
  RunOptions options;
  options.cuda_device = [](int, int) { return nullptr; };
  EXPECT_THAT(RunLocalRanks(2, Nothing, options),
              StatusIs(Code::kInvalidArgument, HasSubstr("cuda_device is for the cuda device")));
}

TEST(RunLocalRanks, RefusesTimesThatAreNone) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (double timeout : {std::nan(""), -kInfinity, -1.0, 0.0}) {
    EXPECT_THAT(RunLocalRanks(2, Nothing, {.timeout_seconds = timeout}),
                StatusIs(Code::kInvalidArgument, HasSubstr("timeout_seconds")))
        << timeout;
  }
  DT_EXPECT_OK(RunLocalRanks(2, Nothing, {.timeout_seconds = kInfinity}));
  for (Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    EXPECT_THAT(RunLocalRanks(2, Nothing, {.device = device, .max_delay_us = -1}),
                StatusIs(Code::kInvalidArgument, HasSubstr("max_delay_us")));
  }
}

TEST(RunLocalRanks, AnExceptionIsTheErrorOfItsRank) {
  const auto run = [](auto raise) {
    return RunLocalRanks(3, [&](Communicator& communicator, Device&) -> absl::Status {
      DT_RETURN_IF_ERROR(communicator.Barrier("start"));
      if (communicator.rank() == 1) raise();
      return communicator.Barrier("the end");
    });
  };
  EXPECT_THAT(run([] { throw std::runtime_error("no such weather"); }),
              StatusIs(Code::kInternal, AllOf(HasSubstr("rank 1: "), HasSubstr("no such weather"),
                                              HasSubstr("the end"))));
  EXPECT_THAT(run([] { throw std::bad_alloc(); }),
              StatusIs(Code::kResourceExhausted, HasSubstr("rank 1: ")));
  EXPECT_THAT(run([] { throw 7; }), StatusIs(Code::kInternal, HasSubstr("rank 1: ")));
}

TEST(RunLocalRanks, AnExceptionNobodyWaitsForIsReturned) {
  EXPECT_THAT(RunLocalRanks(2,
                            [](Communicator& communicator, Device&) -> absl::Status {
                              if (communicator.rank() == 1) throw std::logic_error("alone");
                              return absl::OkStatus();
                            }),
              StatusIs(Code::kInternal, AllOf(HasSubstr("rank 1: "), HasSubstr("alone"))));
}

// --- What is said while a rank is stuck.

class Reports {
 public:
  RunOptions Options(double timeout_seconds) {
    RunOptions options{.timeout_seconds = timeout_seconds};
    options.report = [this](const absl::Status& trouble) {
      std::lock_guard lock(mutex_);
      all_.push_back(trouble);
    };
    return options;
  }
  std::vector<absl::Status> all() {
    std::lock_guard lock(mutex_);
    return all_;
  }
  // Busy until there are so many, as a rank that is stuck is for ever.
  void Await(size_t count) {
    const auto start = std::chrono::steady_clock::now();
    while (all().size() < count && std::chrono::steady_clock::now() - start < kBound) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(all().size(), count);
  }

 private:
  static constexpr std::chrono::seconds kBound{20};
  std::mutex mutex_;
  std::vector<absl::Status> all_;
};

TEST(RunLocalRanks, TellsTheFailureAtOnceAndThenWhomItWaitsFor) {
  Reports reports;
  const absl::Status status = RunLocalRanks(
      3,
      [&](Communicator& communicator, Device&) -> absl::Status {
        if (communicator.rank() == 0) return communicator.Fail(absl::DataLossError("bad block"));
        if (communicator.rank() == 1) reports.Await(2);
        return communicator.failure();
      },
      reports.Options(0.1));
  EXPECT_THAT(status, StatusIs(Code::kDataLoss, "rank 0: bad block"));
  ASSERT_EQ(reports.all().size(), 2);
  EXPECT_EQ(reports.all()[0], status);
  EXPECT_THAT(reports.all()[1], StatusIs(Code::kDeadlineExceeded,
                                         AllOf(HasSubstr("rank 1 has not returned 0.1 s after"),
                                               HasSubstr("rank 0: bad block"))));
}

// No failure: nobody waited for the rank that left.
TEST(RunLocalRanks, TellsWhomItWaitsForAfterTheErrorOfARank) {
  Reports reports;
  const absl::Status status = RunLocalRanks(
      4,
      [&](Communicator& communicator, Device&) -> absl::Status {
        if (communicator.rank() == 3) return absl::NotFoundError("no such file");
        if (communicator.rank() > 0) reports.Await(1);
        return absl::OkStatus();
      },
      reports.Options(0.1));
  EXPECT_THAT(status, StatusIs(Code::kNotFound, "rank 3: no such file"));
  ASSERT_EQ(reports.all().size(), 1);
  EXPECT_THAT(reports.all()[0],
              StatusIs(Code::kDeadlineExceeded, AllOf(HasSubstr("ranks 1, 2 have not returned"),
                                                      HasSubstr("rank 3: no such file"))));
}

TEST(RunLocalRanks, TellsNothingOfARefusalOrOfSlowRanks) {
  Reports reports;
  const auto refuse = [&](Communicator&, Device&) { return absl::InvalidArgumentError("no axis"); };
  EXPECT_THAT(RunLocalRanks(2, refuse, reports.Options(60)), StatusIs(Code::kInvalidArgument));
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [&](Communicator& communicator, Device&) {
        if (communicator.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        return absl::OkStatus();
      },
      reports.Options(0.01)));
  EXPECT_TRUE(reports.all().empty());
}

TEST(RunLocalRanks, TellsStderrUnlessToldOtherwise) {
  const auto fail = [](Communicator& communicator, Device&) {
    return communicator.Fail(absl::DataLossError("bad block"));
  };
  testing::internal::CaptureStderr();
  EXPECT_FALSE(RunLocalRanks(1, fail).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "dtensor: DATA_LOSS: rank 0: bad block\n");
  testing::internal::CaptureStderr();
  RunOptions silent;
  silent.report = nullptr;
  EXPECT_FALSE(RunLocalRanks(1, fail, silent).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

int CoresOfThisThread() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return CPU_COUNT(&cores);
}

// Two worlds in one process would share their first cores.
TEST(RunLocalRanks, PinsThreadsOnlyWhenAsked) {
  const int all = CoresOfThisThread();
  for (bool pin : {false, true}) {
    DT_EXPECT_OK(RunLocalRanks(1,
                               [&](Communicator&, Device&) {
                                 EXPECT_EQ(CoresOfThisThread(), pin ? 1 : all);
                                 return absl::OkStatus();
                               },
                               {.pin_threads = pin}));
  }
  DT_EXPECT_OK(RunLocalRanks(1, [&](Communicator&, Device&) {
    EXPECT_EQ(CoresOfThisThread(), all);
    return absl::OkStatus();
  }));
}

// A world whose process is stopped for longer than the time-out, while ranks wait for one that is
// late.
absl::Status RunWhileStopped() {
  const pid_t process = getpid();
  if (fork() == 0) {
    const auto after = [](int milliseconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    };
    after(300), kill(process, SIGSTOP), after(2500), kill(process, SIGCONT);
    _exit(0);
  }
  return RunLocalRanks(3,
                       [](Communicator& communicator, Device&) {
                         const auto seconds =
                             std::chrono::seconds(communicator.rank() == 1 ? 3 : 0);
                         std::this_thread::sleep_for(seconds);
                         return communicator.Barrier("all are there");
                       },
                       {.timeout_seconds = 1.8});
}

TEST(RunLocalRanksDeathTest, AProcessThatIsStoppedGoesOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const absl::Status status = RunWhileStopped();
        std::fputs(status.ToString().c_str(), stderr);
        std::exit(status.ok() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// --- Tensors that are taken out of a run.

TEST(RunLocalRanks, TensorsMayOutliveIt) {
  for (Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    std::vector<Tensor> kept(2);
    bool adopted = true;
    float memory = 7;
    DT_ASSERT_OK(
        RunLocalRanks(2,
                      [&](Communicator& communicator, Device& device) -> absl::Status {
                        if (communicator.rank() == 0) {
                          DT_ASSIGN_OR_RETURN(kept[0], FromHost<float>(device, {1, 2, 3}, {3}));
                        } else {
                          kept[1] = Tensor::Adopt(device, &memory, DType::kF32, {1}, {1},
                                                  [&adopted] { adopted = false; });
                        }
                        return absl::OkStatus();
                      },
                      {.device = kind}));
    EXPECT_THAT(ToHost<float>(kept[0]), IsOkAndHolds(std::vector<float>{1, 2, 3}));
    EXPECT_THAT(ToHost<float>(kept[1]), IsOkAndHolds(std::vector<float>{7}));
    EXPECT_TRUE(adopted);
    kept.clear();
    // The next world to end finds that this one is over.
    DT_EXPECT_OK(RunLocalRanks(1, Nothing));
    EXPECT_FALSE(adopted);
  }
}

// Sanitizers map more than any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(RunLocalRanks, TooFewThreadsAreAnError) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(statm >> pages);
  rlimit before, tight;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  tight = before;
  // Room for the stacks of some ranks.
  tight.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (30 << 20);
  for (Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    std::atomic<int> ran = 0;
    ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    const absl::Status status = RunLocalRanks(300,
                                              [&](Communicator& communicator, Device&) {
                                                ++ran;
                                                return communicator.Barrier("all are there");
                                              },
                                              {.device = device});
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    EXPECT_THAT(status, StatusIs(Code::kResourceExhausted,
                                 AllOf(HasSubstr("of 300"), HasSubstr("ulimit"))));
    EXPECT_EQ(ran, 0);
  }
}
#endif

}  // namespace
}  // namespace dtensor
