// The arguments of scan.h's kernel.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SCAN_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SCAN_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels {

// So many elements are summed one after the other: y = ((P + x0) + x1) + ..., where P is the sum of
// earlier chunks, each summed from 0. So processors and GPUs get the same bits.
inline constexpr int64_t kScanChunk = 128;

struct CumSumArgs {
  DType dtype;
  bool reverse;
  int64_t outer, n, inner;
  int64_t x_outer_stride, y_outer_stride;  // in elements
  const void *x, *start;                   // start may be null
  void* y;
};
static_assert(std::is_trivially_copyable_v<CumSumArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SCAN_ARGS_H_
