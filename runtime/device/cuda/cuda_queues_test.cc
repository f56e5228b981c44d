// How the two queues of a GPU, and the host, wait for each other; and for how long.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/cuda/cuda_transfers.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/pinned_staging.h"
#include "dtensor/runtime/device/cuda/testing/cuda_gate.h"
#include "dtensor/runtime/device/cuda/testing/program_pool.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSlot = PinnedStaging::kSlotBytes;

// Page-locked memory of the test's.
struct Pinned {
  explicit Pinned(size_t bytes) { cudaMallocHost(&data, bytes); }
  ~Pinned() { cudaFreeHost(data); }
  void* data = nullptr;
};

// Fails a device that waits for what will not happen.
class TimeLimit {
 public:
  explicit TimeLimit(Device& device)
      : thread_([this, &device] {
          for (int i = 0; i < 200 && !over_; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          }
          if (!over_) device.Fail(absl::DeadlineExceededError("20 s are over"));
        }) {}
  ~TimeLimit() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class CudaQueuesTest : public CudaTest {
 protected:
  Tensor Bytes(Device& device, int64_t n) {
    return Tensor::Empty(device, DType::kBool, {n}).value();
  }
};

// --- Transfers.

TEST_F(CudaQueuesTest, TransfersRunBesideWhatWasLaunchedSince) {
  // CUDA may wait for all of the GPU's work to make a device, or at its end: the gate is closed
  // later, and opened before.
  DT_ASSERT_OK_AND_ASSIGN(const auto other, MakeCudaDevice(0));
  CudaGate gate;
  const Tensor t = Bytes(*device_, 64);
  ASSERT_THAT(device_->FillBytes(t.raw(), 1, 64), IsOk());
  const DeviceEvent begin = device_->Record();
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  DeviceEvent done;
  {
    const CudaTransfers transfers(*device_, begin);
    ASSERT_THAT(device_->FillBytes(t.raw(), 2, 64), IsOk());
    done = device_->Record();
  }
  ASSERT_THAT(device_->FillBytes(t.raw(), 3, 32), IsOk());

  // The gate is closed, and yet another device reads what the transfers made.
  SetCudaPatience(*other, 0);
  const TimeLimit limit(*other);
  ASSERT_THAT(other->Wait(done), IsOk());
  std::vector<uint8_t> seen(64);
  ASSERT_THAT(other->CopyToHost(seen.data(), t.raw(), 64), IsOk());
  EXPECT_THAT(seen, Each(2));

  gate.Open();
  ASSERT_THAT(device_->CopyToHost(seen.data(), t.raw(), 32), IsOk());
  EXPECT_THAT(std::vector<uint8_t>(seen.begin(), seen.begin() + 32), Each(3));
  EXPECT_THAT(device_->Synchronize(), IsOk());
}

TEST_F(CudaQueuesTest, WithNothingToRunBesideThereIsOneQueue) {
  const Tensor t = Bytes(*device_, 64);
  const cudaStream_t stream = CudaStreamOf(*device_);
  {
    const CudaTransfers transfers(*device_, device_->Record());
    EXPECT_THAT(BeginCudaLaunch(*device_), IsOkAndHolds(stream));
  }
  const DeviceEvent begin = device_->Record();
  ASSERT_THAT(device_->FillBytes(t.raw(), 1, 64), IsOk());
  {
    const CudaTransfers transfers(*device_, begin);
    EXPECT_NE(*BeginCudaLaunch(*device_), stream);
    EXPECT_EQ(CudaStreamOf(*device_), stream) << "the program's own work stays where it was";
  }
  EXPECT_THAT(BeginCudaLaunch(*device_), IsOkAndHolds(stream));
}

// What comes afterwards waits for both queues, and memory that transfers were given is not reused
// before they are over. TSan sees a wait that is missing.
TEST_F(CudaQueuesTest, WhatComesAfterTransfersIsBehindThem) {
  constexpr int64_t kMuch = 1 << 22;
  const Tensor t = Bytes(*device_, kMuch), u = Bytes(*device_, kMuch);
  for (int round = 0; round < 8; ++round) {
    const DeviceEvent begin = device_->Record();
    ASSERT_THAT(device_->FillBytes(u.raw(), round, kMuch), IsOk());
    {
      const CudaTransfers transfers(*device_, begin);
      DT_ASSERT_OK_AND_ASSIGN(void* const scratch, device_->Allocate(kMuch));
      ASSERT_THAT(device_->FillBytes(scratch, round + 1, kMuch), IsOk());
      ASSERT_THAT(device_->CopyOnDevice(t.raw(), scratch, kMuch), IsOk());
      device_->Free(scratch, kMuch);
    }
    ASSERT_THAT(device_->CopyOnDevice(u.raw(), t.raw(), kMuch), IsOk());
    std::vector<uint8_t> seen(64);
    ASSERT_THAT(device_->CopyToHost(seen.data(), static_cast<char*>(u.raw()) + kMuch - 64, 64),
                IsOk());
    EXPECT_THAT(seen, Each(round + 1));
  }
  EXPECT_THAT(device_->Synchronize(), IsOk());
}

// --- The host.

TEST_F(CudaQueuesTest, AWaitEndsWhenTheDeviceIsFailed) {
  CudaGate gate;
  SetCudaPatience(*device_, 0.05);
  const Tensor t = Bytes(*device_, 64);
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  bool ran = false;
  device_->Defer([&] { ran = true; });
  std::thread watchdog([&] { device_->Fail(absl::AbortedError("rank 3 is gone")); });
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 3 is gone"));
  watchdog.join();
  EXPECT_FALSE(ran) << "the GPU may still use what goes then";
  gate.Open();
  SetCudaPatience(*device_, 60);
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 3 is gone"));
  EXPECT_TRUE(ran);
}

// A rank that ends waits for its GPU more than once.
TEST_F(CudaQueuesTest, PatienceIsNotHadTwice) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience(2);
  CudaGate gate;
  SetCudaPatience(*device_, kPatience.count());
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  device_->Fail(absl::AbortedError("rank 3 is gone"));
  const Clock::time_point begin = Clock::now();
  EXPECT_THAT(device_->Synchronize(), Not(IsOk()));
  const Clock::time_point between = Clock::now();
  EXPECT_GE(between - begin, kPatience);
  EXPECT_THAT(device_->Synchronize(), Not(IsOk()));
  EXPECT_LT(Clock::now() - between, kPatience);
  gate.Open();
  SetCudaPatience(*device_, 60);
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 3 is gone"));
}

TEST_F(CudaQueuesTest, AReadEndsWhenTheDeviceIsFailed) {
  CudaGate gate;
  SetCudaPatience(*device_, 0.05);
  const Tensor t = Bytes(*device_, 64);
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  std::thread watchdog([&] { device_->Fail(absl::AbortedError("rank 3 is gone")); });
  std::vector<uint8_t> seen(64, 7);
  EXPECT_THAT(device_->CopyToHost(seen.data(), t.raw(), 64), Not(IsOk()));
  watchdog.join();
  EXPECT_THAT(seen, Each(7));
  gate.Open();
  SetCudaPatience(*device_, 60);
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 3 is gone"));
}

// Nothing that CUDA would wait for: the program goes on, and its memory is lost.
TEST_F(CudaQueuesTest, ADeviceWhoseWorkNeverEndsIsGivenUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto program = [] {
    auto device = MakeCudaDevice(0).value();
    CudaGate gate;
    SetCudaPatience(*device, 0.05);
    gate.HoldUp(*device).IgnoreError();
    // What deleters of adopted memory hang on: the GPU may still use it.
    device->Defer([memory = std::shared_ptr<void>(&gate, [](void*) { std::_Exit(1); })] {});
    device->Fail(absl::AbortedError("rank 3 is gone"));
    device.reset();
    std::_Exit(0);
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(0), "");
}

// --- Memory of the host.

TEST_F(CudaQueuesTest, WhatIsCopiedFromIsReadAtOnce) {
  for (const int64_t n : {int64_t{1}, kSlot - 1, kSlot, kSlot + 1, 3 * kSlot + 5}) {
    const Tensor t = Bytes(*device_, n);
    std::vector<uint8_t> bytes(n);
    for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i % 251);
    const std::vector<uint8_t> expected = bytes;
    ASSERT_THAT(device_->CopyFromHost(t.raw(), bytes.data(), n), IsOk());
    std::memset(bytes.data(), 0xEE, n);
    ASSERT_THAT(device_->CopyToHost(bytes.data(), t.raw(), n), IsOk());
    EXPECT_TRUE(bytes == expected) << n << " bytes, without Synchronize()";
  }
}

// While the GPU is busy the host fills what staging there is, and waits for room.
TEST_F(CudaQueuesTest, StagingIsReusedWhenTheGpuHasReadIt) {
  constexpr int64_t n = 4 * kSlot;
  CudaGate gate;
  const Tensor t = Bytes(*device_, n);
  std::vector<uint8_t> bytes(n);
  for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i / kSlot + i % 7);
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    gate.Open();
  });
  EXPECT_THAT(device_->CopyFromHost(t.raw(), bytes.data(), n), IsOk());
  opens.join();
  std::vector<uint8_t> seen(n);
  ASSERT_THAT(device_->CopyToHost(seen.data(), t.raw(), n), IsOk());
  EXPECT_TRUE(seen == bytes);
}

TEST_F(CudaQueuesTest, PageLockedMemoryIsCopiedInTheQueuesOwnTime) {
  CudaGate gate;
  const Pinned words(64);
  std::memset(words.data, 7, 64);
  const Tensor t = Bytes(*device_, 64);
  ASSERT_THAT(device_->FillBytes(t.raw(), 1, 64), IsOk());
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  ASSERT_THAT(device_->CopyToHost(words.data, t.raw(), 64), IsOk());  // the gate is closed
  EXPECT_EQ(*static_cast<const volatile uint8_t*>(words.data), 7);
  gate.Open();
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(*static_cast<const uint8_t*>(words.data), 1);
}

// --- What is reused, and what is the program's.

TEST_F(CudaQueuesTest, EventsAreUsedAgain) {
  const auto event = [](const DeviceEvent& point) {
    return dynamic_cast<const CudaPoint&>(*point.state()).get();
  };
  const cudaEvent_t first = event(device_->Record());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(event(device_->Record()), first);
  const DeviceEvent kept = device_->Record();
  EXPECT_NE(event(device_->Record()), event(kept));
}

TEST_F(CudaQueuesTest, MemoryIsFromTheProgramsAllocator) {
  std::map<void*, int64_t> blocks;
  int given = 0;
  const CudaAllocator allocator = {
      .allocate = [&](int64_t bytes, cudaStream_t stream) -> void* {
        void* data = nullptr;
        if (bytes > 1 << 20 || cudaMallocAsync(&data, bytes, stream) != cudaSuccess) return nullptr;
        blocks[data] = bytes;
        ++given;
        return data;
      },
      .free =
          [&](void* data, int64_t bytes, cudaStream_t stream) {
            EXPECT_EQ(blocks[data], bytes);
            blocks.erase(data);
            cudaFreeAsync(data, stream);
          }};
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0, std::nullopt, allocator));
  {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kF32, {16}));
    EXPECT_EQ(blocks.count(t.raw()), 1);
    ASSERT_THAT(device->FillBytes(t.raw(), 0, 64), IsOk());
    EXPECT_THAT(ToHost<float>(t), IsOkAndHolds(Each(0)));
  }
  EXPECT_EQ(given, 1);
  EXPECT_TRUE(blocks.empty());
  EXPECT_THAT(device->Allocate(1 << 21), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("allocator has no 2097152")));
  EXPECT_THAT(device->failure(), IsOk());
}

// Whose access, threshold and end are the program's.
TEST_F(CudaQueuesTest, MemoryIsNotFromTheProgramsPool) {
  const ProgramPool pool(0);
  ASSERT_TRUE(pool.ok());
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0));
  const uint64_t used = ProgramPool::UsedOfDefault(0);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kF32, {1 << 20}));
  EXPECT_GE(ProgramPool::UsedOfDefault(0), used + t.bytes());
  EXPECT_EQ(pool.used(), 0);
}

TEST_F(CudaQueuesTest, AStreamForEachThreadIsRefused) {
  EXPECT_THAT(MakeCudaDevice(0, cudaStreamPerThread),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("each thread")));
}

TEST_F(CudaQueuesTest, AStreamOfAnotherGpuIsRefused) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "there is one GPU";
  }
  DT_ASSERT_OK_AND_ASSIGN(cudaStream_t const stream, MakeUrgentStream(1));
  EXPECT_THAT(MakeCudaDevice(0, stream),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of GPU 1")));
  cudaSetDevice(1);
  DestroyStream(stream);
  cudaSetDevice(0);
}

TEST_F(CudaQueuesTest, HalfAnAllocatorIsRefused) {
  const CudaAllocator half = {.allocate = [](int64_t, cudaStream_t) -> void* { return nullptr; }};
  EXPECT_THAT(MakeCudaDevice(0, std::nullopt, half),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("both")));
}

}  // namespace
}  // namespace dtensor
