// On a GPU chunks move while kernels run, and the reader of a chunk waits for it.
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/redistribution/chunked_move.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/testing/cuda_gate.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kRows = 16, kColumns = 8;  // of each rank
using ChunkedMoveCudaTest = CudaTest;

float ValueOf(int64_t row) { return static_cast<float>(row + 1); }

absl::StatusOr<RankChunks> Chunks(int rank, int chunks) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
  DT_ASSIGN_OR_RETURN(const Layout from, Layout::Parse(mesh, "[tp] []"));
  DT_ASSIGN_OR_RETURN(const Layout to, Layout::Parse(mesh, "[] []"));
  DT_ASSIGN_OR_RETURN(RedistributionPlan plan,
                      RedistributionPlan::Create(from, to, {2 * kRows, kColumns}, DType::kF32));
  auto schedule = ChunkSchedule::Create(plan, chunks);
  auto rank_plan = std::make_shared<const RankRedistributionPlan>(std::move(plan), rank);
  return RankChunks(std::move(schedule), std::move(rank_plan), rank);
}

absl::StatusOr<Tensor> Source(int rank, Device& device) {
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    values.push_back(ValueOf(rank * kRows + i / kColumns));
  }
  return FromHost<float>(device, values, {kRows, kColumns});
}

std::vector<float> Whole() {
  std::vector<float> values;
  for (int64_t i = 0; i < 2 * kRows * kColumns; ++i) values.push_back(ValueOf(i / kColumns));
  return values;
}

// Asks until the row has come.
absl::Status AwaitRow(Device& observer, const Tensor& tensor, int64_t row) {
  const float expected = ValueOf(row);
  float seen = 0;
  for (int i = 0; i < 2000; ++i) {
    DT_RETURN_IF_ERROR(observer.CopyToHost(&seen, tensor.Narrow(0, row, 1).raw(), sizeof(seen)));
    if (seen == expected) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError("a chunk waits for a kernel that it does not need");
}

// CUDA may wait for all that a GPU does where it loads a kernel or makes a device: for a gate that
// is closed. So all of that is done once before, on both ranks, which may share a GPU.
absl::Status Load(const RankChunks& chunks, const Tensor& source, const Tensor& result,
                  Communicator& communicator, Device& device) {
  {  // freed before the barrier: that may wait as well
    CudaGate open;
    open.Open();
    DT_RETURN_IF_ERROR(open.HoldUp(device));
    const auto nothing = [](absl::Span<const RowRange>) { return absl::OkStatus(); };
    DT_RETURN_IF_ERROR(MoveInChunks(chunks, source, result, communicator, "Load", nothing));
    DT_RETURN_IF_ERROR(device.FillBytes(result.raw(), 0, result.bytes()));
    DT_RETURN_IF_ERROR(device.Synchronize());
  }
  return communicator.Barrier("all is loaded");
}

// Each rank's kernel of step 0 does not end before its first chunk has come.
TEST_F(ChunkedMoveCudaTest, AChunkMovesBesideTheKernelsOfItsStep) {
  DT_EXPECT_OK(RunLocalRanks(
      2,
      [](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        DT_ASSIGN_OR_RETURN(const RankChunks chunks, Chunks(rank, 2));
        DT_ASSIGN_OR_RETURN(const Tensor source, Source(rank, device));
        DT_ASSIGN_OR_RETURN(const Tensor result,
                            Tensor::Empty(device, DType::kF32, {2 * kRows, kColumns}));
        DT_ASSIGN_OR_RETURN(const auto observer, MakeCudaDevice(device.ordinal()));
        CudaGate gate;  // goes before the observer, whose end waits for what it holds up
        DT_RETURN_IF_ERROR(Load(chunks, source, result, communicator, device));
        int step = 0;
        const auto make = [&](absl::Span<const RowRange> rows) -> absl::Status {
          if (step++ == 0) return gate.HoldUp(device);
          if (step > 2) return absl::OkStatus();
          const absl::Status arrived = AwaitRow(*observer, result, rows[0].begin);
          gate.Open();
          return arrived;
        };
        DT_RETURN_IF_ERROR(MoveInChunks(chunks, source, result, communicator, "Test", make));
        // What this rank frees may wait for the other's gate, with a lock that its launches need.
        DT_RETURN_IF_ERROR(communicator.Barrier("both gates are open"));
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(result));
        return values == Whole() ? absl::OkStatus() : absl::InternalError("wrong values");
      },
      {.device = Device::Kind::kCuda}));
}

// Of what was there before, or of nothing at all, in the fake's poisoned memory, no kernel may see
// anything.
TEST_F(ChunkedMoveCudaTest, KernelsWaitForTheChunkThatTheyRead) {
  for (int round = 0; round < 10; ++round) {
    DT_ASSERT_OK(RunLocalRanks(
        2,
        [&](Communicator& communicator, Device& device) -> absl::Status {
          const int rank = communicator.rank();
          DT_ASSIGN_OR_RETURN(const RankChunks chunks, Chunks(rank, 1 + round % 4));
          DT_ASSIGN_OR_RETURN(const Tensor source, Source(rank, device));
          DT_ASSIGN_OR_RETURN(const Tensor result,
                              Tensor::Empty(device, DType::kF32, {2 * kRows, kColumns}));
          DT_ASSIGN_OR_RETURN(const Tensor seen,
                              Tensor::Empty(device, DType::kF32, {2 * kRows, kColumns}));
          const auto make = [&](absl::Span<const RowRange> rows) -> absl::Status {
            for (const RowRange& range : rows) {
              DT_RETURN_IF_ERROR(kernels::Copy(device, result.Narrow(0, range.begin, range.size()),
                                               seen.Narrow(0, range.begin, range.size())));
            }
            return absl::OkStatus();
          };
          DT_RETURN_IF_ERROR(MoveInChunks(chunks, source, result, communicator, "Test", make));
          DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(seen));
          return values == Whole() ? absl::OkStatus()
                                   : absl::InternalError("a kernel read a chunk before it came");
        },
        {.device = Device::Kind::kCuda}));
  }
}

}  // namespace
}  // namespace dtensor
