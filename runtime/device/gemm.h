// GemmProblem: one (batched) matrix product, as the device interface takes it.
//
//   C[i](m, n) = A[i](m, k) * B[i](k, n)      (+ C[i] if accumulate), i < batch
//
// Strides are in elements and not negative. A and B are fast if one stride is 1 and the other at
// least the size of the contiguous dimension (row-major or column-major, with any leading
// dimension), as long as k, m, n are larger than 1. Other strides, 0 included, cost a copy; on cuda
// they are kUnimplemented, as are products of integers (copy or convert them first), of more
// than 2^31 - 1 matrices, and of sizes for which cuBLASLt has no algorithm. C is row-major: column
// stride 1 if n > 1, with rows and matrices that do not overlap. A and B may share memory; C shares
// none with either.
//
// Types: f32, f64, bf16, f16, i32, i64. Sums are taken in f32 for bf16 and f16, and in the type
// itself otherwise (integers wrap around). With accumulate, C is added before the one rounding to
// out_dtype. k = 0 gives zeros, or leaves C unchanged with accumulate.
//
// A product may be computed in parts of its rows (`whole_rows`); the parts then have the bits that
// the whole would have. This is not always possible: a library may choose its code, and with it the
// order of a sum, by the number of rows:
//
//   cuBLASLt            each part uses the code for the whole, if it can (alignment)
//   oneDNN, "brgemm"    the bits of a row do not depend on other rows (gemm_rows_test): f32 and
//                       bf16 on CPUs with AVX-512, with operands without gaps
//   oneDNN, all else    the order depends on the number of rows and on their position: refused
//   our own loops       the order depends on k alone
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
  // If not 0: A and C are rows [first_row, first_row + m) of a product of `whole_rows` rows, and
  // get the bits that they have there. If the device's code cannot promise that, Device::Gemm()
  // does nothing and returns kUnimplemented. 0: A and C are the whole product. Requires: batch ==
  // 1.
  int64_t whole_rows = 0, first_row = 0;
  bool only_asks = false;  // only returns the status, computes nothing. For parts only
};

// Errors: kInvalidArgument if it breaks a rule above that can be checked without looking at memory.
absl::Status ValidateGemm(const GemmProblem& gemm);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_GEMM_H_
