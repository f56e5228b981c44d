#include "dtensor/runtime/device/cuda/cuda_device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/kernel_error.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
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
  EXPECT_THAT(device_->Allocate(int64_t{1} << 50), StatusIs(absl::StatusCode::kResourceExhausted));
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

// What a kernel does that finds a wrong index; kernels that do are tested where they are.
void WriteError(Device& device, const KernelError* error) {
  ASSERT_THAT(device.CopyFromHost(CudaKernelErrorOf(device), error, sizeof(*error)), IsOk());
}

// --- Threads and GPUs.

// Whether this process has one on that GPU. Asking makes none.
bool HasContext(int gpu) {
  void* state_of = nullptr;
  cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &state_of, 12000,
                                   cudaEnableDefault);
  unsigned flags = 0;
  int is_active = 0;
  reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(state_of)(gpu, &flags, &is_active);
  return is_active != 0;
}

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

// Small integers, whose sums are exact, against the cpu device; twice, for the same bits.
class CudaProductTest : public CudaDeviceTest, public testing::WithParamInterface<DType> {
 protected:
  // With `pad` elements behind each row or column of an operand.
  template <typename T>
  std::vector<T> Gemm(Device& device, bool a_columns, bool b_columns, int64_t batch, int64_t pad) {
    const int64_t m = 65, n = 34, k = 129;
    const int64_t a_leading = (a_columns ? m : k) + pad, b_leading = (b_columns ? k : n) + pad;
    const int64_t a_size = a_leading * (a_columns ? k : m), c_size = m * (n + pad);
    const Tensor a = Numbers<T>(device, batch * a_size, 1);
    const Tensor b = Numbers<T>(device, b_leading * (b_columns ? n : k), 2);
    const Tensor c = Numbers<T>(device, batch * c_size, 3);
    GemmProblem p = {GetParam(), GetParam(), batch, m, n, k};
    p.a = {a.raw(), a_columns ? 1 : a_leading, a_columns ? a_leading : 1, a_size};
    p.b = {b.raw(), b_columns ? 1 : b_leading, b_columns ? b_leading : 1, 0};
    p.c = {c.raw(), n + pad, 1, c_size};
    p.accumulate = batch > 1;
    EXPECT_THAT(device.Gemm(p), IsOk());
    return ToHost<T>(c).value();
  }
  template <typename T>
  Tensor Numbers(Device& device, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<T> values(count);
    for (T& value : values) value = T(static_cast<float>(static_cast<int>(random() % 7) - 3));
    return FromHost<T>(device, values, {count}).value();
  }
};

TEST_P(CudaProductTest, AgreesWithTheCpu) {
  const auto cpu = MakeCpuDevice();
  VisitDType(GetParam(), [&](auto element) {
    using T = decltype(element);
    if constexpr (!std::is_same_v<T, bool>) {
      for (int bits = 0; bits < 16; ++bits) {
        const bool a = bits & 1, b = bits & 2;
        const int64_t batch = bits & 4 ? 3 : 1, pad = bits & 8 ? 3 : 0;
        const auto expected = Gemm<T>(*cpu, a, b, batch, pad);
        for (int i = 0; i < 2; ++i) {
          const auto result = Gemm<T>(*device_, a, b, batch, pad);
          ASSERT_EQ(result.size(), expected.size());
          for (size_t j = 0; j < result.size(); ++j) {
            ASSERT_EQ(static_cast<float>(result[j]), static_cast<float>(expected[j])) << bits;
          }
        }
      }
    }
  });
}

// 256 + 1 has more bits than bf16, and -256 takes what is left of it: parts of a sum are added in
// f32.
TEST_F(CudaDeviceTest, PartsOfASumAreNotRounded) {
  const auto tensor = [&](std::vector<float> values) {
    std::vector<BFloat16> narrow;
    for (const float value : values) narrow.push_back(BFloat16(value));
    return FromHost<BFloat16>(*device_, narrow, {static_cast<int64_t>(values.size())}).value();
  };
  const Tensor a = tensor({256, 1, -256, 0}), b = tensor({1, 1, 1, 1}), c = tensor({0});
  GemmProblem p = {DType::kBF16, DType::kBF16, 1, 1, 1, 4};
  p.a = {a.raw(), 4, 1, 4};
  p.b = {b.raw(), 1, 1, 4};
  p.c = {c.raw(), 1, 1, 1};
  ASSERT_THAT(device_->Gemm(p), IsOk());
  DT_ASSERT_OK_AND_ASSIGN(const std::vector<BFloat16> sum, ToHost<BFloat16>(c));
  EXPECT_EQ(static_cast<float>(sum[0]), 1);
}

// A chunk of the rows, less aligned than the whole, as when a product begins before all of its
// operand is there.
TEST_F(CudaDeviceTest, RowsHaveTheBitsThatTheyHaveInTheWhole) {
  constexpr int64_t m = 128, n = 64, k = 97, rows = 16;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> number(-1, 1);
  const auto numbers = [&](int64_t rows, int64_t columns) {
    std::vector<float> values(rows * columns);
    for (float& value : values) value = number(random);
    return FromHost<float>(*device_, values, {rows, columns}).value();
  };
  const Tensor a = numbers(m, k), b = numbers(k, n), whole = numbers(m, n), part = numbers(rows, n);
  const auto multiply = [&](const Tensor& x, const Tensor& y) {
    GemmProblem p = {DType::kF32, DType::kF32, 1, x.size(0), n, k};
    p.a = {x.raw(), k, 1, 0};
    p.b = {b.raw(), n, 1, 0};
    p.c = {y.raw(), n, 1, 0};
    ASSERT_THAT(device_->Gemm(p), IsOk());
  };
  multiply(a, whole);
  for (int64_t first = 0; first < m; first += rows) {
    multiply(a.Narrow(0, first, rows), part);
    const auto expected = ToHost<float>(whole.Narrow(0, first, rows));
    EXPECT_EQ(ToHost<float>(part).value(), expected.value());
  }
}

// By the algorithm of the whole: the fake refuses one that nobody checked for the part.
TEST_F(CudaDeviceTest, PartsOfAProductHaveItsBits) {
  constexpr int64_t m = 96, n = 64, k = 64, rows = 32;
  std::vector<float> numbers(m * k);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1 / (1.0f + static_cast<float>(i % 97));
  const Tensor a = FromHost<float>(*device_, numbers, {m, k}).value();
  const Tensor b =
      FromHost<float>(*device_, absl::MakeConstSpan(numbers).first(k * n), {k, n}).value();
  const std::vector<float> none(m * n, -1);
  const Tensor whole = FromHost<float>(*device_, none, {m, n}).value();
  const Tensor parts = FromHost<float>(*device_, none, {m, n}).value();
  GemmProblem p = {DType::kF32, DType::kF32, 1, m, n, k};
  p.b = {b.raw(), n, 1, 0};
  p.a = {a.raw(), k, 1, 0};
  p.c = {whole.raw(), n, 1, 0};
  ASSERT_THAT(device_->Gemm(p), IsOk());
  p.whole_rows = m;
  p.m = rows;
  for (p.first_row = 0; p.first_row < m; p.first_row += rows) {
    p.a.data = a.Narrow(0, p.first_row, rows).raw();
    p.c.data = parts.Narrow(0, p.first_row, rows).raw();
    p.only_asks = true;
    EXPECT_THAT(device_->Gemm(p), IsOk());
    p.only_asks = false;
    EXPECT_THAT(device_->Gemm(p), IsOk());
  }
  EXPECT_EQ(ToHost<float>(parts).value(), ToHost<float>(whole).value());
}

// Rows of 97 floats: those after the first are less aligned than the whole, whose algorithm may
// need that.
TEST_F(CudaDeviceTest, APartThatIsLessAlignedIsRefused) {
  const Tensor x = FromHost<float>(*device_, std::vector<float>(97 * 97, 1), {97, 97}).value();
  const Tensor y = FromHost<float>(*device_, std::vector<float>(97 * 97, 1), {97, 97}).value();
  GemmProblem p = {DType::kF32, DType::kF32, 1, 1, 97, 97};
  p.whole_rows = 97;
  p.first_row = 1;
  p.b = {x.raw(), 97, 1, 0};
  p.a = {x.Narrow(0, 1, 1).raw(), 97, 1, 0};
  p.c = {y.Narrow(0, 1, 1).raw(), 97, 1, 0};
  EXPECT_THAT(device_->Gemm(p), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(device_->failure(), IsOk());
}

// cuBLASLt's count of them has 32 bits.
TEST_F(CudaDeviceTest, MoreMatricesThanCanBeCountedAreRefused) {
  const Tensor x = FromHost<float>(*device_, std::vector<float>(4), {4}).value();
  GemmProblem p = {DType::kF32, DType::kF32, (int64_t{1} << 32) + 5, 1, 1, 1};
  p.a = p.b = {x.raw(), 1, 1, 0};
  p.c = {x.raw(), 1, 1, 1};
  p.only_asks = true;
  EXPECT_THAT(device_->Gemm(p), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("in parts")));
}

// Each has a workspace of its own: TSan sees one that is shared.
TEST_F(CudaDeviceTest, TwoDevicesMultiplyAtTheSameTime) {
  DT_ASSERT_OK_AND_ASSIGN(const auto other, MakeCudaDevice(0));
  const std::vector<float> ones(64 * 64, 1);
  for (int round = 0; round < 4; ++round) {
    std::vector<Tensor> results;
    for (Device* device : {device_.get(), other.get()}) {
      const Tensor a = FromHost<float>(*device, ones, {64, 64}).value();
      results.push_back(FromHost<float>(*device, ones, {64, 64}).value());
      GemmProblem p = {DType::kF32, DType::kF32, 1, 64, 64, 64};
      p.a = p.b = {a.raw(), 64, 1, 0};
      p.c = {results.back().raw(), 64, 1, 0};
      ASSERT_THAT(device->Gemm(p), IsOk());
    }
    for (const Tensor& c : results) {
      EXPECT_THAT(ToHost<float>(c), IsOkAndHolds(std::vector<float>(64 * 64, 64)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaProductTest,
                         testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace dtensor
