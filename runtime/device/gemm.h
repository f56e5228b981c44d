// GemmProblem: one (batched) matrix product, as the device interface takes it.
//
//   C[i](m, n) = A[i](m, k) * B[i](k, n)      (+ C[i] if accumulate), i < batch
//
// Strides are in elements and not negative. Fast where one stride of A and of B is 1 and the other
// at least the size of that dimension (row-major or column-major, with a free leading dimension),
// as long as k, m, n are larger than 1; other strides, 0 included, cost a copy, and are
// kUnimplemented on cuda, as products of integers (copy or convert them first) and of more than
// 2^31 - 1 matrices are. C is row-major: column stride 1 where n > 1, rows and matrices that do not
// overlap. A and B may share memory, C with neither.
//
// f32, f64, bf16, f16, i32, i64. Sums are taken in f32 for bf16 and f16 and in the type itself for
// the rest (integers wrap around); with accumulate, C is added before the one rounding to
// out_dtype. k = 0 gives zeros, or C unchanged with accumulate.
//
// A product may be made in parts of its rows (`whole_rows`), and has the bits of the whole then. A
// library may choose its code by the number of rows, and with that the order of a sum:
//
//   cuBLASLt            the code for the whole is taken for each part, if it can (alignment)
//   oneDNN, "brgemm"    rows have their own bits (gemm_rows_test): f32 and bf16 on CPUs with
//                       AVX-512, whose operands have no gaps
//   oneDNN, all else    the order depends on how many rows there are, and on their place: refused
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
  // A and C are rows [first_row, first_row + m) of those of a product of so many rows: they have
  // the bits that they have there, or Device::Gemm() returns kUnimplemented, with nothing done,
  // where the device's code cannot promise it. 0: they are all there are. Requires: batch == 1.
  int64_t whole_rows = 0, first_row = 0;
  bool only_asks = false;  // nothing is done; the same status. For parts alone
};

// Errors: kInvalidArgument, if it breaks a rule above that can be seen without looking at memory.
absl::Status ValidateGemm(const GemmProblem& gemm);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_GEMM_H_
