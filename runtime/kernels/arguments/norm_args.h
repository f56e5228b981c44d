// The flat arguments of norm.h's kernels. Outputs are row-major.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

struct SoftmaxArgs {
  DType dtype;
  RowOperands<1> rows;  // x
  void* y;
};
static_assert(std::is_trivially_copyable_v<SoftmaxArgs>);

struct SoftmaxGradArgs {
  DType dtype;
  RowOperands<2> rows;  // y, dy
  void* dx;
};
static_assert(std::is_trivially_copyable_v<SoftmaxGradArgs>);

struct RmsNormArgs {
  DType dtype;
  double eps;
  RowOperands<1> rows;  // x
  StridedInput weight;
  void *y, *rstd;
  int64_t out_bytes;  // of y
  bool in_place;      // y's memory is also x's
};
static_assert(std::is_trivially_copyable_v<RmsNormArgs>);

struct RmsNormGradArgs {
  DType dtype;
  RowOperands<2> rows;  // x, dy
  StridedInput weight, rstd;
  void *dx, *dweight;
  int64_t out_bytes;  // of dx
  bool in_place;      // dx's memory is also x's or dy's
};
static_assert(std::is_trivially_copyable_v<RmsNormGradArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_
