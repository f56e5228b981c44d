#include "dtensor/runtime/kernels/cuda/cross_entropy.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

// The bytes of `each` numbers for each row.
double BytesOfRows(int64_t rows, double each, DType dtype) {
  return Bytes(static_cast<double>(rows) * each, dtype);
}

KernelWork WorkOf(const CrossEntropyStatsArgs& args) {
  return {.bytes =
              BytesOf(args.logits) + BytesOf(args.targets) +
              BytesOfRows(args.rows, static_cast<double>(args.width), AccumulatorOf(args.dtype))};
}

KernelWork WorkOf(const CrossEntropyMergeArgs& args) {
  return {.bytes =
              BytesOf(args.stats) + BytesOf(args.targets) + BytesOfRows(args.rows, 3, args.dtype)};
}

KernelWork WorkOf(const CrossEntropyGradArgs& args) {
  return {.bytes = BytesOf(args.logits) + BytesOf(args.targets) + BytesOf(args.max) +
                   BytesOf(args.log_sum) + BytesOf(args.dloss) +
                   BytesOfRows(args.rows, static_cast<double>(args.width), args.dtype)};
}

constexpr ByDevice<CrossEntropyStatsArgs> kStats = {.name = "CrossEntropy",
                                                    .host = cpu::CrossEntropyStats,
                                                    .cuda = DT_ON_CUDA(cuda::CrossEntropyStats),
                                                    .work = WorkOf};
constexpr ByDevice<CrossEntropyMergeArgs> kMerge = {.name = "CrossEntropyMerge",
                                                    .host = cpu::CrossEntropyMerge,
                                                    .cuda = DT_ON_CUDA(cuda::CrossEntropyMerge),
                                                    .work = WorkOf};
constexpr ByDevice<CrossEntropyGradArgs> kGrad = {.name = "CrossEntropyGrad",
                                                  .host = cpu::CrossEntropyGrad,
                                                  .cuda = DT_ON_CUDA(cuda::CrossEntropyGrad),
                                                  .work = WorkOf};

void CheckLogits(const Tensor& logits, const Tensor& targets, const IndexSet& classes) {
  DT_CHECK(logits.ndim() == 2 && IsFloat(logits.dtype()));
  DT_CHECK(logits.size(1) >= classes.size());
  DT_CHECK(targets.ndim() == 1 && targets.size(0) == logits.size(0));
  DT_CHECK(targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64);
}

void CheckPerRow(const Tensor& values, DType dtype, int64_t rows) {
  DT_CHECK(values.ndim() == 1 && values.size(0) == rows && values.dtype() == dtype);
}

RowOperands<1> WithoutPadding(const Tensor& logits, const IndexSet& classes) {
  const Tensor real = logits.Narrow(1, 0, classes.size());
  return RowOperands<1>({&real});
}

}  // namespace

absl::Status CrossEntropyStats(Device& device, const Tensor& logits, const Tensor& targets,
                               const IndexSet& classes, const CrossEntropyTerms& terms,
                               const Tensor& stats) {
  CheckLogits(logits, targets, classes);
  DT_CHECK(stats.ndim() == 2 && stats.size(0) == logits.size(0));
  DT_CHECK(stats.size(1) == terms.num_stats());
  DT_CHECK(stats.dtype() == AccumulatorOf(logits.dtype()) && stats.is_contiguous());
  return kStats.Run(device, {logits.dtype(), targets.dtype()},
                    {.dtype = logits.dtype(),
                     .id_dtype = targets.dtype(),
                     .logits = WithoutPadding(logits, classes),
                     .targets = StridedInput(targets),
                     .rows = targets.numel(),
                     .classes = IndexLookup(classes),
                     .num_classes = terms.num_classes,
                     .ignore = terms.ignore,
                     .width = terms.num_stats(),
                     .stats = stats.raw()});
}

absl::Status CrossEntropyMerge(Device& device, const Tensor& stats, const Tensor& targets,
                               const CrossEntropyTerms& terms, const LogSumExp& lse,
                               const Tensor& loss) {
  DT_CHECK(stats.ndim() == 3 && stats.size(1) == targets.numel());
  DT_CHECK(stats.size(2) == terms.num_stats());
  for (const Tensor& result : {lse.max, lse.log_sum, loss}) {
    CheckPerRow(result, stats.dtype(), targets.numel());
    DT_CHECK(result.is_contiguous());
  }
  return kMerge.Run(device, {stats.dtype(), targets.dtype()},
                    {.dtype = stats.dtype(),
                     .id_dtype = targets.dtype(),
                     .stats = StridedInput(stats),
                     .targets = StridedInput(targets),
                     .shards = stats.size(0),
                     .rows = stats.size(1),
                     .width = terms.num_stats(),
                     .num_classes = terms.num_classes,
                     .ignore = terms.ignore,
                     .label_smoothing = terms.label_smoothing,
                     .max = lse.max.raw(),
                     .log_sum = lse.log_sum.raw(),
                     .loss = loss.raw()});
}

absl::Status CrossEntropyGrad(Device& device, const Tensor& logits, const Tensor& targets,
                              const IndexSet& classes, const CrossEntropyTerms& terms,
                              const LogSumExp& lse, const Tensor& dloss, const Tensor& dlogits) {
  CheckLogits(logits, targets, classes);
  for (const Tensor& values : {lse.max, lse.log_sum, dloss}) {
    CheckPerRow(values, AccumulatorOf(logits.dtype()), logits.size(0));
  }
  DT_CHECK(dlogits.shape() == logits.shape() && dlogits.dtype() == logits.dtype());
  DT_CHECK(dlogits.is_contiguous());
  return kGrad.Run(device, {logits.dtype(), targets.dtype()},
                   {.dtype = logits.dtype(),
                    .id_dtype = targets.dtype(),
                    .logits = WithoutPadding(logits, classes),
                    .targets = StridedInput(targets),
                    .max = StridedInput(lse.max),
                    .log_sum = StridedInput(lse.log_sum),
                    .dloss = StridedInput(dloss),
                    .rows = targets.numel(),
                    .classes = IndexLookup(classes),
                    .num_classes = terms.num_classes,
                    .ignore = terms.ignore,
                    .label_smoothing = terms.label_smoothing,
                    .width = dlogits.size(1),
                    .dlogits = dlogits.raw()});
}

}  // namespace dtensor::kernels
