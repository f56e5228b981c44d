// Each failure ends every rank, within a bounded time, with one message that names rank and reason.
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
using RankFn = std::function<absl::Status(Communicator&, Device&)>;

constexpr std::chrono::seconds kBound(20);  // generous: sanitizers, busy machines

class FailuresTest : public ::testing::TestWithParam<Device::Kind> {
 protected:
  // What each rank's function returned, and the world.
  struct Outcome {
    std::vector<absl::Status> ranks;
    absl::Status world;
  };

  Outcome Run(int n, const RankFn& fn, double timeout_seconds = 60, int max_delay_us = 0) {
    Outcome outcome{std::vector<absl::Status>(n), {}};
    const auto start = std::chrono::steady_clock::now();
    outcome.world = RunLocalRanks(n,
                                  [&](Communicator& communicator, Device& device) {
                                    return outcome.ranks[communicator.rank()] =
                                               fn(communicator, device);
                                  },
                                  {.device = GetParam(),
                                   .timeout_seconds = timeout_seconds,
                                   .seed = seed_++,
                                   .max_delay_us = max_delay_us});
    EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
    return outcome;
  }

 private:
  uint64_t seed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Devices, FailuresTest,
                         ::testing::Values(Device::Kind::kCpu, Device::Kind::kDeferred),
                         [](const auto& info) { return std::string(ToString(info.param)); });

const std::vector<int>& Pair() {
  static const auto* pair = new std::vector<int>{0, 1};
  return *pair;
}

// All members receive element 0 of `source` from all, as a sum.
absl::Status SumOver(Communicator& communicator, Device& device, const std::vector<int>& group,
                     absl::string_view op, uint64_t digest = 0) {
  DT_ASSIGN_OR_RETURN(Tensor source, FromHost<float>(device, {1.f}, {1}));
  DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF32, {1}));
  std::vector<ReceiveBox> receives(1);
  receives[0] = {{}, {{.length = 1}}};
  receives[0].peers.assign(group.begin(), group.end());
  ExchangePart part{source, result, receives};
  return communicator.Exchange({.axes = "tp", .op = op, .group = group, .digest = digest},
                               absl::MakeSpan(&part, 1));
}

TEST_P(FailuresTest, ARankReturnsEarly) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device&) -> absl::Status {
    DT_RETURN_IF_ERROR(communicator.Barrier("start"));
    if (communicator.rank() == 1) return absl::OkStatus();
    return communicator.Barrier("the end");
  });
  const auto failure = StatusIs(Code::kAborted, AllOf(HasSubstr("rank 1: returned while rank "),
                                                      HasSubstr("the end"), HasSubstr("call 2")));
  EXPECT_THAT(outcome.world, failure);
  EXPECT_EQ(outcome.ranks[0], outcome.world);
  DT_EXPECT_OK(outcome.ranks[1]);
  EXPECT_EQ(outcome.ranks[2], outcome.world);
}

TEST_P(FailuresTest, ARankReturnsAnError) {
  const Outcome outcome = Run(4, [](Communicator& communicator, Device& device) -> absl::Status {
    if (communicator.rank() == 2) return absl::NotFoundError("no such file");
    return SumOver(communicator, device, {0, 1, 2, 3}, "MatMul");
  });
  EXPECT_THAT(outcome.world, StatusIs(Code::kNotFound, AllOf(HasSubstr("rank 2: no such file"),
                                                             HasSubstr("MatMul"))));
  for (int rank : {0, 1, 3}) EXPECT_EQ(outcome.ranks[rank], outcome.world);
}

TEST_P(FailuresTest, ARankFails) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device&) -> absl::Status {
    if (communicator.rank() == 1) {
      const absl::Status first = communicator.Fail(absl::DataLossError("bad block"));
      EXPECT_EQ(communicator.Fail(absl::InternalError("a later one")), first);
      return first;
    }
    const absl::Status status = communicator.Barrier("epoch");
    EXPECT_EQ(communicator.Barrier("every later call"), status);
    EXPECT_EQ(communicator.failure(), status);
    return status;
  });
  EXPECT_EQ(outcome.world, absl::DataLossError("rank 1: bad block"));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

// Nobody waits for anybody: no failure of the world, and a Context would stay usable.
TEST_P(FailuresTest, TheSameRefusalOnAllRanks) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device&) -> absl::Status {
    DT_RETURN_IF_ERROR(communicator.Barrier("start"));
    DT_EXPECT_OK(communicator.failure());
    return absl::InvalidArgumentError("axis \"tp\" does not exist");
  });
  EXPECT_EQ(outcome.world, absl::InvalidArgumentError("rank 0: axis \"tp\" does not exist"));
}

TEST_P(FailuresTest, AHiddenFailureIsReported) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device&) {
    communicator.Fail(absl::InternalError("hidden")).IgnoreError();
    return absl::OkStatus();
  });
  EXPECT_THAT(outcome.world, StatusIs(Code::kInternal, HasSubstr("hidden")));
}

TEST_P(FailuresTest, DigestsDiffer) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device& device) {
    return SumOver(communicator, device, Pair(), "Redistribute", 0xa0 + communicator.rank());
  });
  EXPECT_THAT(outcome.world, StatusIs(Code::kFailedPrecondition,
                                      AllOf(HasSubstr("call 1 of ranks [0, 1]"),
                                            HasSubstr("rank 0 makes"), HasSubstr("digest a0"),
                                            HasSubstr("rank 1 makes"), HasSubstr("digest a1"))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

TEST_P(FailuresTest, OperatorsDiffer) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device& device) -> absl::Status {
    DT_RETURN_IF_ERROR(communicator.Barrier("start"));
    return SumOver(communicator, device, {0, 1, 2}, communicator.rank() == 2 ? "Add" : "MatMul");
  });
  EXPECT_THAT(outcome.world, StatusIs(Code::kFailedPrecondition,
                                      AllOf(HasSubstr("call 2"), HasSubstr("\"MatMul\""),
                                            HasSubstr("rank 2 makes op \"Add\""))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

TEST_P(FailuresTest, ABarrierMeetsAnExchange) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device& device) {
    return communicator.rank() == 0 ? communicator.Barrier("epoch")
                                    : SumOver(communicator, device, Pair(), "MatMul");
  });
  EXPECT_THAT(outcome.world,
              StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("epoch"), HasSubstr("MatMul"))));
}

TEST_P(FailuresTest, ASilentRank) {
  const Outcome outcome = Run(
      3,
      [](Communicator& communicator, Device& device) -> absl::Status {
        // Rank 0 waits for 1, which waits for 2, which is busy: 2 is to blame.
        if (communicator.rank() == 0) return SumOver(communicator, device, Pair(), "MatMul");
        if (communicator.rank() == 1) return SumOver(communicator, device, {1, 2}, "Add");
        while (communicator.failure().ok()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return communicator.Barrier("too late");
      },
      /*timeout_seconds=*/1);
  EXPECT_THAT(outcome.world,
              StatusIs(Code::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 2: silent for 1 s"), HasSubstr("\"Add\""))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

// It has said what it brings, and reads nothing: nobody waits for it longer than the time-out.
TEST_P(FailuresTest, ARankIsSilentOnceItHasBegun) {
  std::atomic<bool> survived = false;
  const auto silent = [&](Communicator& communicator, Device& device) -> absl::Status {
    DT_ASSIGN_OR_RETURN(Tensor source, FromHost<float>(device, {1.f}, {1}));
    DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF32, {1}));
    const ReceiveBox sum{{0, 1}, {{.length = 1}}};
    ExchangePart part{source, result, absl::MakeConstSpan(&sum, 1)};
    const Collective collective{.axes = "tp", .op = "MatMul", .group = Pair()};
    DT_RETURN_IF_ERROR(communicator.Begin(collective, absl::MakeSpan(&part, 1)));
    const auto start = std::chrono::steady_clock::now();
    while (!survived && std::chrono::steady_clock::now() - start < kBound / 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(survived) << "rank 1 waits for rank 0 past the time-out";
    return communicator.Finish(collective);
  };
  const Outcome outcome = Run(
      2,
      [&](Communicator& communicator, Device& device) -> absl::Status {
        if (communicator.rank() == 0) return silent(communicator, device);
        const absl::Status status = SumOver(communicator, device, Pair(), "MatMul");
        survived = true;
        return status;
      },
      /*timeout_seconds=*/0.2);
  EXPECT_THAT(outcome.world,
              StatusIs(Code::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 0: silent for 0.2 s"), HasSubstr("\"MatMul\""))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

TEST_P(FailuresTest, TwoGroupsInOppositeOrder) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device& device) -> absl::Status {
    const std::vector<int> all = {0, 1, 2};
    const bool first = communicator.rank() == 0;
    if (communicator.rank() < 2) {
      DT_RETURN_IF_ERROR(
          SumOver(communicator, device, first ? Pair() : all, first ? "Row" : "Whole"));
      return SumOver(communicator, device, first ? all : Pair(), first ? "Whole" : "Row");
    }
    return SumOver(communicator, device, all, "Whole");
  });
  EXPECT_THAT(outcome.world,
              StatusIs(Code::kFailedPrecondition,
                       AllOf(HasSubstr("cycle"),
                             HasSubstr("op \"Row\" (call 1 of ranks [0, 1]) for rank 1"),
                             HasSubstr("op \"Whole\" (call 1 of ranks [0, 1, 2]) for rank 0"))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

// A slow rank is no cycle and no failure.
TEST_P(FailuresTest, PatienceWithASlowRank) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device&) -> absl::Status {
    if (communicator.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    return communicator.Barrier("at last");
  });
  DT_EXPECT_OK(outcome.world);
}

TEST_P(FailuresTest, AKernelFails) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device& device) -> absl::Status {
    if (communicator.rank() == 1) {
      device.Launch("Gather", [] { return absl::OutOfRangeError("index 7 of 5"); }).IgnoreError();
    }
    for (int round = 0; round < 1000000; ++round) {
      DT_RETURN_IF_ERROR(SumOver(communicator, device, {0, 1, 2}, "Sum"));
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(outcome.world, absl::OutOfRangeError("rank 1: Gather: index 7 of 5"));
}

// A kernel that fails after the last call, when nobody asks any more.
TEST_P(FailuresTest, AKernelFailsLast) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device& device) -> absl::Status {
    if (communicator.rank() == 1) {
      const auto late = [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return absl::OutOfRangeError("index 7 of 5");
      };
      device.Launch("Gather", late).IgnoreError();
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(outcome.world, absl::OutOfRangeError("rank 1: Gather: index 7 of 5"));
}

// A rank frees its source as soon as the call fails, while a peer may be reading it, or about to:
// the delays lie between a call and its post. ASan watches.
absl::Status ReadWhileTheWorldFails(Communicator& communicator, Device& device,
                                    std::chrono::microseconds until_failure) {
  constexpr int64_t kElements = 1 << 20;
  const std::vector<int> group = {0, 1, 2};
  std::vector<ReceiveBox> receives = {{{0, 1}, {{.length = kElements}}}};
  if (communicator.rank() == 2) receives.clear();
  DT_ASSIGN_OR_RETURN(Tensor source, Tensor::Empty(device, DType::kF32, {kElements}));
  DT_RETURN_IF_ERROR(device.FillBytes(source.raw(), 0, source.bytes()));
  DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF32, {kElements}));
  ExchangePart part{source, result, receives};
  const Collective collective{.axes = "tp", .op = "Sum", .group = group};
  DT_RETURN_IF_ERROR(communicator.Exchange(collective, absl::MakeSpan(&part, 1)));
  if (communicator.rank() < 2) return communicator.Exchange(collective, absl::MakeSpan(&part, 1));
  // Rank 2 takes part and reads nothing.
  std::thread saboteur([&] {
    std::this_thread::sleep_for(until_failure);
    communicator.Fail(absl::InternalError("on purpose")).IgnoreError();
  });
  absl::Status status = communicator.Exchange(collective, absl::MakeSpan(&part, 1));
  saboteur.join();
  return status;
}

TEST_P(FailuresTest, NobodyReadsWhatAFailedRankFreed) {
  for (int round = 0; round < 40; ++round) {
    const Outcome outcome = Run(
        3,
        [round](Communicator& communicator, Device& device) {
          return ReadWhileTheWorldFails(communicator, device,
                                        std::chrono::microseconds(50 * round));
        },
        /*timeout_seconds=*/60, /*max_delay_us=*/round % 2 == 0 ? 0 : 2000);
    EXPECT_EQ(outcome.world, absl::InternalError("rank 2: on purpose"));
  }
}

// --- Refusals: before any peer hears of the call, and with nothing broken.

absl::Status Refused(Communicator& communicator, Device& device, const std::vector<int>& group,
                     const ReceiveBox& box, DType dtype = DType::kF32, ReduceOp op = ReduceOp::kSum,
                     double scale = 1) {
  DT_ASSIGN_OR_RETURN(Tensor source, Tensor::Empty(device, dtype, {4}));
  DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, dtype, {4}));
  ExchangePart part{source, result, absl::MakeConstSpan(&box, 1), op, scale};
  return communicator.Exchange({.axes = "tp", .op = "MatMul", .group = group},
                               absl::MakeSpan(&part, 1));
}

TEST_P(FailuresTest, Refusals) {
  const Outcome outcome = Run(3, [](Communicator& communicator, Device& device) -> absl::Status {
    const int me = communicator.rank();
    const std::vector<int> all = {0, 1, 2};
    const ReceiveBox good{{me}, {{.length = 4}}};
    const auto expect = [&](const absl::Status& status, const char* what) {
      EXPECT_THAT(status, StatusIs(Code::kInvalidArgument,
                                   AllOf(HasSubstr("MatMul over axis \"tp\": "), HasSubstr(what))));
    };
    expect(Refused(communicator, device, {}, good), "[]");
    expect(Refused(communicator, device, {2, 1, 0}, good), "ascending");
    expect(Refused(communicator, device, {0, 1, 2, 3}, good), "of the 3 there are");
    expect(Refused(communicator, device, {(me + 1) % 3}, good), "among them");
    expect(Refused(communicator, device, {me}, {{(me + 1) % 3}, {{.length = 4}}}),
           "not in the group");
    expect(Refused(communicator, device, all, {{}, {{.length = 4}}}), "from no rank");
    expect(Refused(communicator, device, all, {{me}, {{.dst = 1, .length = 4}}}), "outside");
    expect(Refused(communicator, device, all, {{me}, {{.dst = -1, .length = 4}}}), "outside");
    expect(Refused(communicator, device, all, {{me}, {{.src = 1, .length = 4}}}), "outside");
    expect(Refused(communicator, device, all, {{me}, {{.length = 2, .count = 2, .dst_stride = 3}}}),
           "outside");
    expect(Refused(communicator, device, all, {{me}, {{.length = 2}, {.length = 2}}}), "outside");
    const ReceiveBox sum{{0, 1}, {{.length = 4}}};
    expect(Refused(communicator, device, all, sum, DType::kI32, ReduceOp::kAvg), "no avg of i32");
    expect(Refused(communicator, device, all, sum, DType::kBool), "no sum of bool");
    expect(Refused(communicator, device, all, sum, DType::kI64, ReduceOp::kSum, 0.5),
           "only floats");
    EXPECT_TRUE(communicator.traffic().empty());
    return SumOver(communicator, device, all, "still usable");
  });
  DT_EXPECT_OK(outcome.world);
}

// What only the reader can see fails the world, and names the owner of the tensor.
TEST_P(FailuresTest, ABoxOutsideOfAPeersTensor) {
  const Outcome outcome = Run(2, [](Communicator& communicator, Device& device) -> absl::Status {
    const int64_t size = communicator.rank() == 0 ? 4 : 3;
    DT_ASSIGN_OR_RETURN(Tensor source, Tensor::Empty(device, DType::kF32, {size}));
    DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF32, {4}));
    const std::vector<ReceiveBox> receives = {{{1 - communicator.rank()}, {{.length = 4}}}};
    ExchangePart part{source, result, receives};
    return communicator.Exchange({.axes = "tp", .op = "MatMul", .group = Pair()},
                                 absl::MakeSpan(&part, 1));
  });
  EXPECT_THAT(outcome.world,
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("rank 0: MatMul over axis \"tp\""),
                                                     HasSubstr("[3] of rank 1"))));
  for (const absl::Status& status : outcome.ranks) EXPECT_EQ(status, outcome.world);
}

}  // namespace
}  // namespace dtensor
