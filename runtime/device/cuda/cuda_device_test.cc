#include "dtensor/runtime/device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/kernel_error.h"
#include "dtensor/runtime/device/cuda/testing/has_context.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CudaDeviceTest = CudaTest;

TEST_F(CudaDeviceTest, CopiesAndFills) {
  const std::vector<float> values = {1, 2, 3, 4};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor a, FromHost<float>(*device_, values, {4}));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor b, Tensor::Empty(*device_, DType::kF32, {4}));
  ASSERT_THAT(device_->FillBytes(b.raw(), 0, 16), IsOk());
  ASSERT_THAT(device_->CopyOnDevice(b.raw(), a.raw(), 8), IsOk());
  EXPECT_THAT(ToHost<float>(b), IsOkAndHolds(ElementsAre(1, 2, 0, 0)));
  EXPECT_THAT(ToHost<float>(a.View({2, 2}, {1, 2}, 0)), IsOkAndHolds(ElementsAre(1, 3, 2, 4)));
}

TEST_F(CudaDeviceTest, FreedMemoryIsReusedInStreamOrder) {
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> values(1 << 16, i);
    DT_ASSERT_OK_AND_ASSIGN(const Tensor t, FromHost<float>(*device_, values, {1 << 16}));
    EXPECT_THAT(ToHost<float>(t), IsOkAndHolds(values));
  }
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_F(CudaDeviceTest, RefusesMoreThanThereIs) {
  EXPECT_THAT(device_->Allocate(int64_t{1} << 41), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(device_->Synchronize(), IsOk());
}

TEST_F(CudaDeviceTest, HostKernelsAreRefusedByName) {
  EXPECT_THAT(device_->Launch("Softmax", [] {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Softmax")));
  EXPECT_THAT(device_->failure(), IsOk());
}

TEST_F(CudaDeviceTest, AnEventOrdersTwoDevices) {
  DT_ASSERT_OK_AND_ASSIGN(const auto other, MakeCudaDevice(0));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kI32, {1 << 20}));
  ASSERT_THAT(device_->FillBytes(t.raw(), 1, t.bytes()), IsOk());
  ASSERT_THAT(other->Wait(device_->Record()), IsOk());
  std::vector<int32_t> seen(1 << 20);
  ASSERT_THAT(other->CopyToHost(seen.data(), t.raw(), t.bytes()), IsOk());
  ASSERT_THAT(other->Synchronize(), IsOk());
  EXPECT_EQ(seen, std::vector<int32_t>(1 << 20, 0x01010101));
}

TEST_F(CudaDeviceTest, DefersUntilWorkIsDone) {
  bool ran = false;
  device_->Defer([&] { ran = true; });
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_TRUE(ran);
}

TEST_F(CudaDeviceTest, WhatIsNotDoneYetLeavesNoError) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kI32, {1 << 26}));
  for (int i = 0; i < 4; ++i) ASSERT_THAT(device_->FillBytes(t.raw(), i, t.bytes()), IsOk());
  device_->Defer([] {});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THAT(device_->Synchronize(), IsOk());
}

// As one of a launch by the program, on its own stream, that it has not looked at yet.
TEST_F(CudaDeviceTest, AnErrorOfTheProgramsIsLeftToIt) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kI32, {1 << 26}));
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  for (int i = 0; i < 4; ++i) ASSERT_THAT(device_->FillBytes(t.raw(), i, t.bytes()), IsOk());
  device_->Defer([] {});
  EXPECT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

// What a kernel does that finds a wrong index; kernels that do are tested where they are.
void WriteError(Device& device, const KernelError* error) {
  ASSERT_THAT(device.CopyFromHost(CudaKernelErrorOf(device), error, sizeof(*error)), IsOk());
}

// --- Threads and GPUs.

// Whoever lets go of tensors may be a thread that has nothing to do with CUDA.
TEST(CudaThreadsTest, AnotherThreadMakesNoContextOnGpu0) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "the only GPU is GPU 0";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto program = [] {
    auto device = MakeCudaDevice(1).value();
    DeviceEvent event = device->Record();
    std::thread([&] {
      device->Defer([] {});
      device->Defer([] {});
    }).join();
    device.reset();
    std::thread([last = std::move(event)]() mutable {
      const DeviceEvent gone = std::move(last);
    }).join();
    std::_Exit(HasContext(0) || !HasContext(1));
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(0), "");
}

// One that has a GPU has it afterwards, where it has been used.
TEST(CudaThreadsTest, AnotherThreadKeepsItsGpu) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  const int mine = gpus - 1;
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0));
  int seen = -1;
  std::thread([&] {
    cudaSetDevice(mine);
    device->Defer([] {});
    cudaGetDevice(&seen);
  }).join();
  EXPECT_EQ(seen, mine);
}

// The caller's GPU is the caller's: a device is made, waited for and destroyed on any thread.
TEST(CudaThreadsTest, ADevicesThreadKeepsItsGpu) {
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << "there is one GPU";
  }
  const auto current = [] {
    int gpu = -1;
    cudaGetDevice(&gpu);
    return gpu;
  };
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  DT_ASSERT_OK_AND_ASSIGN(auto device, MakeCudaDevice(1));
  EXPECT_EQ(current(), 0) << "made";
  DT_ASSERT_OK_AND_ASSIGN(cudaStream_t const stream, MakeUrgentStream(1));
  EXPECT_EQ(current(), 0) << "made a stream";
  DestroyStream(stream);
  DT_ASSERT_OK_AND_ASSIGN(Tensor tensor, Tensor::Empty(*device, DType::kF32, {4}));
  cudaSetDevice(0);
  tensor = Tensor();
  EXPECT_EQ(current(), 0) << "freed";
  ASSERT_THAT(device->Synchronize(), IsOk());
  EXPECT_EQ(current(), 0) << "waited for";
  device->set_kept_bytes(0);
  device->Trim();
  EXPECT_EQ(current(), 0) << "trimmed";
  device.reset();
  EXPECT_EQ(current(), 0) << "destroyed";
}

// --- Errors.

TEST_F(CudaDeviceTest, AKernelsErrorFailsTheDeviceThatWaits) {
  const KernelError error = {1, "Embedding", {"id", 7, 3, 5}};
  WriteError(*device_, &error);
  EXPECT_THAT(device_->failure(), IsOk()) << "nobody has waited";
  const absl::Status failure =
      absl::OutOfRangeError("Embedding: id 7 at position 3 is outside [0, 5)");
  EXPECT_EQ(device_->Synchronize(), failure);
  EXPECT_EQ(device_->failure(), failure);
  EXPECT_EQ(device_->Allocate(16).status(), failure);
  EXPECT_EQ(BeginCudaLaunch(*device_).status(), failure);
  device_->Fail(absl::InternalError("second"));
  EXPECT_EQ(device_->Synchronize(), failure);
}

TEST_F(CudaDeviceTest, AnEarlierFailureIsKept) {
  const KernelError error = {1, "Embedding", {"id", 7, 3, 5}};
  WriteError(*device_, &error);
  device_->Fail(absl::InternalError("first"));
  EXPECT_THAT(device_->Synchronize(), StatusIs(absl::StatusCode::kInternal));
}

// What is read comes back with the error.
TEST_F(CudaDeviceTest, WhoReadsIsToldOfAKernelsError) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, FromHost<float>(*device_, std::vector<float>(1), {1}));
  const KernelError error = {1, "Embedding", {"id", -1, 0, 5}};
  WriteError(*device_, &error);
  EXPECT_THAT(ToHost<float>(t), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("id -1")));
}

// The handler may be gone when the device goes.
TEST_F(CudaDeviceTest, AnErrorThatNobodyWaitedForIsDropped) {
  bool told = false;
  device_->set_failure_handler([&](const absl::Status&) { told = true; });
  const KernelError error = {1, "Embedding", {"id", 7, 3, 5}};
  WriteError(*device_, &error);
  device_.reset();
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace dtensor
