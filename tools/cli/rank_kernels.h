// The kernels whose speeds are in the link table, as one rank runs them.
#ifndef DTENSOR_TOOLS_CLI_RANK_KERNELS_H_
#define DTENSOR_TOOLS_CLI_RANK_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::cli {

class RankKernels {
 public:
  // `elements`: of each of three f32 tensors, which together with those of all ranks should exceed
  // the caches. Requires: 2^18 or more, since the operands of Gemm use that many.
  static absl::StatusOr<RankKernels> Create(Context& context, int64_t elements);

  // The three products of a Linear, forward and backward, in type f32, bf16, f16 or f64.
  absl::Status Gemm(DType dtype);
  static double GemmFlops(DType dtype);
  // Causal attention, forward and backward, f32.
  absl::Status Attention();
  static double AttentionFlops();
  // Computes one large tensor from two.
  absl::Status Add();
  // A recorded operator on a tensor of few elements.
  absl::Status Dispatch();

 private:
  explicit RankKernels(Context& context) : context_(&context) {}
  absl::Status MakeHeads();

  Context* context_;
  Tensor a_, b_, c_;
  Tensor q_, k_, v_, o_, dout_, dq_, dk_, dv_, lse_;
  DistributedTensor small_;
};

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RANK_KERNELS_H_
