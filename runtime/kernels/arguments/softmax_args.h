// The flat arguments of softmax.h's kernels. Outputs are row-major. Statistics of P shards are
// stored one shard after the other, and row by row in each.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SOFTMAX_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SOFTMAX_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

enum class SoftmaxForm : uint8_t { kPlain, kLog };

struct SoftmaxArgs {
  DType dtype;
  SoftmaxForm form;
  RowOperands<1> rows;  // x
  void* y;
};
static_assert(std::is_trivially_copyable_v<SoftmaxArgs>);

struct SoftmaxGradArgs {
  DType dtype;
  SoftmaxForm form;
  RowOperands<2> rows;  // y, dy
  void* dx;
};
static_assert(std::is_trivially_copyable_v<SoftmaxGradArgs>);

struct SoftmaxStatsArgs {
  DType dtype;
  RowOperands<1> rows;  // x
  void* stats;
};
static_assert(std::is_trivially_copyable_v<SoftmaxStatsArgs>);

struct SoftmaxMergeArgs {
  DType dtype;
  SoftmaxForm form;
  RowOperands<1> rows;  // x
  StridedInput stats;
  int64_t shards, num_rows;
  void* y;
};
static_assert(std::is_trivially_copyable_v<SoftmaxMergeArgs>);

struct SoftmaxGradSumsArgs {
  DType dtype;
  SoftmaxForm form;
  RowOperands<2> rows;  // y, dy
  void* sums;
};
static_assert(std::is_trivially_copyable_v<SoftmaxGradSumsArgs>);

struct SoftmaxGradMergeArgs {
  DType dtype;
  SoftmaxForm form;
  RowOperands<2> rows;  // y, dy
  StridedInput sums;
  int64_t shards, num_rows;
  void* dx;
};
static_assert(std::is_trivially_copyable_v<SoftmaxGradMergeArgs>);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_SOFTMAX_ARGS_H_
