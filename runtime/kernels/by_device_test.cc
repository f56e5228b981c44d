#include "dtensor/runtime/kernels/by_device.h"

#include <memory>
#include <type_traits>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/fake_cuda.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

// Adds to *count, in the device's queue.
struct CountArgs {
  int* count;
  int by;
};

absl::Status CountOnHost(Device& device, const char* name, const CountArgs& args) {
  return device.Launch(name, [args]() -> absl::Status {
    *args.count += args.by;
    return args.by > 0 ? absl::OkStatus() : absl::OutOfRangeError("counts up");
  });
}

KernelWork WorkOf(const CountArgs& args) { return {.bytes = static_cast<double>(args.by)}; }

constexpr ByDevice<CountArgs> kCount = {.name = "Count", .host = CountOnHost, .work = WorkOf};
// Nobody can leave it out.
static_assert(!std::is_default_constructible_v<WorkFunction<CountArgs>>);
constexpr ByDevice<CountArgs> kNowhere = {.name = "Count", .work = WorkOf};

TEST(ByDevice, RunsOnTheHostsDevices) {
  int count = 0;
  const std::unique_ptr<Device> cpu = MakeCpuDevice(), deferred = MakeDeferredDevice();
  DT_EXPECT_OK(kCount.Run(*cpu, {DType::kF32}, {&count, 2}));
  EXPECT_EQ(count, 2);
  DT_EXPECT_OK(kCount.Run(*deferred, {DType::kF32}, {&count, 3}));
  DT_EXPECT_OK(deferred->Synchronize());
  EXPECT_EQ(count, 5);
}

TEST(ByDevice, SaysOnMetaWhatItWouldDo) {
  int count = 0;
  const std::unique_ptr<Device> meta = MakeMetaDevice();
  DT_EXPECT_OK(kCount.Run(*meta, {DType::kF32}, {&count, 1}));
  DT_EXPECT_OK(kNowhere.Run(*meta, {DType::kF32}, {&count, 1}));
  EXPECT_EQ(count, 0);
  EXPECT_EQ(ClockOf(*meta)->work().kernels, 2);
  EXPECT_EQ(ClockOf(*meta)->work().bytes, 2);
  meta->Fail(absl::InternalError("broken"));
  EXPECT_THAT(kCount.Run(*meta, {DType::kF32}, {&count, 1}),
              StatusIs(absl::StatusCode::kInternal, "broken"));
  EXPECT_EQ(ClockOf(*meta)->work().kernels, 2);
}

TEST(ByDevice, ChoosesByKind) {
  int on_cuda = 0, on_host = 0;
  constexpr ByDevice<CountArgs> kBoth = {.name = "Count",
                                         .host = CountOnHost,
                                         .cuda =
                                             [](Device&, const char*, const CountArgs& args) {
                                               *args.count += 10 * args.by;
                                               return absl::OkStatus();
                                             },
                                         .work = WorkOf};
  FakeCuda cuda;
  DT_EXPECT_OK(kBoth.Run(cuda, {DType::kF32}, {&on_cuda, 1}));
  EXPECT_EQ(on_cuda, 10);
  DT_EXPECT_OK(kBoth.Run(*MakeCpuDevice(), {DType::kF32}, {&on_host, 1}));
  EXPECT_EQ(on_host, 1);
}

// Names kernel, types, device and remedy; the device goes on.
TEST(ByDevice, IsRefusedOnADeviceThatLacksIt) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  int count = 0;
  FakeCuda cuda;
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  EXPECT_THAT(kCount.Run(cuda, {DType::kBF16}, {&count, 1}),
              StatusIs(kUnimplemented,
                       "Count: there is no cuda kernel for bf16; run this operator on the cpu "
                       "device"));
  EXPECT_THAT(kNowhere.Run(*cpu, {DType::kF32, DType::kF32, DType::kI64}, {&count, 1}),
              StatusIs(kUnimplemented,
                       "Count: there is no cpu kernel for f32, i64; run this operator on the cuda "
                       "device"));
  DT_EXPECT_OK(cuda.failure());
  DT_EXPECT_OK(kCount.Run(*cpu, {DType::kF32}, {&count, 1}));
}

TEST(ByDevice, FailuresNameTheKernelAndStay) {
  int count = 0;
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  const auto failure = StatusIs(absl::StatusCode::kOutOfRange, "Count: counts up");
  EXPECT_THAT(kCount.Run(*cpu, {DType::kF32}, {&count, 0}), failure);
  EXPECT_THAT(kCount.Run(*cpu, {DType::kF32}, {&count, 1}), failure);
  EXPECT_EQ(count, 0);
  // What it lacks matters no longer.
  EXPECT_THAT(kNowhere.Run(*cpu, {DType::kF32}, {&count, 1}), failure);
}

}  // namespace
}  // namespace dtensor::kernels
