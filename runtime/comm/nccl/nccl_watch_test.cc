// Over the fakes: whom a watch aborts, and when it gives a device up.
#include "dtensor/runtime/comm/nccl/nccl_watch.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

class OneRank final : public WorldState {
 public:
  absl::Status Fail(int, const absl::Status& reason) override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = reason;
    return failure_;
  }
  absl::Status failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool failed() const override { return !failure().ok(); }
  void TellOfFailure(std::function<void()>) override {}  // nobody asks
  std::optional<absl::Status> returned(int) const override { return std::nullopt; }
  double timeout_seconds() const override { return 60; }

 private:
  mutable std::mutex mutex_;
  absl::Status failure_;
};

class NcclWatchTest : public testing::Test {
 protected:
  NcclWatchTest() {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    EXPECT_EQ(busy_.Init(id), ncclSuccess);
    data_ = busy_.Filled({1});
    device_ = *MakeCudaDevice(0, busy_.stream);
    queue_ = *MakeCudaDevice(0, busy_.stream);
    watch_ = std::make_unique<NcclWatch>(0, *device_, *queue_, world_);
  }
  ~NcclWatchTest() override {
    watch_->Stop();
    if (busy_.comm != nullptr) Free();
    queue_.reset();
    device_.reset();
    busy_.Free(data_);
    cudaStreamSynchronize(busy_.stream);
    cudaStreamDestroy(busy_.stream);
  }

  // A message to itself that it does not receive: the stream does nothing else until Free.
  void Occupy() { busy_.End(ncclSend(data_, 1, ncclFloat32, 0, busy_.comm, busy_.stream)); }
  void Free() { ncclCommAbort(std::exchange(busy_.comm, nullptr)); }
  void FailTheWorld() { world_.Fail(0, absl::DataLossError("the dog ate it")).IgnoreError(); }
  // A flight whose end is what the stream has now.
  void Launch(const DeviceEvent& ready) {
    watch_->Begin("op", ready);
    watch_->Launched(queue_->Record());
  }
  bool gave_up() const { return *watch_->gave_up(); }
  bool GivesUpWithin(milliseconds longest) const {
    for (const auto until = Clock::now() + longest; !gave_up() && Clock::now() < until;) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return gave_up();
  }

  OneRank world_;
  NcclRank busy_{.rank = 0, .size = 1, .gpu = 0};
  float* data_ = nullptr;
  std::unique_ptr<Device> device_, queue_;
  std::unique_ptr<NcclWatch> watch_;
};

TEST_F(NcclWatchTest, WhoComesAfterTheAbortIsAborted) {
  watch_->Abort();
  const auto go_on = [] { return absl::OkStatus(); };
  const auto late = *NcclGroup::Connect(*NewNcclId(), 1, 0, go_on);
  watch_->Add(*late);
  EXPECT_TRUE(NcclGroup::AbortAll({late.get()}, Clock::now())) << "it was not";
}

TEST_F(NcclWatchTest, WhatHasBegunAndDoesNotEndIsGivenUp) {
  const DeviceEvent ready = device_->Record();
  Occupy();
  Launch(ready);
  FailTheWorld();
  EXPECT_TRUE(GivesUpWithin(seconds(15)));
}

// What the GPU was given before takes its time.
TEST_F(NcclWatchTest, WhatIsBehindOtherWorkIsNot) {
  Occupy();
  Launch(queue_->Record());
  FailTheWorld();
  EXPECT_FALSE(GivesUpWithin(seconds(4)));
  EXPECT_THAT(device_->failure(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(queue_->failure(), StatusIs(absl::StatusCode::kDataLoss)) << "who waits for it?";
  Free();
  watch_->Stop();
  EXPECT_FALSE(gave_up());
}

// The host is in the midst of a launch when the world fails: what it launches is looked after.
TEST_F(NcclWatchTest, WhatIsStillBeingLaunchedIsGivenUpAsWell) {
  watch_->Begin("op", queue_->Record());
  FailTheWorld();
  EXPECT_FALSE(GivesUpWithin(milliseconds(1500))) << "there may be nothing to wait for";
  Occupy();
  watch_->Launched(queue_->Record());
  EXPECT_TRUE(GivesUpWithin(seconds(15)));
}

TEST_F(NcclWatchTest, NobodyIsHeldUpByOtherWork) {
  Occupy();
  Launch(queue_->Record());
  FailTheWorld();
  const auto begin = Clock::now();
  watch_->Stop();
  EXPECT_LT(Clock::now() - begin, seconds(30));
  EXPECT_FALSE(gave_up());
}

}  // namespace
}  // namespace dtensor
