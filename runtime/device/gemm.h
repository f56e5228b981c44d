// GemmProblem: one (batched) matrix product, as the device interface takes it.
//
//   C[i](m, n) = A[i](m, k) * B[i](k, n)      (+ C[i] if accumulate), i < batch
//
// Strides are in elements and not negative. Fast where one stride of A and of B is 1 and the other
// at least the size of that dimension (row-major or column-major, with a free leading dimension),
// as long as k, m, n are larger than 1; other strides, 0 included, cost a copy. C is row-major:
// column stride 1 where n > 1, rows and matrices that do not overlap. A and B may share memory, C
// with neither.
//
// f32, f64, bf16, f16, i32, i64. Sums are taken in f32 for bf16 and f16 and in the type itself for
// the rest (integers wrap around); with accumulate, C is added before the one rounding to
// out_dtype. k = 0 gives zeros, or C unchanged with accumulate.
#ifndef DTENSOR_RUNTIME_DEVICE_GEMM_H_
#define DTENSOR_RUNTIME_DEVICE_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct GemmMatrix {
  void* data = nullptr;
  int64_t row_stride = 0, col_stride = 1, batch_stride = 0;
};

struct GemmProblem {
  DType dtype = DType::kF32;      // of A and B
  DType out_dtype = DType::kF32;  // of C: dtype, or f32 for bf16 and f16
  int64_t batch = 1, m = 0, n = 0, k = 0;
  GemmMatrix a, b, c;
  bool accumulate = false;
};

// Errors: kInvalidArgument, if it breaks a rule above that can be seen without looking at memory.
absl::Status ValidateGemm(const GemmProblem& gemm);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_GEMM_H_
