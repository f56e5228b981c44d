#include "dtensor/runtime/device/gemm.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

bool Is16BitFloat(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool HasNegativeStride(const GemmMatrix& x) {
  return x.row_stride < 0 || x.col_stride < 0 || x.batch_stride < 0;
}

std::string Describe(const GemmProblem& p) {
  return absl::StrCat("product of ", p.batch, " x (", p.m, ", ", p.k, ") and (", p.k, ", ", p.n,
                      ") in ", ToString(p.dtype), " to ", ToString(p.out_dtype));
}

// Checks that no two elements of C are at the same place, and that its rows are contiguous.
bool IsRowMajor(const GemmProblem& p) {
  if (p.n > 1 && p.c.col_stride != 1) return false;
  const bool rows = p.m <= 1 || p.c.row_stride >= p.n;
  // The matrices are separate, or interleaved: rows of one between the rows of another.
  const bool matrices = p.batch <= 1 || p.c.batch_stride >= (p.m - 1) * p.c.row_stride + p.n ||
                        (p.c.batch_stride >= p.n &&
                         (p.m <= 1 || p.c.row_stride >= (p.batch - 1) * p.c.batch_stride + p.n));
  return rows && matrices;
}

}  // namespace

absl::Status ValidateGemm(const GemmProblem& p) {
  if (p.batch < 0 || p.m < 0 || p.n < 0 || p.k < 0) {
    return InvalidArgument({Describe(p), ": a size is negative"});
  }
  if (p.dtype == DType::kBool) {
    return InvalidArgument({Describe(p), ": bool has no product; convert it to i32 first"});
  }
  if (p.out_dtype != p.dtype && !(Is16BitFloat(p.dtype) && p.out_dtype == DType::kF32)) {
    return InvalidArgument(
        {Describe(p), ": the result has the operands' type, or f32 for bf16 and f16"});
  }
  if (HasNegativeStride(p.a) || HasNegativeStride(p.b) || HasNegativeStride(p.c)) {
    return InvalidArgument({Describe(p), ": a stride is negative"});
  }
  const bool is_part = p.whole_rows != 0;
  if (is_part && (p.batch != 1 || p.first_row < 0 || p.first_row + p.m > p.whole_rows)) {
    return InvalidArgument({Describe(p), ": rows from ", absl::StrCat(p.first_row),
                            " on are no part of ", absl::StrCat(p.whole_rows),
                            " rows of one product"});
  }
  const bool empty = p.batch == 0 || p.m == 0 || p.n == 0;
  if (!empty && !IsRowMajor(p)) {
    return InvalidArgument({Describe(p), ": the result must be row-major, without overlap"});
  }
  return absl::OkStatus();
}

}  // namespace dtensor
