#include "dtensor/runtime/device/device.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = Device::Kind;

std::unique_ptr<Device> Make(Kind kind) {
  switch (kind) {
    case Kind::kDeferred:
      return MakeDeferredDevice({.seed = 1, .max_delay_us = 200});
    case Kind::kMeta:
      return MakeMetaDevice();
    default:
      return MakeCpuDevice();
  }
}

// What all devices promise.
class DeviceTest : public testing::TestWithParam<Kind> {
 protected:
  bool computes() const { return !device_->is_meta(); }
  std::unique_ptr<Device> device_ = Make(GetParam());
};

std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  return std::string(ToString(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceTest,
                         testing::Values(Kind::kCpu, Kind::kDeferred, Kind::kMeta), NameOf);

// What those promise that have memory and run kernels.
class ComputingDeviceTest : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, ComputingDeviceTest, testing::Values(Kind::kCpu, Kind::kDeferred),
                         NameOf);

TEST_P(DeviceTest, MayBeAskedToKeepLittle) {
  device_->set_kept_bytes(0);
  DT_ASSERT_OK_AND_ASSIGN(void* data, device_->Allocate(3 << 20));
  device_->Trim();
  device_->Free(data, 3 << 20);
  device_->Trim();
  EXPECT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_P(DeviceTest, KeepsThingsAliveUntilItGoes) {
  auto thing = std::make_shared<int>(7);
  const std::weak_ptr<int> weak = thing;
  device_->KeepAlive(std::move(thing));
  EXPECT_FALSE(weak.expired());
  device_.reset();
  EXPECT_TRUE(weak.expired());
}

TEST_P(DeviceTest, KnowsItsKind) {
  EXPECT_EQ(device_->kind(), GetParam());
  EXPECT_EQ(device_->is_meta(), GetParam() == Kind::kMeta);
}

TEST_P(DeviceTest, CountsMemoryAsAsked) {
  DT_ASSERT_OK_AND_ASSIGN(void* a, device_->Allocate(100));
  DT_ASSERT_OK_AND_ASSIGN(void* b, device_->Allocate(1000));
  EXPECT_EQ(a != nullptr, computes());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0);
  device_->Free(a, 100);
  EXPECT_EQ(device_->memory().live_bytes, 1000);
  EXPECT_EQ(device_->memory().peak_bytes, 1100);
  device_->ResetPeak();
  EXPECT_EQ(device_->memory().peak_bytes, 1000);
  device_->Free(b, 1000);
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_P(DeviceTest, NoBytesAreNull) {
  EXPECT_THAT(device_->Allocate(0), IsOkAndHolds(nullptr));
  device_->Free(nullptr, 0);
  EXPECT_THAT(device_->CopyFromHost(nullptr, nullptr, 0), IsOk());
  EXPECT_THAT(device_->FillBytes(nullptr, 0, 0), IsOk());
}

TEST_P(DeviceTest, RunsWorkInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    ASSERT_THAT(device_->Launch("Append", [&order, i] { order.push_back(i); }), IsOk());
  }
  ASSERT_THAT(device_->Synchronize(), IsOk());
  std::vector<int> expected(computes() ? 20 : 0);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = i;
  EXPECT_EQ(order, expected);
}

TEST_P(DeviceTest, CopiesAndFills) {
  const std::vector<char> source = {1, 2, 3, 4};
  std::vector<char> result(4, 9);
  DT_ASSERT_OK_AND_ASSIGN(void* a, device_->Allocate(4));
  DT_ASSERT_OK_AND_ASSIGN(void* b, device_->Allocate(4));
  ASSERT_THAT(device_->CopyFromHost(a, source.data(), 4), IsOk());
  ASSERT_THAT(device_->FillBytes(b, 7, 4), IsOk());
  ASSERT_THAT(device_->CopyOnDevice(b, a, 3), IsOk());
  ASSERT_THAT(device_->CopyToHost(result.data(), b, 4), IsOk());
  device_->Free(a, 4);
  device_->Free(b, 4);
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(result, computes() ? (std::vector<char>{1, 2, 3, 7}) : std::vector<char>(4, 9));
}

TEST_P(DeviceTest, FirstFailureStays) {
  std::vector<std::string> told;
  device_->set_failure_handler(
      [&](const absl::Status& status) { told.emplace_back(status.message()); });
  EXPECT_THAT(device_->failure(), IsOk());
  device_->Fail(absl::OutOfRangeError("first"));
  device_->Fail(absl::InternalError("second"));
  const auto is_first = StatusIs(absl::StatusCode::kOutOfRange, std::string("first"));
  EXPECT_THAT(told, ElementsAre("first"));
  EXPECT_THAT(device_->failure(), is_first);
  EXPECT_THAT(device_->Allocate(8), is_first);
  EXPECT_THAT(device_->Launch("Nothing", [] { ADD_FAILURE(); }), is_first);
  EXPECT_THAT(device_->FillBytes(&told, 0, 8), is_first);
  EXPECT_THAT(device_->CopyOnDevice(&told, &told, 8), is_first);
  EXPECT_THAT(device_->Wait(DeviceEvent()), is_first);
  EXPECT_THAT(device_->Synchronize(), is_first);
  // Whoever comes late hears of it too.
  device_->set_failure_handler([&](const absl::Status&) { told.emplace_back("late"); });
  EXPECT_THAT(told, ElementsAre("first", "late"));
}

TEST_P(DeviceTest, FailingWithOkIsNoFailure) {
  device_->Fail(absl::OkStatus());
  EXPECT_THAT(device_->failure(), IsOk());
  EXPECT_THAT(device_->Allocate(0), IsOk());
}

TEST_P(ComputingDeviceTest, KernelsThatFailAreNamed) {
  (void)device_->Launch("Embedding", [] { return absl::OutOfRangeError("index 7 of 5 rows"); });
  EXPECT_THAT(device_->Synchronize(),
              StatusIs(absl::StatusCode::kOutOfRange, std::string("Embedding: index 7 of 5 rows")));
  EXPECT_THAT(device_->Launch("Next", [] { ADD_FAILURE(); }),
              StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_P(DeviceTest, KernelsMayOwnWhatCanOnlyBeCopied) {
  int sum = 0;
  std::vector<int> values = {1, 2, 3};
  ASSERT_THAT(device_->Launch("Sum",
                              [values, &sum]() mutable {
                                values.push_back(4);
                                for (int v : values) sum += v;
                                return absl::OkStatus();
                              }),
              IsOk());
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(sum, computes() ? 10 : 0);
}

TEST_P(DeviceTest, DefersUntilWorkIsDone) {
  std::vector<int> order;
  ASSERT_THAT(device_->Launch("First", [&] { order.push_back(1); }), IsOk());
  device_->Defer([&] { order.push_back(2); });
  device_->Defer(nullptr);
  ASSERT_THAT(device_->Launch("Third", [&] { order.push_back(3); }), IsOk());
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(order, computes() ? (std::vector<int>{1, 2, 3}) : (std::vector<int>{2}));
}

TEST_P(DeviceTest, DefersOnAFailedDeviceToo) {
  bool ran = false;
  device_->Fail(absl::InternalError("broken"));
  device_->Defer([&] { ran = true; });
  device_.reset();
  EXPECT_TRUE(ran);
}

TEST_P(DeviceTest, EventsHappen) {
  const DeviceEvent never_recorded;
  ASSERT_THAT(device_->Wait(never_recorded), IsOk());
  const DeviceEvent event = device_->Record();
  ASSERT_THAT(device_->Wait(event), IsOk());
  if (event.state() != nullptr) event.state()->Block();
}

TEST_P(ComputingDeviceTest, RefusesMoreThanThereIs) {
  DT_ASSERT_OK_AND_ASSIGN(void* some, device_->Allocate(1000));
  EXPECT_THAT(device_->Allocate(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::AllOf(HasSubstr("1152921504606846976"),
                                      HasSubstr("hold 1000 bytes already"))));
  EXPECT_EQ(device_->memory().live_bytes, 1000);
  // The caller decides whether that is a failure.
  EXPECT_THAT(device_->failure(), IsOk());
  device_->Free(some, 1000);
}

TEST(CpuDeviceTest, WorkIsDoneWhenLaunchReturns) {
  const auto device = MakeCpuDevice();
  bool ran = false;
  ASSERT_THAT(device->Launch("Set", [&] { ran = true; }), IsOk());
  EXPECT_TRUE(ran);
  EXPECT_EQ(device->Record().state(), nullptr);
  EXPECT_THAT(device->Launch("Break", [] { return absl::InternalError("x"); }),
              StatusIs(absl::StatusCode::kInternal, std::string("Break: x")));
}

TEST(CpuDeviceTest, FreedMemoryIsReused) {
  const auto device = MakeCpuDevice();
  DT_ASSERT_OK_AND_ASSIGN(void* first, device->Allocate(5000));
  device->Free(first, 5000);
  EXPECT_THAT(device->Allocate(5000), IsOkAndHolds(first));
}

// Resident pages, not addresses, are what a machine runs out of.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t mapped = 0, resident = 0;
  statm >> mapped >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(CpuDeviceTest, GivesMemoryBack) {
  constexpr int64_t kBytes = 64 << 20;
  const auto device = MakeCpuDevice();
  const auto touch = [&] {
    void* const data = *device->Allocate(kBytes);
    std::memset(data, 1, kBytes);
    device->Free(data, kBytes);
  };
  touch();
  const int64_t kept = ResidentBytes();
  device->Trim();
  EXPECT_LT(ResidentBytes(), kept - kBytes / 2);
  device->set_kept_bytes(kBytes / 2);
  touch();
  EXPECT_LT(ResidentBytes(), kept - kBytes / 2);
}

TEST(MetaDeviceTest, RefusesMoreThanCanBeCounted) {
  const auto device = MakeMetaDevice();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  DT_ASSERT_OK(device->Allocate(kMost - 10));
  EXPECT_THAT(device->Allocate(11), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("11 bytes more are too many")));
  DT_ASSERT_OK(device->Allocate(10));
  EXPECT_EQ(device->memory().live_bytes, kMost);
}

TEST(MetaDeviceTest, AnySizeFits) {
  const auto device = MakeMetaDevice();
  EXPECT_THAT(device->Allocate(int64_t{1} << 60), IsOkAndHolds(nullptr));
  EXPECT_EQ(device->memory().live_bytes, int64_t{1} << 60);
  device->Free(nullptr, int64_t{1} << 60);
  EXPECT_EQ(device->memory().live_bytes, 0);
}

}  // namespace
}  // namespace dtensor
