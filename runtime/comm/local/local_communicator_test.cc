#include "dtensor/runtime/comm/local/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/comm/testing/random_exchanges.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using box_testing::RandomExchanges;
using testing::HasSubstr;

class RandomExchangeTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RandomExchangeTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(RandomExchangeTest, OnCpu) {
  const uint64_t seed = TestSeed();
  DT_EXPECT_OK(RunLocalRanks(GetParam(), [seed](Communicator& communicator, Device& device) {
    return RandomExchanges(communicator, device, seed, 60);
  }));
}

TEST_P(RandomExchangeTest, OnADeferredDeviceWithDelays) {
  const uint64_t seed = TestSeed();
  DT_EXPECT_OK(
      RunLocalRanks(GetParam(),
                    [seed](Communicator& communicator, Device& device) {
                      return RandomExchanges(communicator, device, seed, 20);
                    },
                    {.device = Device::Kind::kDeferred, .seed = seed, .max_delay_us = 200}));
}

// --- What the collectives are.

std::vector<int> Everyone(const Communicator& communicator) {
  std::vector<int> group(communicator.size());
  std::iota(group.begin(), group.end(), 0);
  return group;
}

// Rank r holds r + 1 elements of value r; all receive all.
absl::Status UnevenAllGather(Communicator& communicator, Device& device) {
  const int n = communicator.size(), rank = communicator.rank();
  DT_ASSIGN_OR_RETURN(Tensor src,
                      FromHost<int32_t>(device, std::vector<int32_t>(rank + 1, rank), {rank + 1}));
  DT_ASSIGN_OR_RETURN(Tensor dst, Tensor::Empty(device, DType::kI32, {n * (n + 1) / 2}));
  std::vector<ReceiveBox> receives;
  std::vector<int32_t> expected;
  for (int peer = 0; peer < n; ++peer) {
    receives.push_back({{peer}, {{.dst = peer * (peer + 1) / 2, .length = peer + 1}}});
    expected.insert(expected.end(), peer + 1, peer);
  }
  ExchangePart part{src, dst, receives};
  DT_RETURN_IF_ERROR(communicator.Exchange({.kind = CollectiveKind::kAllGather,
                                            .axes = "tp",
                                            .op = "UnevenAllGather",
                                            .group = Everyone(communicator)},
                                           absl::MakeSpan(&part, 1)));
  DT_ASSIGN_OR_RETURN(std::vector<int32_t> found, ToHost<int32_t>(dst));
  EXPECT_EQ(found, expected);
  return absl::OkStatus();
}

TEST(LocalCommunicatorTest, CountsWhatComesFromOthers) {
  DT_EXPECT_OK(RunLocalRanks(3, [](Communicator& communicator, Device& device) -> absl::Status {
    DT_RETURN_IF_ERROR(UnevenAllGather(communicator, device));
    DT_RETURN_IF_ERROR(UnevenAllGather(communicator, device));
    const CommunicatorTraffic expected{
        .calls = 2, .messages = 4, .bytes = 2 * 4 * (6 - communicator.rank() - 1)};
    EXPECT_EQ(communicator.traffic(),
              (TrafficTable{{{"tp", CollectiveKind::kAllGather}, expected}}));
    communicator.ResetTraffic();
    EXPECT_TRUE(communicator.traffic().empty());
    return absl::OkStatus();
  }));
}

TEST(LocalCommunicatorTest, TheSecondHalfOfAnAllReduceIsNoCall) {
  DT_EXPECT_OK(RunLocalRanks(2, [](Communicator& communicator, Device&) -> absl::Status {
    const std::vector<int> group = {0, 1};
    for (bool counts : {true, false}) {
      DT_RETURN_IF_ERROR(communicator.Exchange({.kind = CollectiveKind::kAllReduce,
                                                .axes = "dp",
                                                .op = "AllReduce",
                                                .group = group,
                                                .counts_as_call = counts},
                                               {}));
    }
    EXPECT_EQ(communicator.traffic().at({"dp", CollectiveKind::kAllReduce}),
              (CommunicatorTraffic{.calls = 1}));
    return absl::OkStatus();
  }));
}

// All groups of 8 ranks, twice over: more than a rank remembers, in numbers that go on.
TEST(LocalCommunicatorTest, ForgetsGroupsAndFindsThemAgain) {
  constexpr int kRanks = 8;
  World world(kRanks, /*timeout_seconds=*/60);
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<LocalCommunicator>> communicators;
  for (int rank = 0; rank < kRanks; ++rank) {
    devices.push_back(MakeCpuDevice());
    communicators.push_back(std::make_unique<LocalCommunicator>(world, rank, *devices[rank]));
  }
  const auto run = [&](int rank) -> absl::Status {
    Device& device = *devices[rank];
    for (int i = 0; i < 2 << kRanks; ++i) {
      std::vector<int> group;
      for (int r = 0; r < kRanks; ++r) {
        if (i >> r & 1) group.push_back(r);
      }
      if (std::find(group.begin(), group.end(), rank) == group.end()) continue;
      DT_ASSIGN_OR_RETURN(Tensor source, FromHost<float>(device, {float(rank + i)}, {1}));
      DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF32, {1}));
      std::vector<ReceiveBox> receives(1);
      receives[0] = {{}, {{.length = 1}}};
      receives[0].peers.assign(group.begin(), group.end());
      const ExchangePart part{source, result, receives};
      DT_RETURN_IF_ERROR(communicators[rank]->Exchange(
          {.op = "Sum", .group = group, .digest = static_cast<uint64_t>(i)}, {&part, 1}));
      DT_ASSIGN_OR_RETURN(const std::vector<float> sum, ToHost<float>(result));
      float want = 0;
      for (int r : group) want += r + i;
      EXPECT_EQ(sum[0], want);
    }
    return absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { EXPECT_THAT(run(rank), IsOk()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(world.num_groups(), 64);
  EXPECT_LE(world.num_groups(), 160);  // of 255: many of a rank's last 64 are those of its peers
  communicators.clear();
  EXPECT_EQ(world.num_groups(), 0);
}

TEST(LocalCommunicatorTest, AGroupOfOneCountsNothing) {
  DT_EXPECT_OK(RunLocalRanks(2, [](Communicator& communicator, Device&) -> absl::Status {
    const std::vector<int> group = {communicator.rank()};
    DT_RETURN_IF_ERROR(communicator.Exchange({.axes = "dp", .op = "Copy", .group = group}, {}));
    EXPECT_TRUE(communicator.traffic().empty());
    return absl::OkStatus();
  }));
}

// A sum and a gather of its halves inside one result: G reads what peers wrote in X.
TEST(LocalCommunicatorTest, GathersInsideTheResult) {
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [](Communicator& communicator, Device& device) -> absl::Status {
        const int64_t me = communicator.rank(), peer = 1 - me;
        const std::vector<int> group = {0, 1};
        for (int round = 0; round < 50; ++round) {
          const std::vector<float> mine = {1.f + me, 10.f, 100.f * me, static_cast<float>(round)};
          DT_ASSIGN_OR_RETURN(Tensor src, FromHost<float>(device, mine, {4}));
          DT_ASSIGN_OR_RETURN(Tensor dst, Tensor::Empty(device, DType::kF32, {4}));
          const std::vector<ReceiveBox> x = {
              {{0, 1}, {{.src = 2 * me, .dst = 2 * me, .length = 2}}}};
          const std::vector<ReceiveBox> g = {
              {{static_cast<int>(peer)}, {{.src = 2 * peer, .dst = 2 * peer, .length = 2}}},
              {{static_cast<int>(me)}, {{.src = 2 * me, .dst = 2 * me, .length = 2}}}};
          ExchangePart reduce{src, dst, x}, gather{dst, dst, g};
          const Collective collective{.axes = "tp", .op = "AllReduce", .group = group};
          DT_RETURN_IF_ERROR(communicator.Exchange(collective, absl::MakeSpan(&reduce, 1)));
          DT_RETURN_IF_ERROR(communicator.Exchange(collective, absl::MakeSpan(&gather, 1)));
          DT_ASSIGN_OR_RETURN(std::vector<float> found, ToHost<float>(dst));
          EXPECT_EQ(found, (std::vector<float>{3, 20, 100, 2.f * round}));
        }
        return absl::OkStatus();
      },
      {.device = Device::Kind::kDeferred, .max_delay_us = 100}));
}

// Two groups of each rank, met in one common order, and barriers between.
TEST(LocalCommunicatorTest, GroupsInterleave) {
  DT_EXPECT_OK(RunLocalRanks(4, [](Communicator& communicator, Device&) -> absl::Status {
    const int rank = communicator.rank();
    const std::vector<int> row = {rank / 2 * 2, rank / 2 * 2 + 1},
                           column = {rank % 2, rank % 2 + 2};
    for (int round = 0; round < 300; ++round) {
      DT_RETURN_IF_ERROR(communicator.Exchange({.axes = "row", .op = "Row", .group = row}, {}));
      DT_RETURN_IF_ERROR(
          communicator.Exchange({.axes = "column", .op = "Column", .group = column}, {}));
      if (round % 50 == 0) DT_RETURN_IF_ERROR(communicator.Barrier("fifty rounds"));
    }
    return absl::OkStatus();
  }));
}

// --- The same bits, whatever the order of events.

absl::Status Sum(Communicator& communicator, Device& device,
                 std::vector<std::vector<float>>& sums) {
  const int n = communicator.size(), rank = communicator.rank();
  TestRandom random(rank);
  std::vector<float> values(1000), total;
  for (float& value : values) value = static_cast<float>(random.In(-1000000, 1000000)) / 7;
  std::vector<ReceiveBox> receives(1);
  receives[0] = {{}, {{.length = 1000}}};
  for (int peer = 0; peer < n; ++peer) receives[0].peers.push_back(peer);
  for (int round = 0; round < 10; ++round) {
    DT_ASSIGN_OR_RETURN(Tensor src, FromHost<float>(device, values, {1000}));
    DT_ASSIGN_OR_RETURN(Tensor dst, Tensor::Empty(device, DType::kF32, {1000}));
    ExchangePart part{src, dst, receives, ReduceOp::kSum, 1.0 / n};
    DT_RETURN_IF_ERROR(communicator.Exchange(
        {.axes = "dp", .op = "Sum", .group = Everyone(communicator)}, absl::MakeSpan(&part, 1)));
    DT_ASSIGN_OR_RETURN(values, ToHost<float>(dst));
    values[rank] += 1;
    total.insert(total.end(), values.begin(), values.end());
  }
  sums[rank] = total;
  return absl::OkStatus();
}

TEST(DeterminismTest, DelaysChangeNoBit) {
  std::vector<std::vector<float>> first(5), again(5);
  const auto run = [](std::vector<std::vector<float>>& sums, const RunOptions& options) {
    return RunLocalRanks(
        5,
        [&](Communicator& communicator, Device& device) { return Sum(communicator, device, sums); },
        options);
  };
  DT_ASSERT_OK(run(first, {}));
  for (uint64_t seed : {1, 2, 3}) {
    for (Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
      DT_ASSERT_OK(run(again, {.device = kind, .seed = seed, .max_delay_us = 300}));
      EXPECT_EQ(first, again);
    }
  }
}

// --- Worlds.

TEST(RunLocalRanksTest, NeedsARankAndAHostDevice) {
  const auto nothing = [](Communicator&, Device&) { return absl::OkStatus(); };
  EXPECT_THAT(RunLocalRanks(0, nothing), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(RunLocalRanks(2, nothing, {.device = Device::Kind::kMeta}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("meta")));
}

TEST(RunLocalRanksTest, TwoWorldsSideBySide) {
  DT_EXPECT_OK(RunLocalRanks(2, [](Communicator& outer, Device&) -> absl::Status {
    DT_RETURN_IF_ERROR(RunLocalRanks(3, UnevenAllGather));
    return outer.Barrier("after the inner worlds");
  }));
}

TEST(SimulatedCommunicatorTest, CountsAsALocalRankDoes) {
  TrafficTable local;
  DT_ASSERT_OK(RunLocalRanks(3, [&](Communicator& communicator, Device& device) -> absl::Status {
    DT_RETURN_IF_ERROR(UnevenAllGather(communicator, device));
    if (communicator.rank() == 1) local = communicator.traffic();
    return absl::OkStatus();
  }));
  const auto communicator = MakeSimulatedCommunicator(1, 3);
  const auto device = MakeMetaDevice();
  const Tensor src = *Tensor::Empty(*device, DType::kI32, {2});
  const Tensor dst = *Tensor::Empty(*device, DType::kI32, {6});
  const std::vector<ReceiveBox> receives = {
      {{0}, {{.length = 1}}}, {{1}, {{.dst = 1, .length = 2}}}, {{2}, {{.dst = 3, .length = 3}}}};
  ExchangePart part{src, dst, receives};
  DT_EXPECT_OK(communicator->Exchange({.kind = CollectiveKind::kAllGather,
                                       .axes = "tp",
                                       .op = "UnevenAllGather",
                                       .group = Everyone(*communicator)},
                                      absl::MakeSpan(&part, 1)));
  EXPECT_EQ(communicator->traffic(), local);
  DT_EXPECT_OK(communicator->Barrier("nobody else is there"));
}

}  // namespace
}  // namespace dtensor
