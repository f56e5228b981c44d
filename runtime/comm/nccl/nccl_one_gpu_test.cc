// A world of one rank, as one GPU allows: its carrier, and the program's own communicator. What one
// rank sends to itself through NCCL: nccl_launch_test.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/nccl/nccl_carrier.h"
#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/comm/testing/threads_state.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

using NcclOneGpuTest = CudaTest;

LaunchedRank One() { return Launched(1, 30, RankWay::kNccl); }

TEST_F(NcclOneGpuTest, Exchanges) {
  DT_EXPECT_OK(RunProcess(One(), [](ProcessWorld& world) -> absl::Status {
    EXPECT_EQ(world.device().kind(), Device::Kind::kCuda);
    for (const int64_t length : {1, 100, 0, 100000}) {
      DT_RETURN_IF_ERROR(Gather(world, {0}, length));
    }
    return world.communicator().Barrier("end");
  }));
}

TEST_F(NcclOneGpuTest, ACommunicatorAndAStreamOfTheProgram) {
  RunNcclRanks(1, [me = One()](NcclRank& mine) mutable {
    me.gpu->comm = mine.comm;
    me.gpu->make_device = [&](int, int ordinal) { return MakeCudaDevice(ordinal, mine.stream); };
    DT_EXPECT_OK(RunProcess(me, [&](ProcessWorld& world) -> absl::Status {
      EXPECT_EQ(CudaStreamOf(world.device()), mine.stream);
      return Gather(world, {0}, 70000);
    }));
    EXPECT_EQ(mine.Destroy(), ncclSuccess);
  });
}

TEST_F(NcclOneGpuTest, AFailedWorldRevokesTheProgramsCommunicator) {
  RunNcclRanks(1, [me = One()](NcclRank& mine) mutable {
    me.gpu->comm = mine.comm;
    const auto fails = [](ProcessWorld& world) {
      return world.communicator().Fail(absl::DataLossError("the dog"));
    };
    EXPECT_THAT(RunProcess(me, fails), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the dog")));
    EXPECT_EQ(mine.Await(), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(mine.comm), ncclSuccess) << "it was not revoked";
    cudaStreamDestroy(mine.stream);
  });
}

class OwnBoxes final : public ExchangeBoxes {
 public:
  explicit OwnBoxes(int64_t n) : n_(n) {}
  std::vector<ReceiveBox> Receives(size_t, int) const override {
    return {{.peers = {0}, .dims = {{.length = n_}}}};
  }
  uint64_t digest() const override { return 1; }

 private:
  const int64_t n_;
};

// On the carrier's own stream: behind what the device had, and before what it gets later.
TEST_F(NcclOneGpuTest, WhatIsCarriedIsInTheOrderOfTheDevice) {
  constexpr int64_t kMuch = 1 << 20;
  const auto fn = [](Communicator& threads, Device& device) -> absl::Status {
    ThreadsState state(threads);
    DT_ASSIGN_OR_RETURN(const Tensor source, Tensor::Empty(device, DType::kI32, {kMuch}));
    DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(device, DType::kI32, {kMuch}));
    DT_ASSIGN_OR_RETURN(const auto carrier, MakeNcclCarrier(0, 1, device, state, {}));
    const OwnBoxes boxes(kMuch);
    const std::vector<ReceiveBox> receives = boxes.Receives(0, 0);
    const ExchangePart part{source, result, receives};
    const int group[] = {0};
    const Collective collective = {.op = "Own", .group = group, .boxes = &boxes};
    for (int i = 1; i <= 20; ++i) {
      DT_RETURN_IF_ERROR(carrier->WordFor(group).status());
      DT_RETURN_IF_ERROR(device.FillBytes(source.raw(), i, kMuch * 4));
      DT_RETURN_IF_ERROR(carrier->Carry({collective, {&part, 1}, device.Record(), {}}).status());
      DT_RETURN_IF_ERROR(device.FillBytes(source.raw(), 0x5a, kMuch * 4));
      DT_ASSIGN_OR_RETURN(const std::vector<int32_t> got, ToHost<int32_t>(result));
      if (got != std::vector<int32_t>(kMuch, i * 0x01010101)) {
        return absl::DataLossError(absl::StrCat("in exchange ", i));
      }
    }
    carrier->End();
    return absl::OkStatus();
  };
  DT_EXPECT_OK(RunLocalRanks(1, fn, {.device = Device::Kind::kCuda}));
}

}  // namespace
}  // namespace dtensor
