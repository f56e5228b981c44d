// HostGemm: any product in host memory, on the calling thread.
//
//   f32, bf16        oneDNN; if it has no fast code, as below
//   f64, i32, i64    ReferenceGemm
//   f16, bf16        widened to f32, one matrix at a time
#ifndef DTENSOR_RUNTIME_DEVICE_HOST_HOST_GEMM_H_
#define DTENSOR_RUNTIME_DEVICE_HOST_HOST_GEMM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/host/onednn_gemm.h"
#include "dtensor/runtime/device/host/reference_gemm.h"
#include "dtensor/runtime/device/host/scratch.h"

namespace dtensor {

class HostGemm {
 public:
  // Requires: ValidateGemm(gemm) is OK, no dimension is 0. Errors: kResourceExhausted, kInternal.
  absl::Status Run(const GemmProblem& gemm);

  // Whether a part's rows would have the bits that they have in the whole
  // (GemmProblem::whole_rows). Errors: kUnimplemented; as Run.
  absl::Status CheckRows(const GemmProblem& gemm);

 private:
  template <typename T>
  absl::Status RunWidened(const GemmProblem& gemm);

  OneDnnGemm one_dnn_;
  ReferenceGemm simple_;
  Scratch a_, b_, c_;  // widened matrices
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_HOST_GEMM_H_
