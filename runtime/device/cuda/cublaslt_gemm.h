// CublasLtGemm: products by cuBLASLt on a CUDA stream, with cached plans.
//
// A plan holds cuBLASLt's descriptors and the algorithm that it chose for a shape, so a repeated
// shape costs a look-up and a launch, and gives the same bits. f32 is multiplied in f32, not in
// TF32.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUBLASLT_GEMM_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUBLASLT_GEMM_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {

class CublasLtGemm {
 public:
  // For `stream`, of the current CUDA device. The workspace comes from `pool`. Both outlive the
  // result.
  static absl::StatusOr<std::unique_ptr<CublasLtGemm>> Make(cudaMemPool_t pool,
                                                            cudaStream_t stream);
  ~CublasLtGemm();

  // Launches the product; operands are device memory. Requires: ValidateGemm(gemm) is OK, no
  // dimension is 0, the stream's device is current. Errors: kUnimplemented for integers, for
  // operands that are neither row- nor column-major, and for sizes for which cuBLASLt has no
  // algorithm; kInternal with cuBLASLt's message. A part of a product (GemmProblem::whole_rows)
  // uses the algorithm that cuBLASLt chose for the whole. Errors: also kUnimplemented if that
  // algorithm cannot compute the part, because cuBLASLt says so, or because the part is less
  // aligned than the whole.
  absl::Status Run(const GemmProblem& gemm);
  // What Run would return for a part, as far as it can be known beforehand.
  absl::Status CheckRows(const GemmProblem& gemm);

 private:
  struct Impl;
  explicit CublasLtGemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUBLASLT_GEMM_H_
