// Ranks as threads that share GPUs.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/device/cuda/testing/cuda_gate.h"
#include "dtensor/runtime/device/cuda/testing/has_context.h"
#include "dtensor/runtime/device/cuda/testing/program_pool.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using testing::HasSubstr;

using CudaRanksTest = CudaTest;  // skipped where there is no GPU

// Two ranks swap 16 elements.
struct Swap {
  Tensor mine, theirs;
  std::vector<int> group = {0, 1};
  std::vector<ReceiveBox> boxes;
  ExchangePart part{mine, theirs, {}};
  Collective collective;

  static absl::StatusOr<std::unique_ptr<Swap>> Make(int rank, Device& device) {
    auto swap = std::make_unique<Swap>();
    const std::vector<float> values(16, 1.0f + rank);
    DT_ASSIGN_OR_RETURN(swap->mine, FromHost<float>(device, values, {16}));
    DT_ASSIGN_OR_RETURN(swap->theirs, FromHost<float>(device, std::vector<float>(16), {16}));
    swap->boxes = {{.peers = {1 - rank}, .dims = {{.length = 16}}}};
    swap->part.receives = swap->boxes;
    swap->collective = {.op = "Swap", .group = swap->group, .digest = 1};
    return swap;
  }
  // Whether `theirs` has the other rank's values.
  absl::Status CheckTheirs(int rank) const {
    DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(theirs));
    return values == std::vector<float>(16, 2.0f - rank) ? absl::OkStatus()
                                                         : absl::InternalError("wrong values");
  }
};

// CUDA loads a kernel when it is first launched, and may wait for all others then: for a gate's,
// which the launching thread would open later. So each kernel is launched once before that, and no
// rank closes a gate while another loads.
absl::Status LoadSwap(Communicator& communicator, Device& device, Swap& swap) {
  {  // freed before the barrier: that may wait for others' gates as well
    CudaGate open;
    open.Open();
    DT_RETURN_IF_ERROR(open.HoldUp(device));
    DT_RETURN_IF_ERROR(communicator.Exchange(swap.collective, {&swap.part, 1}));
    DT_RETURN_IF_ERROR(device.FillBytes(swap.theirs.raw(), 0, swap.theirs.bytes()));
    DT_RETURN_IF_ERROR(device.Synchronize());
  }
  return communicator.Barrier("all kernels are loaded");
}

// Asks until the other rank's values are there.
absl::Status AwaitValue(Device& observer, const Tensor& tensor, float value) {
  float seen = 0;
  for (int i = 0; i < 2000; ++i) {
    DT_RETURN_IF_ERROR(observer.CopyToHost(&seen, tensor.raw(), sizeof(seen)));
    if (seen == value) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError("the exchange waits for a kernel that it does not need");
}

// Both are held up by a kernel that was launched between the two halves, and yet their values
// arrive. What is launched afterwards waits for the kernel and for the values.
TEST_F(CudaRanksTest, AnExchangeRunsBesideKernels) {
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [](Communicator& communicator, Device& device) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto swap, Swap::Make(communicator.rank(), device));
        DT_ASSIGN_OR_RETURN(const auto observer, MakeCudaDevice(device.ordinal()));
        CudaGate gate;  // goes before the observer, whose end waits for what it holds up
        DT_RETURN_IF_ERROR(LoadSwap(communicator, device, *swap));
        DT_RETURN_IF_ERROR(communicator.Begin(swap->collective, {&swap->part, 1}));
        DT_RETURN_IF_ERROR(gate.HoldUp(device));
        DT_RETURN_IF_ERROR(communicator.Finish(swap->collective));
        const float theirs = 2.0f - communicator.rank();
        const absl::Status arrived = AwaitValue(*observer, swap->theirs, theirs);
        gate.Open();
        DT_RETURN_IF_ERROR(arrived);
        // What this rank frees may wait for the other's gate, with a lock that its launches need.
        DT_RETURN_IF_ERROR(communicator.Barrier("both gates are open"));
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(swap->theirs));
        return values == std::vector<float>(16, theirs) ? absl::OkStatus()
                                                        : absl::InternalError("wrong values");
      },
      {.device = Device::Kind::kCuda}));
}

// Rank 1 reads what rank 0 has: the GPU of one of them is held up, and the other waits for it.
// Returns what rank 1 saw.
float WhatIsRead(int held_up) {
  float seen = 0;
  std::atomic<bool> has_read = false;
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [&](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        CudaGate gate;
        DT_ASSIGN_OR_RETURN(auto swap, Swap::Make(rank, device));
        DT_RETURN_IF_ERROR(LoadSwap(communicator, device, *swap));
        if (rank == 0) swap->part.receives = {};
        if (rank == held_up) DT_RETURN_IF_ERROR(gate.HoldUp(device));
        if (rank == 0) DT_RETURN_IF_ERROR(device.FillBytes(swap->mine.raw(), 0, 64));
        DT_RETURN_IF_ERROR(communicator.Exchange(swap->collective, {&swap->part, 1}));
        // At once: who reads it has been waited for.
        if (rank == 0) DT_RETURN_IF_ERROR(device.FillBytes(swap->mine.raw(), 0x40, 64));
        if (rank == held_up) {
          // Time for what does not wait.
          for (int i = 0; i < 40 && !has_read; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          gate.Open();
        }
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(swap->theirs));
        if (rank == 1) {
          seen = values[15];
          has_read = true;
        }
        return absl::OkStatus();
      },
      {.device = Device::Kind::kCuda}));
  return seen;
}

TEST_F(CudaRanksTest, AReaderWaitsForWhatItReads) { EXPECT_EQ(WhatIsRead(0), 0); }
TEST_F(CudaRanksTest, AWriterWaitsForWhoReads) { EXPECT_EQ(WhatIsRead(1), 0); }

// What a program allocated by cudaMalloc on one GPU, as PyTorch does, a kernel of another's reads.
TEST_F(CudaRanksTest, AdoptedMemoryIsReadByOtherGpus) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "one GPU has no peer";
  }
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        DT_ASSIGN_OR_RETURN(const auto swap, Swap::Make(rank, device));
        void* data = nullptr;
        if (cudaMalloc(&data, swap->mine.bytes()) != cudaSuccess) {
          return absl::InternalError("cudaMalloc failed");
        }
        DT_RETURN_IF_ERROR(device.CopyOnDevice(data, swap->mine.raw(), swap->mine.bytes()));
        swap->mine =
            Tensor::Adopt(device, data, DType::kF32, {16}, {1}, [data] { cudaFree(data); });
        DT_RETURN_IF_ERROR(communicator.Exchange(swap->collective, {&swap->part, 1}));
        return swap->CheckTheirs(rank);
      },
      {.device = Device::Kind::kCuda, .gpus = {0, 1}}));
}

// A program that allocates from pools of its own, which give no other GPU access.
TEST_F(CudaRanksTest, RanksReadEachOthersMemoryWhateverPoolIsCurrent) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "one GPU has no peer";
  }
  const ProgramPool pools[] = {ProgramPool(0), ProgramPool(1)};
  for (const ProgramPool& pool : pools) ASSERT_TRUE(pool.ok());
  DT_EXPECT_OK(
      RunLocalRanks(2,
                    [](Communicator& communicator, Device& device) -> absl::Status {
                      DT_ASSIGN_OR_RETURN(const auto swap, Swap::Make(communicator.rank(), device));
                      DT_RETURN_IF_ERROR(communicator.Exchange(swap->collective, {&swap->part, 1}));
                      return swap->CheckTheirs(communicator.rank());
                    },
                    {.device = Device::Kind::kCuda, .gpus = {0, 1}}));
}

// Otherwise a world of few ranks would take memory of every GPU of the machine, and would need all
// of them to be connected.
TEST(CudaRanksGpusTest, AGpuOfNoRankIsLeftAlone) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "the only GPU is the rank's";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto program = [] {
    const absl::Status status =
        RunLocalRanks(1, [](Communicator&, Device&) { return absl::OkStatus(); },
                      {.device = Device::Kind::kCuda});
    std::_Exit(!status.ok() || !HasContext(0) || HasContext(1));
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(0), "");
}

// A stream of the program's for each rank, and memory of its own.
struct Lent {
  cudaStream_t stream = nullptr;
  int taken = 0, given_back = 0;  // allocations, of the rank's thread

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int ordinal) {
    if (cudaSetDevice(ordinal) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
      return absl::InternalError("no stream");
    }
    return MakeCudaDevice(ordinal, stream,
                          {.allocate = [this](int64_t bytes, cudaStream_t) -> void* {
                             void* data = nullptr;
                             if (cudaMalloc(&data, bytes) != cudaSuccess) return nullptr;
                             ++taken;
                             return data;
                           },
                           .free =
                               [this](void* data, int64_t, cudaStream_t in) {
                                 cudaStreamSynchronize(in);
                                 cudaFree(data);
                                 ++given_back;
                               }});
  }
};

TEST_F(CudaRanksTest, TheProgramsStreamsAndMemory) {
  std::vector<Lent> lent(2);
  RunOptions options = {.device = Device::Kind::kCuda};
  options.cuda_device = [&](int rank, int gpu) { return lent[rank].MakeDevice(gpu); };
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [&](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        if (CudaStreamOf(device) != lent[rank].stream) return absl::InternalError("another stream");
        DT_ASSIGN_OR_RETURN(const auto swap, Swap::Make(rank, device));
        DT_RETURN_IF_ERROR(communicator.Exchange(swap->collective, {&swap->part, 1}));
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(swap->theirs));
        return values == std::vector<float>(16, 2.0f - rank) ? absl::OkStatus()
                                                             : absl::InternalError("wrong values");
      },
      options));
  for (const Lent& of_rank : lent) {
    EXPECT_GE(of_rank.taken, 2);
    EXPECT_EQ(of_rank.given_back, of_rank.taken);
    EXPECT_EQ(cudaStreamDestroy(of_rank.stream), cudaSuccess);
  }
}

TEST_F(CudaRanksTest, AnotherDeviceThanTheRanksIsRefused) {
  const auto run = [](CudaDeviceMaker make) {
    RunOptions options = {.device = Device::Kind::kCuda, .gpus = {0}};
    options.cuda_device = std::move(make);
    return RunLocalRanks(
        2, [](Communicator&, Device&) { return absl::OkStatus(); }, options);
  };
  EXPECT_THAT(run([](int, int) { return MakeCpuDevice(); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cuda_device of rank 0 made a cpu device, where the rank needs "
                                 "one of GPU 0; return MakeCudaDevice")));
  EXPECT_THAT(run([](int, int) { return nullptr; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of rank 0 made none")));
  EXPECT_THAT(run([](int rank, int gpu) -> absl::StatusOr<std::unique_ptr<Device>> {
                if (rank == 1) return absl::NotFoundError("no stream is left");
                return MakeCudaDevice(gpu);
              }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no stream is left")));
}

// A kernel finds it on the GPU, its rank is told when it waits, and all ranks are.
TEST_F(CudaRanksTest, ABadIndexOnOneRankFailsTheWorld) {
  std::vector<absl::Status> seen(3);
  const absl::Status status = RunLocalRanks(
      3,
      [&](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        const std::vector<int32_t> ids = {0, rank == 1 ? 9 : 3};
        DT_ASSIGN_OR_RETURN(const Tensor id, FromHost<int32_t>(device, ids, {2}));
        DT_ASSIGN_OR_RETURN(const Tensor table,
                            FromHost<float>(device, std::vector<float>(8), {4, 2}));
        DT_ASSIGN_OR_RETURN(const Tensor y, Tensor::Empty(device, DType::kF32, {2, 2}));
        DT_RETURN_IF_ERROR(kernels::Embedding(device, id, table, IndexSet::Interval(0, 4), 4, y));
        DT_RETURN_IF_ERROR(device.Synchronize());
        return seen[rank] = communicator.Barrier("the step's end");
      },
      {.device = Device::Kind::kCuda, .report = nullptr});
  const absl::Status expected =
      absl::OutOfRangeError("rank 1: Embedding: id 9 at position 1 is outside [0, 4)");
  EXPECT_EQ(status, expected);
  EXPECT_EQ(seen[0], expected);
  EXPECT_EQ(seen[2], expected);
}

}  // namespace
}  // namespace dtensor
