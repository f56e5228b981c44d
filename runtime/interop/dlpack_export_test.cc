// How ToDlpack describes a tensor, and how long its memory lives; round trips; GPUs.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"
#include "dtensor/runtime/testing/fake_cuda.h"
#include "dtensor/runtime/testing/foreign_tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class DlpackExportTest : public testing::TestWithParam<Device::Kind> {
 protected:
  void SetUp() override {
    device_ = GetParam() == Device::Kind::kCpu
                  ? MakeCpuDevice()
                  : MakeDeferredDevice({.seed = 5, .max_delay_us = 500});
  }
  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DlpackExportTest,
                         testing::Values(Device::Kind::kCpu, Device::Kind::kDeferred),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST_P(DlpackExportTest, SaysWhatTheTensorIs) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor dense,
                          FromHost<float>(*device_, {0, 1, 2, 3, 4, 5}, {2, 3}));
  const Tensor tensor = dense.Transpose(0, 1).Narrow(0, 1, 2);
  DT_ASSERT_OK_AND_ASSIGN(const DlpackTensor out, ToDlpack(tensor));
  const DLTensor& dl = out->dl_tensor;
  EXPECT_EQ(out->version.major, 1);
  EXPECT_EQ(out->flags, 0);
  EXPECT_EQ(dl.data, tensor.raw());
  EXPECT_EQ(dl.device.device_type, kDLCPU);
  EXPECT_EQ(dl.device.device_id, 0);
  EXPECT_EQ(dl.dtype.code, kDLFloat);
  EXPECT_EQ(dl.dtype.bits, 32);
  EXPECT_EQ(dl.dtype.lanes, 1);
  EXPECT_EQ(dl.byte_offset, 0);
  ASSERT_EQ(dl.ndim, 2);
  EXPECT_THAT(absl::MakeConstSpan(dl.shape, 2), ElementsAre(2, 2));
  EXPECT_THAT(absl::MakeConstSpan(dl.strides, 2), ElementsAre(1, 3));
  // The values are there: nobody waits for the device here.
  const auto* data = static_cast<const float*>(dl.data);
  EXPECT_THAT(std::vector<float>({data[0], data[3], data[1], data[4]}), ElementsAre(1, 4, 2, 5));
}

TEST_P(DlpackExportTest, ThereAndBackForEveryType) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32,
                            DType::kI64, DType::kBool}) {
    for (const Dims& shape : {Dims(), Dims({3}), Dims({2, 0}), Dims({2, 1, 2})}) {
      DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Empty(*device_, dtype, shape));
      DT_ASSERT_OK_AND_ASSIGN(DlpackTensor out, ToDlpack(tensor));
      DT_ASSERT_OK_AND_ASSIGN(const Tensor back, FromDlpack(*device_, std::move(out)));
      DT_ASSERT_OK_AND_ASSIGN(UnversionedDlpackTensor old, ToUnversionedDlpack(tensor));
      DT_ASSERT_OK_AND_ASSIGN(const Tensor again, FromDlpack(*device_, std::move(old)));
      for (const Tensor* result : {&back, &again}) {
        EXPECT_EQ(result->dtype(), dtype);
        EXPECT_EQ(result->shape(), shape);
        EXPECT_EQ(result->strides(), tensor.strides());
        EXPECT_EQ(result->raw(), tensor.raw());
      }
    }
  }
  DT_ASSERT_OK(device_->Synchronize());
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_P(DlpackExportTest, KeepsTheMemoryAndIsAUser) {
  DlpackTensor out;
  {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*device_, {1, 2}, {2}));
    EXPECT_TRUE(tensor.is_only_user());
    DT_ASSERT_OK_AND_ASSIGN(out, ToDlpack(tensor));
    EXPECT_FALSE(tensor.is_only_user()) << "a reduction in place would be seen there";
    DT_ASSERT_OK_AND_ASSIGN(const DlpackTensor second, ToDlpack(tensor));
  }
  EXPECT_EQ(device_->tensors(), 1);
  EXPECT_EQ(static_cast<float*>(out->dl_tensor.data)[1], 2);
  out = nullptr;
  EXPECT_EQ(device_->tensors(), 0);
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_P(DlpackExportTest, WhatIsGivenBackMayBeWrittenInPlaceAgain) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*device_, {1, 2}, {2}));
  DT_ASSERT_OK_AND_ASSIGN(DlpackTensor out, ToDlpack(tensor));
  std::atomic<float> seen = 0;
  std::thread reader([&seen, out = std::move(out)]() mutable {
    seen = static_cast<float*>(out->dl_tensor.data)[0];
    out = nullptr;
  });
  while (!tensor.is_only_user()) std::this_thread::yield();
  // ThreadSanitizer: after what the reader read.
  ASSERT_THAT(device_->FillBytes(tensor.raw(), 0, 8), IsOk());
  ASSERT_THAT(device_->Synchronize(), IsOk());
  reader.join();
  EXPECT_EQ(seen, 1);
}

TEST_P(DlpackExportTest, WhatIsBorrowedGetsItsOwnMemory) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor source, FromHost<float>(*device_, {1, 2}, {2}));
  const Tensor value = source.Borrow();
  DT_ASSERT_OK_AND_ASSIGN(const DlpackTensor out, ToDlpack(value));
  EXPECT_NE(out->dl_tensor.data, source.raw())
      << "or the consumer's writes would change the source";
  EXPECT_EQ(out->dl_tensor.data, value.raw());
  EXPECT_EQ(static_cast<float*>(out->dl_tensor.data)[0], 1);
}

TEST_P(DlpackExportTest, AWriteIsSeenOnBothSidesAndNotByValues) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*device_, {1, 2}, {2}));
  const Tensor value = tensor.Borrow();
  DT_ASSERT_OK_AND_ASSIGN(const DlpackTensor out, ToDlpack(tensor));
  ASSERT_THAT(tensor.BeforeWrite(), IsOk());
  ASSERT_THAT(device_->Synchronize(), IsOk());
  static_cast<float*>(out->dl_tensor.data)[0] = 7;
  EXPECT_THAT(ToHost<float>(tensor), IsOkAndHolds(ElementsAre(7, 2)));
  EXPECT_THAT(ToHost<float>(value), IsOkAndHolds(ElementsAre(1, 2)));
}

// Other threads let go while the rank's allocates, frees and borrows.
TEST_P(DlpackExportTest, AnyThreadLetsGoAtAnyTime) {
  constexpr int kThreads = 3, kRounds = 200;
  std::vector<std::vector<DlpackTensor>> handed(kThreads);
  for (auto& mine : handed) mine.resize(kRounds);
  std::vector<std::atomic<int>> ready(kThreads);
  std::vector<std::thread> readers;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    readers.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        while (ready[t].load(std::memory_order_acquire) <= i) std::this_thread::yield();
        if (static_cast<float*>(handed[t][i]->dl_tensor.data)[0] != i) ++wrong;
        handed[t][i] = nullptr;
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    DT_ASSERT_OK_AND_ASSIGN(Tensor tensor, FromHost<float>(*device_, {float(i), 0}, {2}));
    const Tensor value = tensor.Borrow();
    for (int t = 0; t < kThreads; ++t) {
      DT_ASSERT_OK_AND_ASSIGN(handed[t][i], ToDlpack(tensor));
      ready[t].store(i + 1, std::memory_order_release);
    }
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(device_->tensors(), 0);
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

// The rank's thread, its device and its world have ended when the consumer lets go.
TEST_P(DlpackExportTest, OutlivesTheWorld) {
  std::vector<DlpackTensor> kept(2);
  std::atomic<int> deleted = 0;
  DT_ASSERT_OK(RunLocalRanks(
      2,
      [&](Communicator& communicator, Device& device) -> absl::Status {
        Tensor tensor;
        if (communicator.rank() == 0) {
          DT_ASSIGN_OR_RETURN(tensor, FromHost<float>(device, {1, 2, 3}, {3}));
        } else {  // theirs, ours, and theirs again
          DT_ASSIGN_OR_RETURN(
              tensor, FromDlpack(device, MakeForeign<DLManagedTensor, float>({0, 1, 2}, {3}, {},
                                                                             [&] { ++deleted; })));
        }
        DT_ASSIGN_OR_RETURN(kept[communicator.rank()], ToDlpack(tensor));
        return absl::OkStatus();
      },
      {.device = GetParam()}));
  EXPECT_EQ(deleted, 0);
  std::thread([&] {
    EXPECT_EQ(static_cast<float*>(kept[0]->dl_tensor.data)[2], 3);
    EXPECT_EQ(static_cast<float*>(kept[1]->dl_tensor.data)[2], 2);
    kept.clear();
  }).join();
  // The next world to end finds that this one is over.
  DT_EXPECT_OK(RunLocalRanks(1, [](Communicator&, Device&) { return absl::OkStatus(); }));
  EXPECT_EQ(deleted, 1);
}

TEST(DlpackTest, RefusesToExportNothing) {
  EXPECT_THAT(ToDlpack(Tensor()), StatusIs(kInvalid, HasSubstr("undefined")));
  EXPECT_THAT(ToUnversionedDlpack(Tensor()), StatusIs(kInvalid));
  const auto meta = MakeMetaDevice();
  DT_ASSERT_OK_AND_ASSIGN(const Tensor shape, Tensor::Empty(*meta, DType::kF32, {2}));
  EXPECT_THAT(ToDlpack(shape), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("meta")));
  const auto device = MakeCpuDevice();
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromHost<float>(*device, {1}, {1}));
  device->Fail(absl::InternalError("it burns"));
  EXPECT_THAT(ToDlpack(tensor), StatusIs(absl::StatusCode::kInternal, HasSubstr("burns")));
  EXPECT_TRUE(tensor.is_only_user()) << "a failed export keeps nothing";
}

TEST(DlpackTest, AGpuIsTheOneOfItsOrdinal) {
  FakeCuda gpu(/*ordinal=*/1);
  std::atomic<int> deleted = 0;
  const auto import = [&](DLDevice from) {
    const auto lie_there = [&](DLManagedTensor& m) { m.dl_tensor.device = from; };
    return FromDlpack(gpu, MakeForeign<DLManagedTensor, float>(
                               {0}, {1}, {}, [&] { ++deleted; }, lie_there));
  };
  EXPECT_THAT(import({kDLCUDA, 1}), IsOk());
  EXPECT_THAT(import({kDLCUDA, 0}), StatusIs(kInvalid, HasSubstr("2:0, and cuda is 2:1")));
  EXPECT_THAT(import({kDLCPU, 0}), StatusIs(kInvalid, HasSubstr("1:0, and cuda is 2:1")));
  EXPECT_THAT(import({kDLCUDAHost, 0}), StatusIs(kInvalid));
  EXPECT_EQ(deleted, 4);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Empty(gpu, DType::kF32, {2}));
  DT_ASSERT_OK_AND_ASSIGN(const DlpackTensor out, ToDlpack(tensor));
  EXPECT_EQ(out->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ(out->dl_tensor.device.device_id, 1);
}

}  // namespace
}  // namespace dtensor
