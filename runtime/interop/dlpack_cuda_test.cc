// DLPack on a GPU, and the stream on which work runs.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/testing/cuda_gate.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/adopt.h"
#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using DlpackCudaTest = CudaTest;

TEST_F(DlpackCudaTest, ThereAndBack) {
  DlpackTensor out;
  {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*device_, {1, 2, 3, 4}, {2, 2}));
    DT_ASSERT_OK_AND_ASSIGN(out, ToDlpack(tensor.Transpose(0, 1)));
  }
  EXPECT_EQ(out->dl_tensor.device.device_type, kDLCUDA);
  DT_ASSERT_OK_AND_ASSIGN(Tensor back, FromDlpack(*device_, std::move(out)));
  EXPECT_THAT(ToHost<float>(back), IsOkAndHolds(ElementsAre(1, 3, 2, 4)));
  back = Tensor();
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(device_->tensors(), 0);
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

// Its memory comes back while the device is destroyed, as nothing waited before.
TEST_F(DlpackCudaTest, WhatIsLetGoWithTheDeviceIsFreed) {
  constexpr int64_t kMuch = 1 << 24;
  DT_ASSERT_OK_AND_ASSIGN(Tensor tensor, Tensor::Empty(*device_, DType::kF32, {kMuch}));
  DT_ASSERT_OK_AND_ASSIGN(DlpackTensor out, ToDlpack(tensor));
  tensor = Tensor();
  DT_ASSERT_OK_AND_ASSIGN(Tensor back, FromDlpack(*device_, std::move(out)));
  CudaGate gate;
  ASSERT_THAT(gate.HoldUp(*device_), IsOk());
  back = Tensor();  // and the deleter waits for the gate
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.Open();
  });
  device_.reset();  // the fake says at the end of the program what was not freed
  opens.join();
}

// Otherwise the first kernel that reads it would end all work of this process on the GPU.
TEST_F(DlpackCudaTest, MemoryThatKernelsCannotReachIsNotAdopted) {
  constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
  std::vector<float> values(4);
  bool is_gone = false;
  EXPECT_THAT(AdoptSpan(*device_, absl::MakeSpan(values), {4}, [&] { is_gone = true; }).status(),
              StatusIs(kInvalidArgument, HasSubstr("the host's, and not page-locked")));
  EXPECT_TRUE(is_gone);
  void* locked = nullptr;
  ASSERT_EQ(cudaMallocHost(&locked, 16), cudaSuccess);
  EXPECT_THAT(AdoptMemory(*device_, {.data = locked, .shape = {4}}).status(), IsOk());
  EXPECT_EQ(cudaFreeHost(locked), cudaSuccess);
  DT_ASSERT_OK_AND_ASSIGN(const int gpus, CountGpus());
  if (gpus < 2) return;
  DT_ASSERT_OK_AND_ASSIGN(const auto other, MakeCudaDevice(1));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor theirs, Tensor::Empty(*other, DType::kF32, {4}));
  EXPECT_THAT(AdoptMemory(*device_, {.data = theirs.raw(), .shape = {4}}).status(),
              StatusIs(kInvalidArgument, HasSubstr("of GPU 1, which kernels of GPU 0")));
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);  // for the next test's stream
}

TEST_F(DlpackCudaTest, WorkGoesToTheProgramsStream) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0, stream));
    EXPECT_EQ(CudaStreamOf(*device), stream);
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Empty(*device, DType::kI32, {1 << 20}));
    ASSERT_THAT(device->FillBytes(tensor.raw(), 1, tensor.bytes()), IsOk());
    // In order, with nothing to wait for in between.
    std::vector<int32_t> seen(1 << 20);
    ASSERT_EQ(cudaMemcpyAsync(seen.data(), tensor.raw(), tensor.bytes(), cudaMemcpyDefault, stream),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(seen, std::vector<int32_t>(1 << 20, 0x01010101));
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << "it is the program's to destroy";
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace dtensor
