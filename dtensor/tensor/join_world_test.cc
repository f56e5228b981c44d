// What remains of a world of processes after its end. Ranks are threads here, each with its own
// world, as processes have.
#include "dtensor/tensor/join_world.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a world of two.
JoinOptions PairOptions() {
  return {.size = 2,
          .address = absl::StrCat("127.0.0.1:", FreePort()),
          .job = "job",
          .timeout_seconds = 30};
}

JoinOptions OfRank(JoinOptions both, int rank) {
  both.rank = rank;
  return both;
}

// fn(rank) on a thread for each of two.
void OnTwoThreads(const std::function<void(int)>& fn) {
  std::thread other([&] { fn(1); });
  fn(0);
  other.join();
}

TEST(JoinWorld, RefusesWhatIsForGpus) {
  JoinOptions options = OfRank(PairOptions(), 0);
  options.gpu = 0;
  EXPECT_THAT(JoinWorld(options), Refuses(HasSubstr("give gpu, and the device is cpu")));
  options.gpu.reset();
  options.cuda_device = [](int, int) { return nullptr; };
  EXPECT_THAT(JoinWorld(options), Refuses(HasSubstr("give cuda_device, and the device is cpu")));
}

// fn on both ranks of a world; what they left with.
std::vector<absl::Status> OnPair(const std::function<absl::Status(Context&)>& fn) {
  const JoinOptions both = PairOptions();
  std::vector<absl::Status> left(2);
  OnTwoThreads([&](int rank) {
    const auto world = JoinWorld(OfRank(both, rank));
    left[rank] = world.ok() ? (*world)->Leave(fn((*world)->context())) : world.status();
  });
  return left;
}

absl::StatusOr<DistributedTensor> Twos(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
  return Full(context, mesh, {Shard(0)}, {3}, DType::kF32, 2);
}

TEST(JoinedWorld, TensorsOutliveIt) {
  std::vector<DistributedTensor> kept(2), gathered(2);
  const auto left = OnPair([&](Context& context) -> absl::Status {
    const int rank = context.rank();
    DT_ASSIGN_OR_RETURN(kept[rank], Twos(context));
    DT_RETURN_IF_ERROR(kept[rank].set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(gathered[rank], kept[rank].Redistribute({Replicate()}));
    return ToGlobal<float>(kept[rank]).status();
  });
  EXPECT_THAT(left, ElementsAre(IsOk(), IsOk()));
  EXPECT_EQ(kept[1].ToString(), "[3] f32 on [\"dp\"=2] as [dp]");
  EXPECT_THAT(ToHost<float>(kept[0].local()), IsOkAndHolds(std::vector<float>{2, 2}));
  EXPECT_THAT(ToHost<float>(kept[1].local()), IsOkAndHolds(std::vector<float>{2}));
  EXPECT_THAT(ToHost<float>(gathered[1].local()), IsOkAndHolds(std::vector<float>{2, 2, 2}));
  gathered.clear();
  EXPECT_FALSE(ToGlobal<float>(kept[0]).ok());
}

// It has no memory any more.
TEST(JoinedWorld, SoDoesOneThatWasRedistributedInPlace) {
  std::vector<DistributedTensor> kept(2);
  const auto left = OnPair([&](Context& context) -> absl::Status {
    DistributedTensor& x = kept[context.rank()];
    DT_ASSIGN_OR_RETURN(x, Twos(context));
    const RedistributeOptions in_place = {.plan = RedistributionOptions{.in_place = true}};
    DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Replicate()}, in_place));
    return ToGlobal<float>(y).status();
  });
  EXPECT_THAT(left, ElementsAre(IsOk(), IsOk()));
  EXPECT_EQ(kept[1].context().rank(), 1);
  EXPECT_THAT(kept[1].Redistribute({Replicate()}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the world is over")));
}

TEST(JoinedWorld, SoDoesAResultThatIsOnItsWay) {
  DistributedTensor kept;
  const auto left = OnPair([&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Twos(context));
    DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Replicate()}, {.async = true}));
    if (context.rank() == 1) kept = y;
    return absl::OkStatus();
  });
  for (const absl::Status& status : left) DT_EXPECT_OK(status);
  EXPECT_THAT(ToHost<float>(kept.local()), IsOkAndHolds(std::vector<float>(3, 2)));
}

// More worlds than a process has ranges of addresses for, each left before its tensors go.
TEST(JoinedWorld, GoesWhenItsTensorsHaveGone) {
  for (int world = 0; world < 70; ++world) {
    std::vector<DistributedTensor> kept(2);
    const auto left = OnPair([&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(kept[context.rank()], Twos(context));
      return ToGlobal<float>(kept[context.rank()]).status();
    });
    for (const absl::Status& status : left) DT_ASSERT_OK(status) << "world " << world;
  }
}

TEST(JoinedWorld, LeavesWithOneStatus) {
  const std::filesystem::path folder = testing::TempDir() + "join_world_test";
  std::filesystem::create_directories(folder);
  JoinOptions alone = OfRank(PairOptions(), 0);
  alone.size = 1;
  const std::string file = folder / "trace.json";
  DT_ASSERT_OK_AND_ASSIGN(const auto world, JoinWorld(alone, ContextOptions{.trace_file = file}));
  std::filesystem::remove_all(folder);
  const absl::Status left = world->Leave(absl::OkStatus());
  EXPECT_THAT(left, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("trace.json")));
  EXPECT_EQ(world->Leave(absl::OkStatus()), left);
}

TEST(JoinedWorld, PeersHearOfAnExceptionThatEndsARank) {
  const JoinOptions both = PairOptions();
  OnTwoThreads([&](int rank) {
    try {
      const auto world = JoinWorld(OfRank(both, rank));
      DT_ASSERT_OK(world.status());
      if (rank == 1) throw std::runtime_error("no such weather");
      DT_ASSERT_OK_AND_ASSIGN(const auto twos, Twos((*world)->context()));
      EXPECT_THAT(ToGlobal<float>(twos), StatusIs(absl::StatusCode::kInternal,
                                                  HasSubstr("rank 1: an exception ended its")));
    } catch (const std::runtime_error&) {
    }
  });
}

// A rank of two worlds, which know nothing of each other: one goes on when the other has ended.
TEST(JoinedWorld, AProcessMayBeInSeveral) {
  const JoinOptions one = PairOptions(), other = PairOptions();
  OnTwoThreads([&](int rank) {
    DT_ASSERT_OK_AND_ASSIGN(const auto first, JoinWorld(OfRank(one, rank)));
    {
      DT_ASSERT_OK_AND_ASSIGN(const auto second, JoinWorld(OfRank(other, 1 - rank)));
      for (const auto& world : {&first, &second}) {
        DT_ASSERT_OK_AND_ASSIGN(const auto twos, Twos((*world)->context()));
        EXPECT_THAT(ToGlobal<float>(twos), IsOkAndHolds(std::vector<float>(3, 2)));
      }
      DT_EXPECT_OK(second->Leave(absl::OkStatus()));
    }
    DT_ASSERT_OK_AND_ASSIGN(const auto twos, Twos(first->context()));
    EXPECT_THAT(ToGlobal<float>(twos), IsOkAndHolds(std::vector<float>(3, 2)));
    DT_EXPECT_OK(first->Leave(absl::OkStatus()));
  });
}

// Rank 0 fails, and rank 1 returns only when the report says that it has not returned yet: so the
// world ends only if the time-out and the report are those that RunWorld was given.
class RunWorldTest : public ::testing::Test {
 protected:
  absl::Status Rank(Context& context) {
    if (context.rank() == 0) return absl::DataLossError("my disk is full");
    late_.get_future().wait();
    return absl::OkStatus();
  }
  absl::Status Run() {
    const RunOptions options = {.timeout_seconds = 2,
                                .report = [this](const absl::Status& trouble) {
                                  if (absl::IsDeadlineExceeded(trouble)) late_.set_value();
                                }};
    return RunWorld(
        2, [this](Context& context) { return Rank(context); }, options);
  }

  std::promise<void> late_;
};

TEST_F(RunWorldTest, ATimeoutAndAReportHoldForThreads) {
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 0: my disk is full")));
}

// This process is rank 0 of a launcher's; rank 1 is a thread that says so itself.
TEST_F(RunWorldTest, ATimeoutAndAReportHoldUnderALauncher) {
  const JoinOptions both = PairOptions();
  const std::vector<std::pair<const char*, std::string>> launcher = {
      {"DTENSOR_RANK", "0"},
      {"DTENSOR_SIZE", "2"},
      {"DTENSOR_ADDRESS", both.address},
      {"DTENSOR_JOB", both.job}};
  for (const auto& [name, value] : launcher) setenv(name, value.c_str(), 1);
  OnTwoThreads([&](int rank) {
    if (rank == 0) {
      EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("my disk is full")));
      return;
    }
    const auto world = JoinWorld(OfRank(both, 1));
    DT_ASSERT_OK(world.status());
    (*world)->Leave(Rank((*world)->context())).IgnoreError();
  });
  for (const auto& [name, value] : launcher) unsetenv(name);
}

}  // namespace
}  // namespace dtensor
