// JoinWorld with an NCCL communicator of the program's. Ranks are threads here, each with its own
// world, as processes have.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

// What a rank's program does, which has the communicator `mine` too.
using Program = std::function<absl::Status(Context& context, const NcclRank& mine)>;

// Runs `program` on two ranks whose exchanges go by the program's communicators. Then calls
// `after(mine, status, is_gone)` on each, where its world had `status`, and is_gone is
// JoinOptions::nccl_is_gone.
void RunPair(const Program& program,
             const std::function<void(const NcclRank& mine, const absl::Status& status,
                                      bool is_gone)>& after) {
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  RunNcclRanks(2, [&](NcclRank& mine) {
    const auto is_gone = std::make_shared<std::atomic<bool>>(false);
    auto world = JoinWorld({.rank = mine.rank,
                            .size = mine.size,
                            .address = address,
                            .job = "job",
                            .timeout_seconds = 30,
                            .device = Device::Kind::kCuda,
                            .gpu = mine.gpu,
                            .nccl = mine.comm,
                            .nccl_is_gone = is_gone});
    DT_ASSERT_OK(world.status());
    const absl::Status status = (*world)->Leave(program((*world)->context(), mine));
    *world = nullptr;
    after(mine, status, *is_gone);
  });
}

absl::Status Gather(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
  DT_ASSIGN_OR_RETURN(const auto twos, Full(context, mesh, {Shard(0)}, {3}, DType::kF32, 2));
  DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(twos));
  EXPECT_EQ(values, std::vector<float>(3, 2));
  return absl::OkStatus();
}

TEST(JoinWorldNccl, UsesTheProgramsCommunicator) {
  RunPair([](Context& context, const NcclRank&) { return Gather(context); },
          [](const NcclRank& mine, const absl::Status& status, bool is_gone) {
            DT_EXPECT_OK(status);
            EXPECT_FALSE(is_gone);
            EXPECT_EQ(mine.Destroy(), ncclSuccess);
          });
}

TEST(JoinWorldNccl, SaysThatOneIsGoneThatCannotBeRevoked) {
  RunPair(
      [](Context& context, const NcclRank& mine) -> absl::Status {
        DT_RETURN_IF_ERROR(Gather(context));
        // Once is all that NCCL allows.
        EXPECT_EQ(mine.End(ncclCommRevoke(mine.comm, NCCL_REVOKE_DEFAULT)), ncclSuccess);
        return mine.rank == 1 ? absl::DataLossError("my disk is full") : Gather(context);
      },
      [](const NcclRank& mine, const absl::Status& status, bool is_gone) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("my disk is full")));
        EXPECT_TRUE(is_gone);
        cudaStreamDestroy(mine.stream);
      });
}

}  // namespace
}  // namespace dtensor
