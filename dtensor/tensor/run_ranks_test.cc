// What a program sees if it misuses a world, loses a rank, or keeps tensors beyond the world's end.
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

const DeviceMesh& Pair() {
  static const auto* mesh = new DeviceMesh(*DeviceMesh::Parse("dp=2"));
  return *mesh;
}

absl::StatusOr<DistributedTensor> Twos(Context& context, std::vector<int64_t> shape) {
  return Full(context, Pair(), {Shard(0)}, shape, DType::kF32, 2);
}

TEST(RunRanks, NeedsAFunction) {
  EXPECT_THAT(RunRanks(2, nullptr), StatusIs(Code::kInvalidArgument, HasSubstr("function")));
  EXPECT_THAT(Simulate(0, 2, nullptr), StatusIs(Code::kInvalidArgument, HasSubstr("function")));
}

TEST(RunRanks, AnExceptionIsTheErrorOfItsRank) {
  const auto raise = [](Context& context) -> absl::Status {
    if (context.rank() == 1) throw std::runtime_error("no such weather");
    return ToGlobal<float>(*Twos(context, {4})).status();
  };
  EXPECT_THAT(RunRanks(2, raise),
              StatusIs(Code::kInternal, AllOf(HasSubstr("rank 1: "), HasSubstr("no such weather"),
                                              HasSubstr("Redistribute"))));
  EXPECT_THAT(Simulate(1, 2, raise), StatusIs(Code::kInternal, HasSubstr("no such weather")));
}

class Asynchronous : public ::testing::TestWithParam<Device::Kind> {
 protected:
  // Rank 0 begins to gather, while rank 1 does `fault`; what it then gets of the result.
  void Survive(const std::function<absl::Status(Context&)>& fault, double timeout_seconds,
               const ::testing::Matcher<absl::Status>& expected) {
    const absl::Status world = RunRanks(
        2,
        [&](Context& context) -> absl::Status {
          if (context.rank() == 1) return fault(context);
          DT_ASSIGN_OR_RETURN(const auto x, Twos(context, {1}));
          DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Replicate()}, {.async = true}));
          const absl::Status first = ToGlobal<float>(y).status();
          EXPECT_THAT(first, expected);
          EXPECT_EQ(ToGlobal<float>(y).status(), first);
          EXPECT_EQ(Item(y).status(), first);
          // There to be looked at, though its elements never came.
          EXPECT_THAT(y.local().shape(), ElementsAre(1));
          EXPECT_EQ(&y.local().device(), &context.device());
          return first;
        },
        {.device = GetParam(), .timeout_seconds = timeout_seconds});
    EXPECT_THAT(world, expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Asynchronous,
                         ::testing::Values(Device::Kind::kCpu, Device::Kind::kDeferred),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST_P(Asynchronous, ASurvivorGetsTheErrorOfAPeer) {
  Survive([](Context&) { return absl::NotFoundError("no such file"); }, 60,
          StatusIs(Code::kNotFound, HasSubstr("rank 1: no such file")));
}

TEST_P(Asynchronous, ASurvivorGetsTheSilenceOfAPeer) {
  Survive(
      [](Context& context) {
        while (context.communicator().failure().ok()) std::this_thread::yield();
        return absl::OkStatus();
      },
      0.2, StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1: silent")));
}

// --- Memory that runs out on one rank: a failure, and no end of the process.

// Sanitizers end the process where there is no memory, and map more than any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// One element on the device, and more of it than the host has memory for.
TEST(Exhaustion, OfToGlobal) {
  constexpr int64_t kSize = int64_t{1} << 56;
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const Tensor one,
                                             FromHost<bool>(context.device(), {true}, {1}));
                         DT_ASSIGN_OR_RETURN(const auto x,
                                             FromLocal(context, Layout::Replicated(Pair(), 1),
                                                       {kSize}, one.BroadcastTo({kSize})));
                         const absl::Status status = ToGlobal<bool>(x).status();
                         EXPECT_EQ(context.communicator().failure(), status);
                         return status;
                       }),
              StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("rank "), HasSubstr("ToGlobal"),
                                                       HasSubstr("[72057594037927936] bool"))));
}

TEST(Exhaustion, OfDistribute) {
  constexpr int64_t kSize = 256 << 20;
  const auto values = std::make_unique<bool[]>(kSize);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(statm >> pages);
  rlimit before, tight;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  tight = before;
  tight.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (128 << 20);
  const absl::Status status = RunRanks(1, [&](Context& context) -> absl::Status {
    EXPECT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    const absl::Status distributed =
        Distribute<bool>(context, Layout::Replicated(DeviceMesh(), 1), {kSize},
                         absl::MakeConstSpan(values.get(), kSize))
            .status();
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    return distributed;
  });
  EXPECT_THAT(status, StatusIs(Code::kResourceExhausted,
                               AllOf(HasSubstr("Distribute"), HasSubstr("[268435456] bool"))));
}
#endif

// --- Tensors that are taken out of a world.

class Outliving : public ::testing::TestWithParam<Device::Kind> {};
INSTANTIATE_TEST_SUITE_P(Devices, Outliving,
                         ::testing::Values(Device::Kind::kCpu, Device::Kind::kDeferred),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST_P(Outliving, TensorsCanBeLookedAt) {
  std::vector<DistributedTensor> kept(2);
  DT_ASSERT_OK(RunRanks(2,
                        [&](Context& context) -> absl::Status {
                          DT_ASSIGN_OR_RETURN(kept[context.rank()], Twos(context, {3}));
                          DT_RETURN_IF_ERROR(kept[context.rank()].set_requires_grad(true));
                          return ToGlobal<float>(kept[context.rank()]).status();
                        },
                        {.device = GetParam()}));
  EXPECT_EQ(kept[1].ToString(), "[3] f32 on [\"dp\"=2] as [dp]");
  EXPECT_THAT(ToHost<float>(kept[0].local()), IsOkAndHolds(std::vector<float>{2, 2}));
  EXPECT_THAT(ToHost<float>(kept[1].local()), IsOkAndHolds(std::vector<float>{2}));
  EXPECT_THAT(ToGlobal<float>(kept[0]),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the world is over")));
}

// What is on its way when the program ends has come afterwards, whoever keeps it.
TEST_P(Outliving, SoDoesAResultThatIsOnItsWay) {
  std::vector<DistributedTensor> all(2), kept(2), taken(2);
  DT_ASSERT_OK(RunRanks(
      2,
      [&](Context& context) -> absl::Status {
        const int rank = context.rank();
        DT_ASSIGN_OR_RETURN(const auto x, Twos(context, {2}));
        DT_ASSIGN_OR_RETURN(all[rank], x.Redistribute({Replicate()}, {.async = true}));
        DT_ASSIGN_OR_RETURN(const auto y, Twos(context, {4}));
        DT_ASSIGN_OR_RETURN(const auto once, y.Redistribute({Replicate()}, {.async = true}));
        if (rank == 1) kept[rank] = once;
        DT_ASSIGN_OR_RETURN(const auto z, Twos(context, {6}));
        const RedistributionOptions in_place = {.in_place = true};
        DT_ASSIGN_OR_RETURN(taken[rank],
                            z.Redistribute({Replicate()}, {.plan = in_place, .async = true}));
        return absl::OkStatus();
      },
      {.device = GetParam(), .timeout_seconds = 10}));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ToHost<float>(all[rank].local()), IsOkAndHolds(std::vector<float>(2, 2)));
    EXPECT_THAT(ToHost<float>(taken[rank].local()), IsOkAndHolds(std::vector<float>(6, 2)));
  }
  EXPECT_THAT(ToHost<float>(kept[1].local()), IsOkAndHolds(std::vector<float>(4, 2)));
  EXPECT_THAT(ToGlobal<float>(kept[1]), IsOkAndHolds(std::vector<float>(4, 2)));
}

TEST_P(Outliving, SoDoesAResultThatNeverCame) {
  DistributedTensor kept;
  EXPECT_THAT(RunRanks(2,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const auto x, Twos(context, {2}));
                         if (context.rank() == 0) return absl::AbortedError("had enough");
                         DT_ASSIGN_OR_RETURN(kept, x.Redistribute({Replicate()}, {.async = true}));
                         return absl::OkStatus();
                       },
                       {.device = GetParam(), .timeout_seconds = 10}),
              StatusIs(Code::kAborted, HasSubstr("had enough")));
  EXPECT_FALSE(ToGlobal<float>(kept).ok());
  EXPECT_THAT(kept.local().shape(), ElementsAre(2));
}

// Gathers a tensor while it makes another one.
absl::Status Program(Context& context) {
  DT_ASSIGN_OR_RETURN(const auto x, Twos(context, {1000}));
  DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute({Replicate()}, {.async = true}));
  DT_RETURN_IF_ERROR(Twos(context, {100'000}).status());
  whole.local();  // waits
  return absl::OkStatus();
}

TEST(SimulationTest, TimeFollowsFromTheCostAndNothingElseDoes) {
  struct Run {
    SimulatedTime time;
    WorkCounts work;
    TrafficTable traffic;
    int64_t peak = 0;
  };
  const auto run = [](const char* table) {
    Run run;
    const SimulationOptions options = {.cost = CostModel::Parse(table).value()};
    EXPECT_TRUE(Simulate(
                    1, 2,
                    [&](Context& context) -> absl::Status {
                      DT_RETURN_IF_ERROR(Program(context));
                      run.time = context.simulated_clock()->time();
                      run.work = context.simulated_clock()->work();
                      run.traffic = context.communicator().traffic();
                      run.peak = context.device().memory().peak_bytes;
                      return absl::OkStatus();
                    },
                    options)
                    .ok());
    return run;
  };
  const Run usual = run(""), slow = run("link * 1e6 0.001\nmemory 0.001\ncall 50");
  EXPECT_GT(slow.time.total(), 100 * usual.time.total());
  EXPECT_GT(slow.time.compute_seconds, usual.time.compute_seconds);
  // 2000 bytes behind 200000, and the other way round.
  EXPECT_EQ(usual.time.exposed_seconds, 0);
  EXPECT_GT(usual.time.communication_seconds, 0);
  EXPECT_GT(slow.time.exposed_seconds, 0);
  EXPECT_LT(slow.time.exposed_seconds, slow.time.communication_seconds);
  EXPECT_EQ(slow.work, usual.work);
  EXPECT_EQ(slow.traffic, usual.traffic);
  EXPECT_EQ(slow.peak, usual.peak);
  EXPECT_FALSE(usual.traffic.empty());
  EXPECT_GT(usual.work.bytes, 0);
}

TEST(SimulationTest, ARealRunHasNoSimulatedClock) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) {
    return context.simulated_clock() == nullptr ? absl::OkStatus()
                                                : absl::InternalError("it has one");
  }));
}

TEST(Outliving, OfASimulation) {
  DistributedTensor kept;
  DT_ASSERT_OK(Simulate(0, 2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(kept, Twos(context, {3}));
    return absl::OkStatus();
  }));
  EXPECT_EQ(kept.ToString(), "[3] f32 on [\"dp\"=2] as [dp]");
  EXPECT_THAT(kept.local().shape(), ElementsAre(2));
}

TEST(DistributedTensorDeathTest, SaysWhatWasDoneToAnUndefinedOne) {
  const DistributedTensor none;
  EXPECT_DEATH(none.shape(), "^dtensor: DistributedTensor::spec\\(\\) of an undefined tensor");
  EXPECT_DEATH(none.local(), "^dtensor: DistributedTensor::local\\(\\) of an undefined tensor");
  EXPECT_DEATH(none.Detach(), "^dtensor: DistributedTensor::Detach\\(\\) of an undefined tensor");
}

}  // namespace
}  // namespace dtensor
