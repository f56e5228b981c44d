// How matrix libraries describe the matrices of a GemmProblem.
#ifndef DTENSOR_RUNTIME_DEVICE_GEMM_OPERAND_H_
#define DTENSOR_RUNTIME_DEVICE_GEMM_OPERAND_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "dtensor/runtime/device/gemm.h"

namespace dtensor {

// Strides of a row-major (column == 1) or column-major (row == 1) matrix. The stride along a
// dimension of size 1 has no effect on the result, but may affect a library's choice of code, so it
// is set to what a matrix without gaps would have. `batch` is 0 for a batch of one.
struct OperandStrides {
  int64_t row = 0, column = 0, batch = 0;
  bool row_major() const { return column == 1; }
  int64_t leading() const { return row_major() ? row : column; }  // from line to line

  friend bool operator==(const OperandStrides&, const OperandStrides&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const OperandStrides& s) {
    return H::combine(std::move(h), s.row, s.column, s.batch);
  }
};

// Null if the matrix is neither row-major nor column-major.
inline std::optional<OperandStrides> StridesOf(const GemmMatrix& x, int64_t rows, int64_t columns,
                                               int64_t batch) {
  OperandStrides s{x.row_stride, x.col_stride, batch == 1 ? 0 : x.batch_stride};
  if (columns == 1) s.column = 1;
  if (rows == 1) s.row = s.column == 1 ? columns : 1;
  const bool row_major = s.column == 1 && s.row >= columns;
  const bool column_major = s.row == 1 && s.column >= rows;
  if (!row_major && !column_major) return std::nullopt;
  return s;
}

// A batch of products with one B is turned into one product with a taller A, if the rows of the
// batch's matrices follow one another.
inline GemmProblem WithoutNeedlessBatch(GemmProblem p) {
  const bool follow = p.b.batch_stride == 0 && p.a.batch_stride == p.m * p.a.row_stride &&
                      p.c.batch_stride == p.m * p.c.row_stride;
  if (p.batch == 1 || !follow) return p;
  p.m *= p.batch;
  p.batch = 1;
  return p;
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_GEMM_OPERAND_H_
