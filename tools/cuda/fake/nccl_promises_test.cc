// What our code takes NCCL to promise: over the fake, and on as many GPUs as there are, up to 4.
// With one GPU a communicator has one rank, which sends to itself.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclPromisesTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "there is no GPU";
    ranks_ = std::min(gpus, 4);
  }
  int ranks_ = 0;
};

// Both sides of a pair in one group; two messages to each, which keep their order.
TEST_F(NcclPromisesTest, GroupedSendsAndReceives) {
  RunNcclRanks(ranks_, [&](NcclRank& me) {
    const auto mine = static_cast<float>(me.rank);
    float* const from = me.Filled({mine, mine + 10, mine + 20});
    float* const to = me.Filled(std::vector<float>(3 * me.size, -1));
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < me.size; ++peer) {
      EXPECT_EQ(ncclSend(from, 1, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(ncclSend(from + 1, 2, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(to + 3 * peer, 1, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(to + 3 * peer + 1, 2, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
    }
    EXPECT_EQ(me.End(ncclGroupEnd()), ncclSuccess);
    for (int peer = 0; peer < me.size; ++peer) {
      const auto theirs = static_cast<float>(peer);
      EXPECT_THAT(me.Values(to + 3 * peer, 3), ElementsAre(theirs, theirs + 10, theirs + 20));
    }
    me.Free(from);
    me.Free(to);
    EXPECT_EQ(me.Destroy(), ncclSuccess);
  });
}

// A group is work of its stream: behind what was launched before, before what is launched later.
TEST_F(NcclPromisesTest, AGroupIsInTheOrderOfItsStream) {
  constexpr size_t kMuch = size_t{1} << 20;
  RunNcclRanks(ranks_, [&](NcclRank& me) {
    float* const from = me.Filled(std::vector<float>(kMuch));
    float* const to = me.Filled(std::vector<float>(kMuch));
    const int next = (me.rank + 1) % me.size, last = (me.rank + me.size - 1) % me.size;
    for (int i = 1; i <= 3; ++i) {
      cudaMemsetAsync(from, 16 * i + me.rank, kMuch * sizeof(float), me.stream);
      ncclGroupStart();
      ncclSend(from, kMuch * sizeof(float), ncclUint8, next, me.comm, me.stream);
      ncclRecv(to, kMuch * sizeof(float), ncclUint8, last, me.comm, me.stream);
      EXPECT_EQ(me.End(ncclGroupEnd()), ncclSuccess);
      cudaMemsetAsync(from, 0, kMuch * sizeof(float), me.stream);
      std::vector<unsigned char> seen(16);
      cudaMemcpyAsync(seen.data(), to + kMuch - 4, 16, cudaMemcpyDefault, me.stream);
      cudaStreamSynchronize(me.stream);
      EXPECT_EQ(seen, std::vector<unsigned char>(16, 16 * i + last));
    }
    me.Free(from);
    me.Free(to);
    EXPECT_EQ(me.Destroy(), ncclSuccess);
  });
}

// Messages of one pair in one group, of many lengths and two types, to itself where there is one
// rank: the k-th that is received is the k-th that was sent.
TEST_F(NcclPromisesTest, MessagesOfAPairKeepTheirOrder) {
  constexpr size_t kSpace = size_t{4} << 20;  // bytes
  const size_t counts[] = {1, 0, 3, 4097, 16, 1000003, 2, 0, 70000, 1};
  RunNcclRanks(ranks_, [&](NcclRank& me) {
    const auto byte_of = [](int rank, int i) { return static_cast<unsigned char>(40 * rank + i); };
    auto* const from = reinterpret_cast<char*>(me.Filled(std::vector<float>(kSpace / 4)));
    auto* const to = reinterpret_cast<char*>(me.Filled(std::vector<float>(kSpace / 4)));
    std::vector<unsigned char> expected, got;
    const int next = (me.rank + 1) % me.size, last = (me.rank + me.size - 1) % me.size;
    size_t at = 0;
    ncclGroupStart();
    for (int i = 0; i < 10; ++i) {
      const ncclDataType_t type = i % 2 == 0 ? ncclUint8 : ncclBfloat16;
      const size_t bytes = counts[i] * (i % 2 + 1);
      at += at % 2;  // of bf16
      expected.resize(at);
      expected.insert(expected.end(), bytes, byte_of(last, i));
      if (bytes > 0) cudaMemsetAsync(from + at, byte_of(me.rank, i), bytes, me.stream);
      EXPECT_EQ(ncclSend(from + at, counts[i], type, next, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(to + at, counts[i], type, last, me.comm, me.stream), ncclSuccess);
      at += bytes;
    }
    EXPECT_EQ(me.End(ncclGroupEnd()), ncclSuccess);
    got.resize(expected.size());
    cudaMemcpyAsync(got.data(), to, got.size(), cudaMemcpyDefault, me.stream);
    cudaStreamSynchronize(me.stream);
    EXPECT_TRUE(got == expected);
    me.Free(reinterpret_cast<float*>(from));
    me.Free(reinterpret_cast<float*>(to));
    EXPECT_EQ(me.Destroy(), ncclSuccess);
  });
}

TEST_F(NcclPromisesTest, AnAllGatherIsInTheOrderOfRanks) {
  RunNcclRanks(ranks_, [&](NcclRank& me) {
    const auto mine = static_cast<float>(me.rank);
    float* const from = me.Filled({mine, mine + 10});
    float* const to = me.Filled(std::vector<float>(2 * me.size, -1));
    EXPECT_EQ(me.End(ncclAllGather(from, to, 2, ncclFloat32, me.comm, me.stream)), ncclSuccess);
    for (int peer = 0; peer < me.size; ++peer) {
      const auto theirs = static_cast<float>(peer);
      EXPECT_THAT(me.Values(to + 2 * peer, 2), ElementsAre(theirs, theirs + 10));
    }
    me.Free(from);
    me.Free(to);
    EXPECT_EQ(me.Destroy(), ncclSuccess);
  });
}

// Each rank has its own block of the sum, in place as well; of numbers that any order adds alike.
TEST_F(NcclPromisesTest, AReduceScatterAddsEachRanksBlock) {
  for (const bool in_place : {false, true}) {
    RunNcclRanks(ranks_, [&](NcclRank& me) {
      std::vector<float> mine;
      for (int peer = 0; peer < me.size; ++peer) {
        for (const int i : {0, 1})
          mine.push_back(static_cast<float>(100 * peer + 10 * i + me.rank));
      }
      float* const from = me.Filled(mine);
      float* const apart = me.Filled({-1, -1});
      float* const to = in_place ? from + 2 * me.rank : apart;
      EXPECT_EQ(me.End(ncclReduceScatter(from, to, 2, ncclFloat32, ncclSum, me.comm, me.stream)),
                ncclSuccess);
      const auto sum = static_cast<float>(me.size * 100 * me.rank + me.size * (me.size - 1) / 2);
      EXPECT_THAT(me.Values(to, 2), ElementsAre(sum, sum + static_cast<float>(10 * me.size)));
      me.Free(from);
      me.Free(apart);
      EXPECT_EQ(me.Destroy(), ncclSuccess);
    });
  }
}

TEST_F(NcclPromisesTest, ACommunicatorKnowsItsRanks) {
  RunNcclRanks(ranks_, [&](NcclRank& me) {
    int size = 0, rank = -1, gpu = -1;
    EXPECT_EQ(ncclCommCount(me.comm, &size), ncclSuccess);
    EXPECT_EQ(ncclCommUserRank(me.comm, &rank), ncclSuccess);
    EXPECT_EQ(ncclCommCuDevice(me.comm, &gpu), ncclSuccess);
    EXPECT_EQ(size, ranks_);
    EXPECT_EQ(rank, me.rank);
    EXPECT_EQ(gpu, me.gpu);
    EXPECT_EQ(me.Destroy(), ncclSuccess);
  });
}

TEST_F(NcclPromisesTest, APeerThatIsNoneIsAnError) {
  RunNcclRanks(1, [&](NcclRank& me) {
    float* const data = me.Filled({1});
    ncclGroupStart();
    EXPECT_EQ(ncclSend(data, 1, ncclFloat32, 1, me.comm, me.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    me.Free(data);
    me.Abort();
  });
}

// Whoever waits for a peer that does not come is let go by an abort, and its stream with it; as
// well by a revocation, which leaves the communicator to be destroyed.
TEST_F(NcclPromisesTest, AnAbortLetsTheStreamGo) {
  if (ranks_ < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "one GPU has nobody to wait for";
  }
  for (const bool revokes : {false, true}) {
    std::atomic<bool> let_go = false;
    RunNcclRanks(2, [&](NcclRank& me) {
      float* const data = me.Filled({1});
      if (me.rank == 0) {
        EXPECT_EQ(me.End(ncclRecv(data, 1, ncclFloat32, 1, me.comm, me.stream)), ncclSuccess);
        cudaEvent_t done;
        cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
        cudaEventRecord(done, me.stream);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
        cudaGetLastError();
        EXPECT_EQ(
            revokes ? me.End(ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT)) : ncclCommAbort(me.comm),
            ncclSuccess);
        EXPECT_EQ(cudaStreamSynchronize(me.stream), cudaSuccess);
        EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
        cudaEventDestroy(done);
        if (revokes) {
          EXPECT_EQ(ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT), ncclInvalidArgument) << "twice";
          EXPECT_EQ(ncclCommDestroy(me.comm), ncclSuccess);
        }
        me.Free(data);
        cudaStreamSynchronize(me.stream);
        cudaStreamDestroy(me.stream);
        let_go = true;
      } else {
        while (!let_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        me.Free(data);
        me.Abort();
      }
    });
  }
}

// What was launched for this rank alone may be on its way.
TEST_F(NcclPromisesTest, AnAbortBehindMessagesToItself) {
  RunNcclRanks(1, [&](NcclRank& me) {
    constexpr size_t kMuch = size_t{4} << 20;
    float* const from = me.Filled(std::vector<float>(kMuch));
    float* const to = me.Filled(std::vector<float>(kMuch));
    for (int i = 0; i < 3; ++i) {
      ncclGroupStart();
      ncclSend(from, kMuch, ncclFloat32, 0, me.comm, me.stream);
      ncclRecv(to, kMuch, ncclFloat32, 0, me.comm, me.stream);
      EXPECT_EQ(me.End(ncclGroupEnd()), ncclSuccess);
    }
    EXPECT_EQ(ncclCommAbort(me.comm), ncclSuccess);
    me.Free(from);
    me.Free(to);
    EXPECT_EQ(cudaStreamSynchronize(me.stream), cudaSuccess);
    cudaStreamDestroy(me.stream);
  });
}

// A communicator that does not block is in progress until all ranks are there, and an abort ends
// that: of two ranks the second never comes.
TEST_F(NcclPromisesTest, ACommunicatorThatIsNeverMade) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  cudaSetDevice(0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  ASSERT_NE(comm, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInProgress);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

// NCCL keeps one last error for all threads: what it says of this may be followed at once by that a
// job has failed.
TEST_F(NcclPromisesTest, TwoRanksOfOneGpuAreRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      NcclRank me{.rank = i, .size = 2, .gpu = 0};
      EXPECT_EQ(me.Init(id), ncclInvalidUsage);
      EXPECT_THAT(me.Error(), AnyOf(HasSubstr("Duplicate GPU detected"), HasSubstr("job error 5")));
      me.Abort();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace dtensor
