// What the fake of NCCL refuses a program, most of which NCCL would let pass: each case is a
// mistake, planted. What ranks hear of each other: nccl_failures_test.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

constexpr int kRefused = 67;  // fake.h

class NcclRefusalsTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

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
    {"ASumWritesToWhatItReads",
     [](NcclRank& me, float* data) {
       ncclReduceScatter(data, data + 1, 2, ncclFloat32, ncclSum, me.comm, me.stream);
     },
     "ncclReduceScatter: it writes to what it reads"},
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

}  // namespace
}  // namespace dtensor
