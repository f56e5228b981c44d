// Where kernels along the last dimension write their results: rows, and sums over rows.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_OUTPUT_ROWS_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_OUTPUT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"

namespace dtensor::kernels::cpu {

// Row-major memory of one kernel's output, addressed by row.
struct OutputRows {
  OutputRows(void* output, DType dtype, int64_t n)
      : data(static_cast<std::byte*>(output)), row_bytes(n * SizeOf(dtype)) {}
  void* Row(int64_t r) const { return row_bytes == 0 ? data : data + r * row_bytes; }
  std::byte* data;
  int64_t row_bytes;
};

// Sums of many rows, element by element: the rows of a block are added one by one, and then the
// block is added to the total. So the accuracy lost in f32 grows with the number of blocks, not of
// rows.
class RowSums {
 public:
  static constexpr int64_t kBlock = 256;  // rows

  RowSums(DType accumulator, int64_t n)
      : accumulator_(accumulator), n_(n), block_(n * SizeOf(accumulator)), total_(block_.size()) {}

  void* block() { return block_.data(); }
  void Added(int64_t rows) {
    rows_ += rows;
    if (rows_ >= kBlock) EndBlock();
  }
  const void* Total() {
    EndBlock();
    return total_.data();
  }

 private:
  void EndBlock() {
    simd::ReduceInto(ReduceOp::kSum, accumulator_, block_.data(), total_.data(), n_);
    std::fill(block_.begin(), block_.end(), std::byte{0});
    rows_ = 0;
  }

  DType accumulator_;
  int64_t n_, rows_ = 0;
  std::vector<std::byte> block_, total_;
};

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_OUTPUT_ROWS_H_
