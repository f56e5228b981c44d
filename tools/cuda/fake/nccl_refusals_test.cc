// What the fake of NCCL finds, most of which NCCL would let hang: each case is a mistake, planted.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern char** environ;

namespace dtensor {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

constexpr int kRefused = 67;  // fake.h

class NcclRefusalsTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// --- What ranks do that does not fit together: an error on all of them, which names who and what.

struct Misfit {
  const char* name;
  void (*calls)(NcclRank& me, float* data);
  const char* error;
};
void PrintTo(const Misfit& misfit, std::ostream* out) { *out << misfit.name; }

void SendOrReceive(NcclRank& me, float* data, size_t sent, size_t received,
                   ncclDataType_t type = ncclFloat32) {
  if (me.rank == 0) ncclSend(data, sent, type, 1, me.comm, me.stream);
  if (me.rank == 1) ncclRecv(data, received, ncclFloat32, 0, me.comm, me.stream);
}

const Misfit kMisfits[] = {
    {"AnotherCount", [](NcclRank& me, float* data) { SendOrReceive(me, data, 2, 3); },
     "rank 1 receives 3 float32 from rank 0, which sends 2 float32"},
    {"AnotherType", [](NcclRank& me, float* data) { SendOrReceive(me, data, 3, 3, ncclInt32); },
     "rank 1 receives 3 float32 from rank 0, which sends 3 int32"},
    {"AnotherOrder",
     [](NcclRank& me, float* data) {
       ncclGroupStart();
       for (const int count : {1, 2}) {
         if (me.rank == 0) ncclSend(data, count, ncclFloat32, 1, me.comm, me.stream);
         if (me.rank == 1) ncclRecv(data, 3 - count, ncclFloat32, 0, me.comm, me.stream);
       }
       ncclGroupEnd();
     },
     "rank 1 receives 2 float32 from rank 0, which sends 1 float32"},
    {"ACollectiveAndASend",
     [](NcclRank& me, float* data) {
       if (me.rank == 0) ncclSend(data, 1, ncclFloat32, 1, me.comm, me.stream);
       if (me.rank == 1) ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, me.stream);
     },
     "rank 1 receives 1 float32 to all from rank 0, which sends 1 float32"},
    {"ACollectiveOfAnotherCount",
     [](NcclRank& me, float* data) {
       ncclAllGather(data, data + 4, 1 + me.rank / 2, ncclFloat32, me.comm, me.stream);
     },
     "float32 to all from rank"},
    {"ACollectiveThatOneDoesNotCall",
     [](NcclRank& me, float* data) {
       if (me.rank != 2) ncclAllGather(data, data + 4, 1, ncclFloat32, me.comm, me.stream);
     },
     "1 float32 to all, of which rank 2 knows nothing for 1000 ms"},
    {"AReceiveOfWhatNobodySends",
     [](NcclRank& me, float* data) {
       if (me.rank == 2) ncclRecv(data, 4, ncclFloat32, 0, me.comm, me.stream);
     },
     "rank 2 waits for 4 float32, of which rank 0 knows nothing"},
    {"ASendToOneselfThatIsNotReceived",
     [](NcclRank& me, float* data) {
       if (me.rank == 1) ncclSend(data, 4, ncclFloat32, 1, me.comm, me.stream);
     },
     "rank 1 sends itself 1 messages, and receives 0"},
};

class MisfitTest : public NcclRefusalsTest, public testing::WithParamInterface<Misfit> {};

TEST_P(MisfitTest, IsAnErrorOnAllRanks) {
  setenv("DTENSOR_FAKE_NCCL_PATIENCE_MS", "1000", 1);
  std::atomic<int> made = 0, told = 0;
  const auto await_all = [](std::atomic<int>& ranks) {
    for (++ranks; ranks < 3;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  RunNcclRanks(3, [&](NcclRank& me) {
    await_all(made);  // or one that is not ready would hear of the error while it is made
    float* const data = me.Filled(std::vector<float>(32, 1));
    GetParam().calls(me, data);
    me.Await();
    EXPECT_EQ(me.AwaitError(), ncclInvalidUsage);
    EXPECT_THAT(me.Error(), HasSubstr(GetParam().error));
    await_all(told);  // before one of them is gone
    me.Free(data);
    me.Abort();
  });
  unsetenv("DTENSOR_FAKE_NCCL_PATIENCE_MS");
}

INSTANTIATE_TEST_SUITE_P(Misfits, MisfitTest, testing::ValuesIn(kMisfits),
                         [](const auto& info) { return std::string(info.param.name); });

// --- What a program must not do: it ends.

struct Mistake {
  const char* name;
  void (*program)(NcclRank& me, float* data);
  const char* refusal;
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

const Mistake kMistakes[] = {
    {"MemoryOfTheHostIsSent",
     [](NcclRank& me, float*) {
       static float host = 1;
       ncclSend(&host, 1, ncclFloat32, 0, me.comm, me.stream);
     },
     "ncclSend: it is not memory of a GPU"},
    {"MoreIsSentThanThereIs",
     [](NcclRank& me, float* data) { ncclSend(data, 999, ncclFloat32, 0, me.comm, me.stream); },
     "ncclSend: it reaches beyond the end"},
    {"AGatherHasNoRoom",
     [](NcclRank& me, float* data) {
       ncclAllGather(data, data, 65, ncclFloat32, me.comm, me.stream);
     },
     "ncclAllGather: it reaches beyond the end"},
    {"AStreamOfAnotherGpu",
     [](NcclRank& me, float* data) {
       cudaSetDevice(1);
       cudaStream_t other;
       cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
       ncclSend(data, 1, ncclFloat32, 0, me.comm, other);
     },
     "the stream is of another GPU"},
    {"ACallWhileOneIsInProgress",
     [](NcclRank& me, float* data) {
       for (int i = 0; i < 1000; ++i) {
         ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, me.stream);
       }
     },
     "ncclAllGather: the communicator is in progress"},
    {"ACallOfWhatWasAborted",
     [](NcclRank& me, float* data) {
       ncclCommAbort(me.comm);
       ncclSend(data, 1, ncclFloat32, 0, me.comm, me.stream);
     },
     "there is no such communicator"},
    {"ItIsAbortedTwice",
     [](NcclRank& me, float*) {
       ncclCommAbort(me.comm);
       ncclCommAbort(me.comm);
     },
     "ncclCommAbort: there is no such communicator"},
    {"ItIsDestroyedBeforeItIsFinalized", [](NcclRank& me, float*) { ncclCommDestroy(me.comm); },
     "is finalized first"},
    {"ItIsDestroyedWhileItIsRevoked",
     [](NcclRank& me, float*) {
       ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT);
       ncclCommDestroy(me.comm);
     },
     "ncclCommDestroy: the communicator is in progress"},
    {"ItIsRevokedWhileAGroupIsInProgress",
     [](NcclRank& me, float* data) {
       setenv("DTENSOR_FAKE_NCCL_GROUP", "stuck", 1);
       ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, me.stream);
       ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT);
     },
     "ncclCommRevoke: a group is in progress"},
    {"ItIsRevokedBeforeTheEndOfAGroupIsAskedFor",
     [](NcclRank& me, float* data) {
       ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, me.stream);
       std::this_thread::sleep_for(std::chrono::milliseconds(50));
       ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT);
     },
     "ncclCommRevoke: a group is in progress"},
    {"ItIsForgotten", [](NcclRank&, float*) {}, "not destroyed: NCCL communicator"},
    {"AGroupEndsThatDidNotBegin", [](NcclRank&, float*) { ncclGroupEnd(); },
     "no group was started"},
    {"TwoStreamsAtOnce",
     [](NcclRank& me, float* data) {
       cudaStream_t other;
       cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
       me.End(ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, me.stream));
       ncclAllGather(data, data + 1, 1, ncclFloat32, me.comm, other);
     },
     "only one stream for each communicator"},
};

class NcclMistakeTest : public NcclRefusalsTest, public testing::WithParamInterface<Mistake> {};

TEST_P(NcclMistakeTest, IsRefused) {
  const auto program = [] {
    RunNcclRanks(1, [](NcclRank& me) {
      float* const data = me.Filled(std::vector<float>(63, 1));
      GetParam().program(me, data);
      me.Free(data);
    });
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(kRefused), GetParam().refusal);
}

INSTANTIATE_TEST_SUITE_P(Mistakes, NcclMistakeTest, testing::ValuesIn(kMistakes),
                         [](const auto& info) { return std::string(info.param.name); });

#if defined(__SANITIZE_THREAD__)
// The receiver's other stream reads what comes without waiting for it.
TEST_F(NcclRefusalsTest, AStreamReadsWhatWasReceivedWithoutWaiting) {
  const auto program = [] {
    // Of 32 MB, TSan would compare each race with all before (FindRacyAddress), for minutes.
    constexpr size_t kMuch = size_t{64} << 10;
    RunNcclRanks(2, [](NcclRank& me) {
      float* const data = me.Filled(std::vector<float>(kMuch, 1));
      cudaStream_t other;
      cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
      if (me.rank == 0) ncclSend(data, kMuch, ncclFloat32, 1, me.comm, me.stream);
      if (me.rank == 1) ncclRecv(data, kMuch, ncclFloat32, 0, me.comm, me.stream);
      me.Await();
      if (me.rank == 1) cudaMemsetAsync(data, 0, kMuch, other);
      cudaStreamSynchronize(other);
      cudaStreamDestroy(other);
      me.Free(data);
      me.Destroy();
    });
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(66), "data race");
}
#endif

// --- What NCCL does in some environments.

TEST_F(NcclRefusalsTest, AnInitMayReturnAnErrorWithACommunicator) {
  setenv("DTENSOR_FAKE_NCCL_INIT", "late", 1);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      cudaSetDevice(0);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, i, &config), ncclInvalidUsage);
      ASSERT_NE(comm, nullptr);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("Duplicate GPU"));
      ncclCommAbort(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  unsetenv("DTENSOR_FAKE_NCCL_INIT");
}

TEST_F(NcclRefusalsTest, TheEnvironmentMakesACommunicatorBlock) {
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  cudaSetDevice(0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
  ncclCommAbort(comm);
  unsetenv("NCCL_COMM_BLOCKING");
}

TEST_F(NcclRefusalsTest, ACommunicatorThatIsBeingMadeDoesNotSayItsRank) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  cudaSetDevice(0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  int size = 0;
  EXPECT_EQ(ncclCommCount(comm, &size), ncclInvalidArgument);
  ncclCommAbort(comm);
}

// --- Processes. A child is this program again, with the one test below.

constexpr char kChild[] = "NcclRefusalsTest.DISABLED_Child";

pid_t StartChild(int rank, const ncclUniqueId& id) {
  std::vector<std::string> variables = {"NCCL_CHILD_RANK=" + std::to_string(rank),
                                        std::string("NCCL_CHILD_ID=") + id.internal};
  std::vector<char*> environment;
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  for (std::string& one : variables) environment.push_back(one.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", also = "--gtest_also_run_disabled_tests",
              filter = std::string("--gtest_filter=") + kChild;
  char* const arguments[] = {program.data(), also.data(), filter.data(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()),
            0);
  return child;
}

// Gathers until it is killed.
TEST_F(NcclRefusalsTest, DISABLED_Child) {
  const char* const rank = std::getenv("NCCL_CHILD_RANK");
  ASSERT_NE(rank, nullptr);
  ncclUniqueId id = {};
  std::strncpy(id.internal, std::getenv("NCCL_CHILD_ID"), sizeof(id.internal) - 1);
  NcclRank me{.rank = std::atoi(rank), .size = 3, .gpu = std::atoi(rank)};
  ASSERT_EQ(me.Init(id), ncclSuccess);
  float* const data = me.Filled(std::vector<float>(32, static_cast<float>(me.rank)));
  while (me.End(ncclAllGather(data, data + 4, 1, ncclFloat32, me.comm, me.stream)) == ncclSuccess) {
    cudaStreamSynchronize(me.stream);
  }
}

TEST_F(NcclRefusalsTest, ADeathIsAnErrorOnTheOthers) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  const std::vector<pid_t> children = {StartChild(1, id), StartChild(2, id)};
  NcclRank me{.rank = 0, .size = 3, .gpu = 0};
  ASSERT_EQ(me.Init(id), ncclSuccess);
  float* const data = me.Filled(std::vector<float>(32, 7));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(me.End(ncclAllGather(data, data + 4, 1, ncclFloat32, me.comm, me.stream)),
              ncclSuccess);
    EXPECT_THAT(me.Values(data + 4, 3), testing::ElementsAre(7, 1, 2));
  }
  kill(children[1], SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  while (me.End(ncclAllGather(data, data + 4, 1, ncclFloat32, me.comm, me.stream)) == ncclSuccess) {
    if (me.AwaitError() != ncclSuccess) break;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(me.AwaitError(), ncclRemoteError);
  EXPECT_THAT(me.Error(), HasSubstr("rank 2 is gone"));
  me.Free(data);
  me.Abort();
  kill(children[0], SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace dtensor
