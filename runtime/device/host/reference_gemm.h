// ReferenceGemm: products in plain C++, for types and strides that oneDNN does not support.
//
// Blocks are packed into panels, which are contiguous whatever the strides were, and multiplied in
// registers with the widest vectors that the CPU has. Each element's sum runs over k in ascending
// order within blocks of 256, so its bits depend on k and on the CPU alone.
#ifndef DTENSOR_RUNTIME_DEVICE_HOST_REFERENCE_GEMM_H_
#define DTENSOR_RUNTIME_DEVICE_HOST_REFERENCE_GEMM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/host/scratch.h"

namespace dtensor {

class ReferenceGemm {
 public:
  // Uses the CPU's vectors of at most `vector_bytes` (64, 32 or 16).
  explicit ReferenceGemm(int vector_bytes = 64) : vector_bytes_(vector_bytes) {}

  // Requires: ValidateGemm(gemm) is OK, no dimension is 0, out_dtype == dtype, one of f32, f64,
  // i32, i64. Errors: kResourceExhausted.
  absl::Status Run(const GemmProblem& gemm);

 private:
  const int vector_bytes_;
  Scratch a_panels_, b_panels_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_REFERENCE_GEMM_H_
