#include "dtensor/runtime/comm/simulated/simulated_communicator.h"

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// A million elements of 4 bytes take 4 ms on tp, and 1 ms on any other axis, beside a millisecond
// or none for the message.
MachineRates Rates() {
  MachineRates rates;
  rates.links["tp"] = {1000, 1};
  rates.every_other_link = {0, 4};
  rates.copy_gb_per_second = 1;
  rates.reduce_gb_per_second = 4;
  return rates;
}

class SimulatedCommunicatorTest : public testing::Test {
 protected:
  // What rank 0 receives over `axes`: a million elements from each of the peers, each apart, or all
  // of them added.
  struct Call {
    Call(Device& device, absl::string_view axes, std::vector<int> group, std::vector<int> peers,
         bool reduces = false)
        : group(std::move(group)) {
      const int64_t n = 1'000'000;
      source = Tensor::Empty(device, DType::kF32, {n}).value();
      const int64_t boxes = reduces ? 1 : static_cast<int64_t>(peers.size());
      for (int64_t i = 0; i < boxes; ++i) {
        ReceiveBox& box = receives.emplace_back();
        box.dims.push_back({.src = 0, .dst = i * n, .length = n});
        if (reduces) {
          box.peers.assign(peers.begin(), peers.end());
        } else {
          box.peers.push_back(peers[i]);
        }
      }
      result = Tensor::Empty(device, DType::kF32, {boxes * n}).value();
      part.receives = receives;
      collective.axes = axes;
      collective.op = "test";
      collective.group = this->group;
    }
    Call(const Call&) = delete;

    std::vector<int> group;
    std::vector<ReceiveBox> receives;
    Tensor source, result;
    ExchangePart part{source, result, {}};
    Collective collective;
  };

  void Begin(const Call& call) {
    DT_ASSERT_OK(communicator_->Begin(call.collective, absl::MakeConstSpan(&call.part, 1)));
  }
  void Finish(const Call& call) { DT_ASSERT_OK(communicator_->Finish(call.collective)); }
  // In milliseconds.
  void Compute(double ms) { clock_.Compute({.bytes = ms * 1e6}); }
  void ExpectTime(double compute, double communication, double exposed) {
    EXPECT_NEAR(clock_.time().compute_seconds * 1e3, compute, 1e-9);
    EXPECT_NEAR(clock_.time().communication_seconds * 1e3, communication, 1e-9);
    EXPECT_NEAR(clock_.time().exposed_seconds * 1e3, exposed, 1e-9);
  }

  const std::unique_ptr<Device> device_ = MakeMetaDevice(Rates());
  SimulatedClock& clock_ = *ClockOf(*device_);
  const std::unique_ptr<Communicator> communicator_ = MakeSimulatedCommunicator(0, 4, &clock_);
};

TEST_F(SimulatedCommunicatorTest, AnExchangeIsExposedWhole) {
  const Call call(*device_, "tp", {0, 1}, {1});
  Begin(call);
  Finish(call);
  ExpectTime(0, 5, 5);
}

TEST_F(SimulatedCommunicatorTest, CopiesAndReductionsOfItsOwnCount) {
  const Call gather(*device_, "dp", {0, 1}, {0, 1});  // 8 MB to copy, 4 MB to fetch
  Begin(gather);
  Finish(gather);
  ExpectTime(0, 9, 9);
  const Call reduce(*device_, "dp", {0, 1, 2}, {0, 1, 2}, /*reduces=*/true);
  Begin(reduce);  // 8 MB to fetch, 12 MB of terms
  Finish(reduce);
  ExpectTime(0, 14, 14);
}

TEST_F(SimulatedCommunicatorTest, WhatBeganEarlyHidesBehindKernels) {
  const Call call(*device_, "tp", {0, 1}, {1});
  Begin(call);
  Compute(3);
  Finish(call);
  ExpectTime(3, 5, 2);
  Begin(call);
  Compute(7);
  Finish(call);
  ExpectTime(10, 10, 2);
}

TEST_F(SimulatedCommunicatorTest, AxesHaveLinksOfTheirOwn) {
  const Call tp(*device_, "tp", {0, 1}, {1}), dp(*device_, "dp", {0, 2}, {2});
  Begin(tp);
  Begin(dp);
  Finish(dp);
  ExpectTime(0, 6, 1);
  Finish(tp);
  ExpectTime(0, 6, 5);
}

// The one of both axes waits for the one of tp, and goes at its speed.
TEST_F(SimulatedCommunicatorTest, AnExchangeOverTwoAxesTakesBothLinks) {
  const Call tp(*device_, "tp", {0, 1}, {1}), both(*device_, "dp,tp", {0, 1, 2, 3}, {3});
  Begin(tp);
  Begin(both);
  Finish(both);
  ExpectTime(0, 10, 10);
}

TEST_F(SimulatedCommunicatorTest, AGroupHasOneExchangeOnItsWay) {
  const Call first(*device_, "tp", {0, 1}, {1}), second(*device_, "tp", {0, 1}, {1});
  const Call third(*device_, "tp", {0, 1}, {1});
  Begin(first);
  Compute(1);
  Begin(second);  // waits for the first
  ExpectTime(1, 10, 4);
  Begin(third);  // and this for the second
  ExpectTime(1, 15, 9);
  Finish(first);
  Finish(second);
  ExpectTime(1, 15, 9);
  Finish(third);
  ExpectTime(1, 15, 14);
}

TEST_F(SimulatedCommunicatorTest, NobodyWaitsForWhatIsDropped) {
  const Call dropped(*device_, "tp", {0, 1}, {1}), next(*device_, "tp", {0, 1}, {1});
  Begin(dropped);
  communicator_->Drop(dropped.collective, nullptr);
  Finish(dropped);
  ExpectTime(0, 5, 0);
  Begin(next);  // its link is busy
  Finish(next);
  ExpectTime(0, 10, 10);
}

TEST_F(SimulatedCommunicatorTest, CountsWithoutAClock) {
  const std::unique_ptr<Communicator> plain = MakeSimulatedCommunicator(0, 4);
  const Call call(*device_, "tp", {0, 1}, {1});
  DT_ASSERT_OK(plain->Exchange(call.collective, absl::MakeConstSpan(&call.part, 1)));
  Begin(call);
  Finish(call);
  EXPECT_EQ(plain->traffic(), communicator_->traffic());
  EXPECT_EQ(plain->traffic().begin()->second, (CommunicatorTraffic{1, 1, 4'000'000}));
}

}  // namespace
}  // namespace dtensor
