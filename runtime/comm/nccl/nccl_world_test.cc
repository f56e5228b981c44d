// Ranks as threads, each with a world of its own and a GPU, as processes have.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kBoth[] = {0, 1};

class NcclWorldTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto gpus = CountGpus();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    gpus_ = *gpus;
    if (!Has(2)) GTEST_SKIP() << "there are no two GPUs";
  }
  // Says so if there are not.
  bool Has(int gpus) {
    if (gpus > gpus_) RecordProperty("needs_gpus", gpus);
    return gpus <= gpus_;
  }
  static LaunchedRank World(int size) { return Launched(size, 30, RankWay::kNccl); }
  // Each rank with what `change` makes of its launch.
  static std::vector<absl::Status> RunChanged(int size,
                                              const std::function<void(LaunchedRank&)>& change,
                                              const ProcessFunction& fn) {
    const LaunchedRank launched = World(size);
    std::vector<absl::Status> results(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        LaunchedRank me = As(launched, rank);
        change(me);
        results[rank] = RunProcess(me, fn);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  static absl::Status Nothing(ProcessWorld&) { return absl::OkStatus(); }

  int gpus_ = 0;
};

TEST_F(NcclWorldTest, Exchanges) {
  for (const int size : {2, 4}) {
    if (!Has(size)) GTEST_SKIP() << "there are no " << size << " GPUs";
    std::vector<int> everyone;
    for (int rank = 0; rank < size; ++rank) everyone.push_back(rank);
    const auto results = RunProcesses(World(size), [&](ProcessWorld& world) {
      EXPECT_EQ(world.device().kind(), Device::Kind::kCuda);
      EXPECT_EQ(world.device().ordinal(), world.rank());
      for (const int64_t length : {1, 100, 0, 100000}) {
        DT_RETURN_IF_ERROR(Gather(world, everyone, length));
      }
      return world.communicator().Barrier("end");
    });
    EXPECT_THAT(results, Each(IsOk()));
  }
}

TEST_F(NcclWorldTest, GroupsOfRanks) {
  if (!Has(4)) GTEST_SKIP() << "there are no four GPUs";
  const auto results = RunProcesses(World(4), [](ProcessWorld& world) {
    const std::vector<int> row = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column =
        world.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(Gather(world, row, 5000, [&] { return Gather(world, column, 300); }));
      DT_RETURN_IF_ERROR(Send(world, row[0], row[1], 5000));
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(IsOk()));
}

// --- What is refused, in the same words on all ranks.

TEST_F(NcclWorldTest, TwoRanksOfOneGpu) {
  const auto results = RunChanged(
      2, [](LaunchedRank& me) { me.gpu->ordinal = 1; }, Nothing);
  EXPECT_THAT(results,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("ranks 0 and 1 compute on one GPU"),
                                  HasSubstr("start no more ranks on a host than it has GPUs")))));
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(NcclWorldTest, CallsOfNcclThatBlock) {
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  const auto results = RunProcesses(World(2), Nothing);
  unsetenv("NCCL_COMM_BLOCKING");
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("NCCL_COMM_BLOCKING=1"),
                                           HasSubstr("unset it, or set it to 0")))));
}

TEST_F(NcclWorldTest, AGpuThatIsNotThere) {
  const auto results = RunChanged(
      2, [](LaunchedRank& me) { me.gpu->ordinal = me.rank == 1 ? 99 : 0; }, Nothing);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("rank 1: there is no GPU 99: CUDA sees"))));
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(NcclWorldTest, OneRankOnTheCpu) {
  const auto results = RunChanged(
      2,
      [](LaunchedRank& me) {
        if (me.rank == 1) me.gpu.reset();
      },
      Nothing);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 0 computes on a GPU and rank 1 on the cpu"))));
  EXPECT_EQ(results[0], results[1]);
}

// --- Failures.

TEST_F(NcclWorldTest, ARankReturnsWhileOthersWait) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) -> absl::Status {
    DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
    if (world.rank() == 1) return absl::DataLossError("the dog ate it");
    while (true) DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
  });
  EXPECT_THAT(results,
              Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: the dog ate it"))));
}

TEST_F(NcclWorldTest, RanksDisagree) {
  const auto results = RunProcesses(World(2), [](ProcessWorld& world) -> absl::Status {
    DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
    const Collective collective = {.op = "Mine", .group = kBoth, .digest = 7u + world.rank()};
    DT_RETURN_IF_ERROR(world.communicator().Exchange(collective, {}));
    return Gather(world, {0, 1}, 10);
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("ranks disagree about call"))));
}

// Both are launched on one rank's GPU in the order in which the other's waits for them: found
// before anything is launched.
TEST_F(NcclWorldTest, RanksThatFinishInUnlikeOrders) {
  if (!Has(3)) GTEST_SKIP() << "there are no three GPUs";
  const auto results = RunProcesses(World(3), [](ProcessWorld& world) -> absl::Status {
    const std::vector<int> all = {0, 1, 2}, pair = {1, 2};
    if (world.rank() == 0) return Gather(world, all, 10);
    const bool first = world.rank() == 1;
    return Gather(world, first ? all : pair, 10,
                  [&] { return Gather(world, first ? pair : all, 10); });
  });
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("wait"))));
}

// All ranks have launched an exchange, which waits behind a receive of the program's own that
// nobody serves: every process gives signs of life, and only the watch of rank 0 can tell. It is
// served before rank 1 gives its GPU up.
TEST_F(NcclWorldTest, AGpuIsBusyForLongerThanTheTimeout) {
  std::vector<double> waited(2);
  RunNcclRanks(2, [&, launched = Launched(2, 3, RankWay::kNccl)](NcclRank& own) {
    float* const data = own.Filled({1});
    const auto fn = [&](ProcessWorld& world) -> absl::Status {
      DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
      if (own.rank == 1) {
        own.End(ncclRecv(data, 1, ncclFloat32, 0, own.comm, CudaStreamOf(world.device())));
      }
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = Gather(world, {0, 1}, 1);
      waited[own.rank] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (own.rank == 0) own.End(ncclSend(data, 1, ncclFloat32, 1, own.comm, own.stream));
      return status;
    };
    EXPECT_THAT(
        RunProcess(As(launched, own.rank), fn),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr("rank 0: op \"Gather\" of ranks [0, 1]"),
                       HasSubstr("NCCL has not ended what all its ranks have launched within 3 s, "
                                 "the time-out"))));
    own.Free(data);
    EXPECT_EQ(own.Destroy(), ncclSuccess);
  });
  // Not sooner, as for a death, and on a busy machine somewhat later.
  EXPECT_THAT(waited, Each(AllOf(testing::Ge(2.9), testing::Le(8))));
}

// --- A communicator of the program's.

TEST_F(NcclWorldTest, ACommunicatorOfTheProgram) {
  RunNcclRanks(2, [launched = World(2)](NcclRank& mine) {
    LaunchedRank me = As(launched, mine.rank);
    me.gpu->comm = mine.comm;
    DT_EXPECT_OK(RunProcess(me, [](ProcessWorld& world) -> absl::Status {
      DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
      return Gather(world, {0, 1}, 70000);
    }));
    EXPECT_EQ(mine.Destroy(), ncclSuccess);
  });
}

TEST_F(NcclWorldTest, AStreamOfTheProgram) {
  RunNcclRanks(2, [launched = World(2)](NcclRank& mine) {
    LaunchedRank me = As(launched, mine.rank);
    me.gpu->make_device = [&](int rank, int ordinal) {
      EXPECT_EQ(rank, mine.rank);
      return MakeCudaDevice(ordinal, mine.stream);
    };
    DT_EXPECT_OK(RunProcess(me, [&](ProcessWorld& world) -> absl::Status {
      EXPECT_EQ(CudaStreamOf(world.device()), mine.stream);
      return Gather(world, {0, 1}, 70000);
    }));
    EXPECT_EQ(mine.Destroy(), ncclSuccess);
  });
}

TEST_F(NcclWorldTest, AFailedWorldRevokesIt) {
  RunNcclRanks(2, [launched = World(2)](NcclRank& mine) {
    LaunchedRank me = As(launched, mine.rank);
    me.gpu->comm = mine.comm;
    me.gpu->comm_is_gone = std::make_shared<std::atomic<bool>>(false);
    EXPECT_THAT(RunProcess(me,
                           [](ProcessWorld& world) -> absl::Status {
                             DT_RETURN_IF_ERROR(Gather(world, {0, 1}, 1000));
                             return world.rank() == 1 ? absl::DataLossError("the dog ate it")
                                                      : Gather(world, {0, 1}, 1000);
                           }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the dog ate it")));
    EXPECT_FALSE(*me.gpu->comm_is_gone);
    EXPECT_EQ(mine.Await(), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(mine.comm), ncclSuccess);
    cudaStreamDestroy(mine.stream);
  });
}

TEST_F(NcclWorldTest, ACommunicatorOfOtherRanks) {
  RunNcclRanks(2, [launched = World(2)](NcclRank& mine) {
    LaunchedRank me = As(launched, 1 - mine.rank);
    me.gpu->ordinal = mine.rank;
    me.gpu->comm = mine.comm;
    EXPECT_THAT(RunProcess(me, Nothing),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the NCCL communicator that is given is of rank")));
    EXPECT_EQ(mine.Destroy(), ncclSuccess);
  });
}

}  // namespace
}  // namespace dtensor
