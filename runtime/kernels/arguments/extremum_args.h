// The arguments of extremum.h's kernels. Outputs are row-major. Flat, except for the index set.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_EXTREMUM_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_EXTREMUM_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

struct ArgMaxStatsArgs {
  DType dtype;
  const void* x;
  StridedLoop<1> kept;
  int64_t n, stride;  // along the dimension
  IndexSet indices;
  int64_t* stats;
};

struct ArgMaxMergeArgs {
  StridedInput stats;
  int64_t shards, rows;
  int64_t* out;
};
static_assert(std::is_trivially_copyable_v<ArgMaxMergeArgs>);

struct CountTiesArgs {
  DType dtype;
  const void *x, *extremum;
  StridedLoop<3> loop;  // over x: x, and extremum and count broadcast to it
  int64_t outputs;
  int64_t* count;
};
static_assert(std::is_trivially_copyable_v<CountTiesArgs>);

struct ShareAmongTiesArgs {
  DType dtype;
  StridedOperands<4, 1> operands;  // x; extremum, dy and count broadcast to it; dx
};
static_assert(std::is_trivially_copyable_v<ShareAmongTiesArgs>);

struct TopKArgs {
  DType dtype;
  RowOperands<1> rows;  // x
  int64_t k;
  void* values;
  int64_t* indices;
};
static_assert(std::is_trivially_copyable_v<TopKArgs>);

struct TakeArgs {
  DType dtype;
  RowOperands<2> rows;  // indices, x
  int64_t n;            // elements of a row of x
  void* y;
};
static_assert(std::is_trivially_copyable_v<TakeArgs>);

struct TakeGradArgs {
  DType dtype;
  RowOperands<2> rows;  // indices, dy
  int64_t n;            // elements of a row of dx
  void* dx;
  int64_t dx_bytes;
};
static_assert(std::is_trivially_copyable_v<TakeGradArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_EXTREMUM_ARGS_H_
