// The flat arguments of norm.h's kernels. Outputs are row-major.
//
// If `stats` has shards, they are the statistics of P shards, one shard after the other, and row by
// row in each. If it has none, the local rows are complete, and the kernel computes their
// statistics.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// P shards' statistics, row-major.
struct ShardStatsInput {
  const void* data = nullptr;
  int64_t shards = 0;  // 0: there are none
  int64_t rows = 0;
};

struct RmsNormArgs {
  DType dtype;
  double eps;
  int64_t total;        // elements of a row, on all shards
  RowOperands<1> rows;  // x
  StridedInput weight;
  ShardStatsInput stats;  // sums of squares
  void *y, *rstd;
  int64_t out_bytes;  // of y
  bool in_place;      // y's memory is also x's
};
static_assert(std::is_trivially_copyable_v<RmsNormArgs>);

struct RmsNormGradArgs {
  DType dtype;
  int64_t total;
  RowOperands<2> rows;  // x, dy
  StridedInput weight, rstd;
  ShardStatsInput stats;  // sum(dy * weight * x)
  void *dx, *dweight;
  int64_t out_bytes;  // of dx
  bool in_place;      // dx's memory is also x's or dy's
};
static_assert(std::is_trivially_copyable_v<RmsNormGradArgs>);

struct RowSquaresArgs {
  DType dtype;
  RowOperands<1> rows;  // x
  void* squares;
};
static_assert(std::is_trivially_copyable_v<RowSquaresArgs>);

struct RmsNormGradDotsArgs {
  DType dtype;
  RowOperands<2> rows;  // x, dy
  StridedInput weight;
  void* dots;
};
static_assert(std::is_trivially_copyable_v<RmsNormGradDotsArgs>);

struct LayerNormArgs {
  DType dtype;
  double eps;
  RowOperands<1> rows;  // x
  StridedInput weight, bias;
  ShardStatsInput stats;  // f64: (count, mean, squares about the mean)
  void *y, *mean, *rstd;
  int64_t out_bytes;  // of y
  bool in_place;      // y's memory is also x's
};
static_assert(std::is_trivially_copyable_v<LayerNormArgs>);

struct LayerNormGradArgs {
  DType dtype;
  int64_t total;
  RowOperands<2> rows;  // x, dy
  StridedInput weight, mean, rstd;
  ShardStatsInput stats;  // (sum(dy * weight), sum(dy * weight * xhat))
  void *dx, *dweight, *dbias;
  int64_t out_bytes;  // of dx
  bool in_place;      // dx's memory is also x's or dy's
};
static_assert(std::is_trivially_copyable_v<LayerNormGradArgs>);

struct RowMomentsArgs {
  DType dtype;
  RowOperands<1> rows;  // x
  double* moments;
};
static_assert(std::is_trivially_copyable_v<RowMomentsArgs>);

struct LayerNormGradSumsArgs {
  DType dtype;
  RowOperands<2> rows;  // x, dy
  StridedInput weight, mean, rstd;
  void* sums;
};
static_assert(std::is_trivially_copyable_v<LayerNormGradSumsArgs>);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORM_ARGS_H_
