// Over the fakes: what goes wrong with NCCL beneath a world is an error on every rank, in under
// 2 s, that says what was called, who and what. Deaths, at some call of NCCL's: tests/processes.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kAll[] = {0, 1, 2};

// Rank 1 receives of rank 0 as many elements as each of them believes: ranks that agree about a
// call by its digest, and do not about what it is.
class Beliefs final : public ExchangeBoxes {
 public:
  explicit Beliefs(int64_t elements) : elements_(elements) {}
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    if (rank != 1 || elements_ == 0) return {};
    return {{.peers = {0}, .dims = {{.length = elements_}}}};
  }
  uint64_t digest() const override { return 7; }

 private:
  const int64_t elements_;
};

absl::Status Exchange(ProcessWorld& world, int64_t elements) {
  const std::vector<float> values(100, 1);
  DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(world.device(), values, {100}));
  DT_ASSIGN_OR_RETURN(const Tensor result, FromHost<float>(world.device(), values, {100}));
  const Beliefs boxes(elements);
  const std::vector<ReceiveBox> receives = boxes.Receives(0, world.rank());
  const ExchangePart part{source, result, receives};
  const Collective collective = {.axes = "dp", .op = "Believe", .group = kAll, .boxes = &boxes};
  return world.communicator().Exchange(collective, {&part, 1});
}

// Until an error ends it, which there is within 20 s.
absl::Status TakeTurns(ProcessWorld& world) {
  for (const auto until = Clock::now() + std::chrono::seconds(20); Clock::now() < until;) {
    DT_RETURN_IF_ERROR(world.communicator().Barrier("turn"));
  }
  return absl::OkStatus();
}

// What each of three ranks says, that has met `fault` after some exchanges; and that all are soon.
std::vector<absl::Status> AfterFault(const ProcessFunction& fault) {
  std::vector<Clock::duration> took(3);
  const auto results =
      RunProcesses(Launched(3, 30, RankWay::kNccl), [&](ProcessWorld& world) -> absl::Status {
        for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(Gather(world, {0, 1, 2}, 100));
        const auto begin = Clock::now();
        absl::Status status = fault(world);
        if (status.ok()) status = TakeTurns(world);
        took[world.rank()] = Clock::now() - begin;
        return status;
      });
  EXPECT_THAT(took, Each(testing::Lt(kNcclErrorsCome)));
  return results;
}

TEST(NcclWorldFailuresTest, RanksSendAndReceiveUnlikeCounts) {
  const auto results =
      AfterFault([](ProcessWorld& world) { return Exchange(world, world.rank() == 0 ? 3 : 4); });
  EXPECT_THAT(
      results,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr("rank 1 receives 16 uint8 from rank 0, which sends 12 uint8"))));
}

TEST(NcclWorldFailuresTest, ARankDoesNotSend) {
  setenv("DTENSOR_FAKE_NCCL_PATIENCE_MS", "500", 1);
  const auto results =
      AfterFault([](ProcessWorld& world) { return Exchange(world, world.rank() == 0 ? 0 : 4); });
  unsetenv("DTENSOR_FAKE_NCCL_PATIENCE_MS");
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 1 waits for 16 uint8, of which rank 0 knows "
                                               "nothing for 500 ms"))));
}

// Rank 1 waits for its GPU, which waits for a message that never comes. When another rank fails the
// world, each aborts its NCCL.
TEST(NcclWorldFailuresTest, ARankFailsWhileOthersAreInNccl) {
  std::vector<absl::Status> of_devices(3);
  const auto results = AfterFault([&](ProcessWorld& world) -> absl::Status {
    DT_RETURN_IF_ERROR(Exchange(world, world.rank() == 0 ? 0 : 4));
    // In which others may hear of the failure already.
    world.communicator().Barrier("launched").IgnoreError();
    if (world.rank() == 2) return world.communicator().Fail(absl::DataLossError("the dog ate it"));
    of_devices[world.rank()] = world.device().Synchronize();
    return of_devices[world.rank()];
  });
  EXPECT_THAT(results,
              Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 2: the dog ate it"))));
  EXPECT_THAT(of_devices[1], StatusIs(absl::StatusCode::kDataLoss,
                                      AllOf(HasSubstr("rank 2: the dog ate it"),
                                            HasSubstr("behind op \"Believe\" of ranks"))));
}

}  // namespace
}  // namespace dtensor
