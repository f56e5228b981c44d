// The arguments of indexed.h's kernels. Outputs are row-major.
//
// They are flat except for index sets, which are lists, stored directly or as an IndexLookup or
// GlobalRuns: a device with memory of its own needs tables of them there.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEXED_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEXED_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/arguments/global_runs.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/arguments/rope_frequency.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

// --- embedding

// Rows of `n` elements of `size` bytes.
struct TableRows {
  const std::byte* data;
  int64_t size, n, row_stride, stride;  // strides in elements
};

struct EmbeddingArgs {
  DType id_dtype;
  StridedInput ids;
  int64_t tokens;
  TableRows table;
  IndexLookup rows;
  int64_t num_rows;
  void* y;
};

struct EmbeddingGradArgs {
  DType dtype, id_dtype;
  StridedInput ids, dy;
  int64_t tokens;
  IndexLookup rows;
  int64_t num_rows, d;  // of dtable
  void* dtable;
};

// --- rope

// x: tokens of [heads, d] elements of `size` bytes.
struct RopeArgs {
  DType dtype;
  IndexSet positions;
  RopeBase base;
  bool inverse;
  int64_t size, heads, d, head_stride, stride;  // strides in elements
  StridedLoop<1> tokens;
  int64_t length;  // positions of each sequence
  int64_t numel;
  const std::byte* x;
  std::byte* y;
};

// --- cross-entropy

// The logits without padding.
struct CrossEntropyStatsArgs {
  DType dtype, id_dtype;
  RowOperands<1> logits;
  StridedInput targets;
  int64_t rows;
  IndexLookup classes;
  int64_t num_classes, ignore;
  int64_t width;  // of a row of statistics: 3, or 5 if labels are smoothed
  void* stats;
};

struct CrossEntropyMergeArgs {
  DType dtype, id_dtype;
  StridedInput stats, targets;
  int64_t shards, rows, width, num_classes, ignore;
  double label_smoothing;
  void *max, *log_sum, *loss;
};

struct CrossEntropyGradArgs {
  DType dtype, id_dtype;
  RowOperands<1> logits;
  StridedInput targets, max, log_sum, dloss;
  int64_t rows;
  IndexLookup classes;
  int64_t num_classes, ignore;
  double label_smoothing;
  int64_t width;  // of a row of dlogits
  void* dlogits;
};

struct TargetMeanStatsArgs {
  DType dtype, id_dtype;
  StridedInput loss, targets;
  int64_t rows, ignore;
  double* stats;
};

struct TargetMeanMergeArgs {
  DType dtype;
  StridedInput stats;
  int64_t shards;
  void* mean;
  double* count;
};

struct TargetMeanGradArgs {
  DType dtype, id_dtype;
  StridedInput targets, count, dmean;
  int64_t rows, ignore;
  void* dloss;
};

// --- random numbers

struct RandomKey {
  uint64_t seed, stream;
};

struct RandomNormalArgs {
  DType dtype;
  GlobalRuns runs;
  RandomKey key;
  double mean, stddev;
  void* out;
};

struct RandomUniformArgs {
  DType dtype;
  GlobalRuns runs;
  RandomKey key;
  void* out;
};

struct DropoutArgs {
  DType dtype;
  StridedInput x;
  GlobalRuns runs;
  RandomKey key;
  uint32_t threshold;  // if a word's upper 24 bits are below it, the element is dropped
  double scale;        // of what is kept
  std::byte* out;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_INDEXED_ARGS_H_
