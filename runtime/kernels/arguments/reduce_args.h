// The flat arguments of reduce.h's kernels.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_REDUCE_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_REDUCE_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

struct ReduceArgs {
  ReduceOp op;
  DType dtype, out_dtype;
  const void* x;
  void* out;
  int64_t outputs;
  StridedLoop<1> kept, reduced;  // over x: the output's dimensions, and the others
  double divisor = 1;            // of the results; floats only
};
static_assert(std::is_trivially_copyable_v<ReduceArgs>);

struct SumOfSquaresArgs {
  DType dtype;
  StridedOperands<1, 0> x;
  void* out;
};
static_assert(std::is_trivially_copyable_v<SumOfSquaresArgs>);

struct BincountArgs {
  DType id_dtype, dtype;  // of counts
  StridedInput ids;
  int64_t num_ids, bins;
  void* counts;
};
static_assert(std::is_trivially_copyable_v<BincountArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_REDUCE_ARGS_H_
