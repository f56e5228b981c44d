#include "dtensor/tensor/gather_values.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Threads that read each other's memory, those whose work is deferred, and messages.
void RunEachWay(int n, const std::function<absl::Status(Context&)>& fn) {
  for (const Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    DT_EXPECT_OK(RunRanks(n, fn, {.device = kind}));
  }
  SocketRanks sockets(n);
  DT_EXPECT_OK(RunLocalRanks(n, [&](Communicator& threads, Device& device) {
    SocketRank rank = sockets.Make(threads, device);
    Context context(rank.communicator(), device);
    return fn(context);
  }));
}

// Of a rank: any bytes, as many as `pattern` says.
std::string BytesOf(int rank, int pattern) {
  const int sizes[][4] = {{0, 0, 0, 0}, {1, 2, 3, 4}, {0, 5, 0, 70000}, {4096, 0, 0, 1}};
  std::string bytes;
  for (int i = 0; i < sizes[pattern][rank]; ++i) bytes += static_cast<char>(i * 37 + rank * 11);
  return bytes;
}

TEST(FirstUnlikeRank0, IsTheSameOnAllRanks) {
  RunEachWay(4, [](Context& context) -> absl::Status {
    const uint64_t like[] = {7, 7, 7, 7}, two[] = {7, 7, 8, 9}, zero[] = {8, 7, 7, 7};
    const uint64_t* const cases[] = {like, two, zero};
    const int expected[] = {0, 2, 1};
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(const int other, FirstUnlikeRank0(context, cases[i][context.rank()]));
      EXPECT_EQ(other, expected[i]) << i;
    }
    return absl::OkStatus();
  });
}

TEST(GatherBytes, EveryRankHasWhatEachSays) {
  for (const int n : {1, 2, 4}) {
    RunEachWay(n, [](Context& context) -> absl::Status {
      for (const int pattern : {0, 1, 2, 3, 2}) {
        DT_ASSIGN_OR_RETURN(const auto all, GatherBytes(context, BytesOf(context.rank(), pattern)));
        EXPECT_EQ(all.size(), context.world_size());
        for (size_t rank = 0; rank < all.size(); ++rank) {
          EXPECT_EQ(all[rank], BytesOf(static_cast<int>(rank), pattern)) << pattern;
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(GatherValues, OfAnyPlainType) {
  struct Stamp {
    char what;
    double at;
  };
  RunEachWay(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto ranks, GatherValues(context, context.rank()));
    EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
    DT_ASSIGN_OR_RETURN(const auto stamps, GatherValues(context, Stamp{'x', 0.5 * context.rank()}));
    EXPECT_EQ(stamps[2].what, 'x');
    EXPECT_EQ(stamps[2].at, 1);
    return absl::OkStatus();
  });
}

// Whatever some ranks cannot do, all of them hear the same, and go on.
TEST(AgreeOn, OneErrorForAll) {
  RunEachWay(4, [](Context& context) -> absl::Status {
    const int rank = context.rank();
    const auto agreed = [&](const std::function<bool(int)>& fails) {
      return AgreeOn(context, fails(rank) ? absl::NotFoundError(absl::StrCat("file ", rank))
                                          : absl::OkStatus());
    };
    DT_EXPECT_OK(agreed([](int) { return false; }));
    EXPECT_EQ(agreed([](int) { return true; }), absl::NotFoundError("file 0"));
    EXPECT_EQ(agreed([](int r) { return r == 2; }), absl::NotFoundError("rank 2: file 2"));
    EXPECT_EQ(agreed([](int r) { return r % 2 == 1; }), absl::NotFoundError("ranks 1, 3: file 1"));
    DT_EXPECT_OK(agreed([](int) { return false; }));
    return absl::OkStatus();
  });
}

// Ranks are at unlike places of their programs: no bytes are taken for what they are not.
TEST(GatherValues, RanksThatGatherUnlikeThingsAreTold) {
  EXPECT_THAT(
      RunRanks(2,
               [](Context& context) {
                 return context.rank() == 0 ? GatherValues(context, 1.5).status()
                                            : AgreeOn(context, absl::OkStatus());
               }),
      StatusIs(Code::kFailedPrecondition,
               AllOf(HasSubstr("disagree"), HasSubstr("GatherValues"), HasSubstr("AgreeOn"))));
  RunEachWay(2, [](Context& context) -> absl::Status {
    const bool wide = context.rank() == 1;
    EXPECT_THAT(
        wide ? GatherValues(context, int64_t{7}).status() : GatherValues(context, 7).status(),
        StatusIs(Code::kInvalidArgument,
                 HasSubstr(wide ? "rank 0 sent 4 bytes where this rank has values of 8"
                                : "rank 1 sent 8 bytes where this rank has values of 4")));
    return AgreeOn(context, absl::OkStatus());
  });
}

// The others are told at once, though the rank says nothing else.
TEST(GatherBytes, ARankThatLacksMemoryFailsTheWorld) {
  const auto status = RunLocalRanks(2, [](Communicator& communicator, Device& given) {
    const std::unique_ptr<Device> own = MakeCpuDevice();
    const bool lacks = communicator.rank() == 1;
    if (lacks) own->Fail(absl::ResourceExhaustedError("no room"));
    Context context(communicator, lacks ? *own : given);
    EXPECT_THAT(GatherBytes(context, "x").status(),
                StatusIs(Code::kResourceExhausted, HasSubstr("rank 1: GatherBytes: no room")));
    return communicator.Barrier("the end");
  });
  EXPECT_THAT(status, StatusIs(Code::kResourceExhausted, HasSubstr("rank 1: GatherBytes")));
}

TEST(GatherBytes, NeedsValuesAndTheOthers) {
  EXPECT_THAT(Simulate(0, 2, [](Context& context) { return GatherBytes(context, "x").status(); }),
              StatusIs(Code::kFailedPrecondition, HasSubstr("meta")));
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) {
                         return context.rank() == 1 ? absl::DataLossError("the dog ate it")
                                                    : GatherBytes(context, "x").status();
                       }),
              StatusIs(Code::kDataLoss, HasSubstr("rank 1: the dog ate it")));
}

}  // namespace
}  // namespace dtensor
