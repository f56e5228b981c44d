// The flat arguments of the kernels of elementwise.h and comparison.h.
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

// Only the first `terms` inputs are used.
struct AddNArgs {
  DType dtype;
  int terms;
  StridedOperands<8, 1> operands;
};
static_assert(std::is_trivially_copyable_v<AddNArgs>);

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

struct CompareArgs {
  CompareOp op;  // not kGreater, kGreaterEqual
  DType dtype;
  StridedOperands<2, 1> operands;  // a, b; out
};
static_assert(std::is_trivially_copyable_v<CompareArgs>);

struct WhereArgs {
  StridedOperands<3, 1> operands;  // condition, a, b; out
};
static_assert(std::is_trivially_copyable_v<WhereArgs>);

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
using SiluMulArgs = FloatArgs<2, 1>;      // gate, up; y
using SiluMulGradArgs = FloatArgs<3, 2>;  // gate, up, dy; dgate, dup
static_assert(std::is_trivially_copyable_v<SiluMulGradArgs>);

template <int kIn, int kOut>
struct ClampedArgs {
  DType dtype;
  double slope, limit;
  StridedOperands<kIn, kOut> operands;
};
using ClampedSwiGluArgs = ClampedArgs<2, 1>;      // gate, up; y
using ClampedSwiGluGradArgs = ClampedArgs<3, 2>;  // gate, up, dy; dgate, dup
static_assert(std::is_trivially_copyable_v<ClampedSwiGluGradArgs>);

struct PowArgs {
  DType dtype;
  double exponent;
  StridedOperands<1, 1> operands;
};
static_assert(std::is_trivially_copyable_v<PowArgs>);

struct PowGradArgs {
  DType dtype;
  double exponent;
  StridedOperands<2, 1> operands;  // x, dy; dx
};
static_assert(std::is_trivially_copyable_v<PowGradArgs>);

struct UnaryGradArgs {
  UnaryOp op;
  DType dtype;
  StridedOperands<2, 1> operands;  // operand or result, dy; dx
};
static_assert(std::is_trivially_copyable_v<UnaryGradArgs>);

struct BinaryGradArgs {
  BinaryOp op;
  int operand;
  DType dtype;
  StridedOperands<3, 1> operands;  // a, b, dy; dx
};
static_assert(std::is_trivially_copyable_v<BinaryGradArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_ARGS_H_
