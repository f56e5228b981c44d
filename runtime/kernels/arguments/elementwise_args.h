// The flat arguments of elementwise.h's kernels.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_ARGS_H_

#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

struct BinaryArgs {
  BinaryOp op;
  DType dtype;
  StridedOperands<2, 1> operands;  // a, b; out
};
static_assert(std::is_trivially_copyable_v<BinaryArgs>);

struct UnaryArgs {
  UnaryOp op;
  DType from, to;
  StridedOperands<1, 1> operands;
};
static_assert(std::is_trivially_copyable_v<UnaryArgs>);

struct AffineArgs {
  DType dtype;
  double scale, shift;
  StridedOperands<1, 1> operands;
};
static_assert(std::is_trivially_copyable_v<AffineArgs>);

struct FillArgs {
  DType dtype;
  double value;
  void* out;
  StridedLoop<1> loop;  // over out
};
static_assert(std::is_trivially_copyable_v<FillArgs>);

// Operands of one float type.
template <int kIn, int kOut>
struct FloatArgs {
  DType dtype;
  StridedOperands<kIn, kOut> operands;
};
using SiluGradArgs = FloatArgs<2, 1>;     // x, dy; dx
using SiluMulArgs = FloatArgs<2, 1>;      // gate, up; y
using SiluMulGradArgs = FloatArgs<3, 2>;  // gate, up, dy; dgate, dup
static_assert(std::is_trivially_copyable_v<SiluMulGradArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_ARGS_H_
