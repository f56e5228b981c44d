// The memory that attention takes on a GPU beside its operands.
#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/cudnn.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

class AttentionMemoryTest : public CudaTest {
 protected:
  Tensor Make(DType dtype, Dims shape) {
    Tensor tensor = *Tensor::Empty(*device_, dtype, shape);
    EXPECT_THAT(device_->FillBytes(tensor.raw(), 0, tensor.bytes()), IsOk());
    return tensor;
  }
  // What was allocated since ResetPeak, at one time.
  int64_t Taken() const { return device_->memory().peak_bytes - live_; }
  void Reset() {
    live_ = device_->memory().live_bytes;
    device_->ResetPeak();
  }

 private:
  int64_t live_ = 0;
};

// The host's kernels keep the results of all heads that share keys: on a GPU that would be
// hundreds of MiB for long texts, which its kernels have no use for.
TEST_F(AttentionMemoryTest, OnlyWhatRowsSee) {
  constexpr int64_t kRows = 64, kHeads = 8, kDim = 64;
  AllowCudnn(*device_, false);  // it has a workspace
  const DType bf16 = DType::kBF16;
  const Tensor q = Make(bf16, {1, kRows, kHeads, kDim}), k = Make(bf16, {1, kRows, 1, kDim});
  const Tensor o = Make(bf16, q.shape()), lse = Make(DType::kF32, {1, kHeads, kRows});
  Reset();
  ASSERT_THAT(Attention(*device_, q, k, k, 1, true, o, lse), IsOk());
  EXPECT_LE(Taken(), 16 * kRows);
  const Tensor dq = Make(bf16, q.shape()), dk = Make(bf16, k.shape()), dv = Make(bf16, k.shape());
  Reset();
  ASSERT_THAT(AttentionGrad(*device_, q, k, k, o, lse, o, 1, true, dq, dk, dv), IsOk());
  const int64_t deltas = lse.bytes();
  EXPECT_LE(Taken(), deltas + 16 * kRows);
  EXPECT_THAT(device_->Synchronize(), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
