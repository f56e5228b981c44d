// How operands are passed to kernels along the last dimension: as rows of contiguous elements.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ROW_SHAPE_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ROW_SHAPE_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::simd {

// `rows` rows of `n` elements. `stream`: outputs are written past the caches (streaming.h).
struct RowShape {
  DType dtype;
  int64_t rows, n;
  bool stream = false;
};

// Rows in memory, `stride` elements apart.
struct InputRows {
  const void* data;
  int64_t stride;
};

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ROW_SHAPE_H_
