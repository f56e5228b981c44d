#include "dtensor/runtime/device/deferred/deferred_device.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Holds a device's queue at one point until told to go on.
class Gate {
 public:
  // The gate outlives the device's work.
  explicit Gate(Device& device) {
    EXPECT_THAT(device.Launch("Gate", [this] { open_.wait(false); }), IsOk());
  }
  void Open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_ = false;
};

TEST(DeferredDeviceTest, ReturnsBeforeTheWorkIsDone) {
  const auto device = MakeDeferredDevice();
  Gate gate(*device);
  std::atomic<bool> ran = false;
  ASSERT_THAT(device->Launch("Set", [&] { ran = true; }), IsOk());
  EXPECT_FALSE(ran);
  gate.Open();
  ASSERT_THAT(device->Synchronize(), IsOk());
  EXPECT_TRUE(ran);
}

TEST(DeferredDeviceTest, ANegativeDelayIsNone) {
  const auto device = MakeDeferredDevice({.max_delay_us = -1});
  bool ran = false;
  for (int i = 0; i < 100; ++i) ASSERT_THAT(device->Launch("Set", [&] { ran = true; }), IsOk());
  ASSERT_THAT(device->Synchronize(), IsOk());
  EXPECT_TRUE(ran);
}

TEST(DeferredDeviceTest, AKernelThatThrowsFails) {
  const auto device = MakeDeferredDevice();
  ASSERT_THAT(device->Launch("Gather", [] { throw std::runtime_error("no such row"); }), IsOk());
  EXPECT_THAT(device->Synchronize(), StatusIs(absl::StatusCode::kInternal,
                                              testing::AllOf(testing::HasSubstr("Gather: "),
                                                             testing::HasSubstr("no such row"))));
}

TEST(DeferredDeviceTest, MemoryIsPoisonedUntilItIsWritten) {
  const auto device = MakeDeferredDevice();
  DT_ASSERT_OK_AND_ASSIGN(void* data, device->Allocate(sizeof(double)));
  double wide;
  std::memcpy(&wide, data, sizeof(wide));
  float narrow;
  std::memcpy(&narrow, data, sizeof(narrow));
  EXPECT_TRUE(std::isnan(wide));
  EXPECT_TRUE(std::isnan(narrow));
  device->Free(data, sizeof(double));
}

TEST(DeferredDeviceTest, MemoryOutlivesWorkThatWasLaunchedBefore) {
  const auto device = MakeDeferredDevice();
  DT_ASSERT_OK_AND_ASSIGN(void* data, device->Allocate(64));
  Gate gate(*device);
  int read = 0;
  ASSERT_THAT(device->FillBytes(data, 5, 64), IsOk());
  ASSERT_THAT(device->Launch("Read", [&read, p = static_cast<char*>(data)] { read = p[63]; }),
              IsOk());
  device->Free(data, 64);
  EXPECT_EQ(device->memory().live_bytes, 0);
  gate.Open();
  ASSERT_THAT(device->Synchronize(), IsOk());
  EXPECT_EQ(read, 5);
}

TEST(DeferredDeviceTest, ProductsWaitForTheirOperands) {
  const auto device = MakeDeferredDevice({.seed = 3});
  float a[4] = {}, b[4] = {}, c[4] = {};
  Gate gate(*device);
  ASSERT_THAT(device->Launch("Write",
                             [&] {
                               const float values[] = {1, 2, 3, 4};
                               std::memcpy(a, values, sizeof(a));
                               std::memcpy(b, values, sizeof(b));
                             }),
              IsOk());
  const GemmProblem p = {DType::kF32, DType::kF32, 1, 2, 2, 2, {a, 2}, {b, 2}, {c, 2}};
  ASSERT_THAT(device->Gemm(p), IsOk());
  gate.Open();
  ASSERT_THAT(device->Synchronize(), IsOk());
  EXPECT_THAT(c, testing::ElementsAre(7, 10, 15, 22));
}

TEST(DeferredDeviceTest, AnEventOrdersTwoDevices) {
  const auto writer = MakeDeferredDevice({.seed = 1});
  const auto reader = MakeDeferredDevice({.seed = 2});
  int value = 0, seen = 0;
  Gate gate(*writer);
  ASSERT_THAT(writer->Launch("Write", [&] { value = 7; }), IsOk());
  ASSERT_THAT(reader->Wait(writer->Record()), IsOk());
  ASSERT_THAT(reader->Launch("Read", [&] { seen = value; }), IsOk());
  gate.Open();
  ASSERT_THAT(reader->Synchronize(), IsOk());
  EXPECT_EQ(seen, 7);
}

TEST(DeferredDeviceTest, AnEventBlocksAHostThreadUntilItsPoint) {
  const auto device = MakeDeferredDevice();
  Gate gate(*device);
  std::atomic<bool> ran = false, passed = false;
  ASSERT_THAT(device->Launch("Set", [&] { ran = true; }), IsOk());
  std::thread waiter([&, event = device->Record()] {
    event.state()->Block();
    EXPECT_TRUE(ran);
    passed = true;
  });
  EXPECT_FALSE(passed);
  gate.Open();
  waiter.join();
  EXPECT_TRUE(passed);
}

TEST(DeferredDeviceTest, AFailedDeviceReachesItsEvents) {
  const auto device = MakeDeferredDevice();
  const auto other = MakeDeferredDevice();
  DT_ASSERT_OK_AND_ASSIGN(void* data, device->Allocate(64));
  Gate gate(*device);
  bool told = false;
  device->set_failure_handler([&](const absl::Status&) { told = true; });
  ASSERT_THAT(device->Launch("Break", [] { return absl::InternalError("broken"); }), IsOk());
  std::atomic<bool> skipped = true;
  ASSERT_THAT(device->Launch("Skipped", [&] { skipped = false; }), IsOk());
  ASSERT_THAT(other->Wait(device->Record()), IsOk());
  gate.Open();
  // Another device goes on; what it does about the failure is the communicator's business.
  EXPECT_THAT(other->Synchronize(), IsOk());
  EXPECT_TRUE(told);
  EXPECT_TRUE(skipped);
  device->Free(data, 64);
  EXPECT_THAT(device->Synchronize(), StatusIs(absl::StatusCode::kInternal));
  // Recorded after the failure, and reached all the same.
  device->Record().state()->Block();
}

TEST(DeferredDeviceTest, AFailureFromOutsideSkipsTheRest) {
  const auto device = MakeDeferredDevice();
  Gate gate(*device);
  std::atomic<bool> ran = false;
  ASSERT_THAT(device->Launch("Skipped", [&] { ran = true; }), IsOk());
  device->Fail(absl::AbortedError("a peer left"));
  gate.Open();
  EXPECT_THAT(device->Synchronize(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(ran);
}

TEST(DeferredDeviceTest, TheDestructorFinishesTheWork) {
  int done = 0;
  {
    const auto device = MakeDeferredDevice({.seed = 5, .max_delay_us = 100});
    for (int i = 0; i < 10; ++i) ASSERT_THAT(device->Launch("Count", [&] { ++done; }), IsOk());
    DT_ASSERT_OK_AND_ASSIGN(void* data, device->Allocate(64));
    device->Free(data, 64);
  }
  EXPECT_EQ(done, 10);
}

// Two queues that count up in turn, each waiting for the other's event: races and lost wake-ups
// show here, if anywhere.
TEST(DeferredDeviceTest, DevicesTakeTurns) {
  const auto a = MakeDeferredDevice({.seed = 1, .max_delay_us = 10});
  const auto b = MakeDeferredDevice({.seed = 2, .max_delay_us = 10});
  int count = 0;
  bool in_order = true;
  for (int i = 0; i < 100; ++i) {
    Device& next = i % 2 == 0 ? *a : *b;
    Device& last = i % 2 == 0 ? *b : *a;
    ASSERT_THAT(next.Wait(last.Record()), IsOk());
    ASSERT_THAT(next.Launch("Count", [&, i] { in_order = in_order && count++ == i; }), IsOk());
  }
  ASSERT_THAT(a->Synchronize(), IsOk());
  ASSERT_THAT(b->Synchronize(), IsOk());
  EXPECT_EQ(count, 100);
  EXPECT_TRUE(in_order);
}

}  // namespace
}  // namespace dtensor
