// MoveBoxes on a GPU whose memory ends: then nothing has moved.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/box.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using ::testing::Each;

using BoxMemoryTest = CudaTest;

// A copy, and more transposes than a kernel's arguments have room for: two launches.
TEST_F(BoxMemoryTest, MovesAllOrNone) {
  constexpr int64_t kSide = 32, kTransposes = 20;
  int left = 1000;  // blocks that there are
  const CudaAllocator allocator = {
      .allocate = [&](int64_t bytes, cudaStream_t stream) -> void* {
        void* data = nullptr;
        if (left == 0 || cudaMallocAsync(&data, bytes, stream) != cudaSuccess) return nullptr;
        --left;
        return data;
      },
      .free = [](void* data, int64_t, cudaStream_t stream) { cudaFreeAsync(data, stream); }};
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0, std::nullopt, allocator));
  const auto make = [&](Dims shape, int value) {
    Tensor t = *Tensor::Empty(*device, DType::kI32, shape);
    device->FillBytes(t.raw(), value, t.bytes()).IgnoreError();
    return t;
  };
  const Tensor source = make({kSide, kSide}, 1), turned = source.Transpose(0, 1);
  std::vector<Tensor> results;
  std::vector<BoxMove> moves;
  for (int64_t i = 0; i <= kTransposes; ++i) {
    const Tensor* const from[] = {i == 0 ? &source : &turned};
    ReceiveBox box;
    box.peers = {0};
    for (int d = 0; d < 2; ++d) box.dims.push_back({.src = 0, .dst = 0, .length = kSide});
    results.push_back(make({kSide, kSide}, 0));
    moves.emplace_back(box, results.back(), from);
  }
  for (left = 0; left < 100; ++left) {
    const int blocks = left;
    const absl::Status status = MoveBoxes(*device, "Test", moves);
    left = blocks;
    for (const Tensor& result : results) {
      ASSERT_THAT(ToHost<int32_t>(result), IsOkAndHolds(Each(status.ok() ? 0x01010101 : 0)))
          << blocks << " blocks, " << status;
    }
    if (status.ok()) break;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    DT_EXPECT_OK(device->failure());
  }
  EXPECT_GT(left, 0);  // it was refused memory
  EXPECT_LT(left, 100);
}

}  // namespace
}  // namespace dtensor::kernels
