#include "dtensor/runtime/kernels/cuda/target_mean.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const TargetMeanStatsArgs& args) {
  return {.bytes = BytesOf(args.loss) + BytesOf(args.targets) + Bytes(2, DType::kF64)};
}

KernelWork WorkOf(const TargetMeanMergeArgs& args) {
  return {.bytes = BytesOf(args.stats) + Bytes(1, args.dtype) + Bytes(1, DType::kF64)};
}

KernelWork WorkOf(const TargetMeanGradArgs& args) {
  return {.bytes = BytesOf(args.targets) + BytesOf(args.count) + BytesOf(args.dmean) +
                   Bytes(static_cast<double>(args.rows), args.dtype)};
}

constexpr ByDevice<TargetMeanStatsArgs> kStats = {.name = "TargetMeanStats",
                                                  .host = cpu::TargetMeanStats,
                                                  .cuda = DT_ON_CUDA(cuda::TargetMeanStats),
                                                  .work = WorkOf};
constexpr ByDevice<TargetMeanMergeArgs> kMerge = {.name = "TargetMeanMerge",
                                                  .host = cpu::TargetMeanMerge,
                                                  .cuda = DT_ON_CUDA(cuda::TargetMeanMerge),
                                                  .work = WorkOf};
constexpr ByDevice<TargetMeanGradArgs> kGrad = {.name = "TargetMeanGrad",
                                                .host = cpu::TargetMeanGrad,
                                                .cuda = DT_ON_CUDA(cuda::TargetMeanGrad),
                                                .work = WorkOf};

void CheckLosses(const Tensor& loss, const Tensor& targets) {
  DT_CHECK(loss.dtype() == DType::kF32 || loss.dtype() == DType::kF64);
  DT_CHECK(loss.ndim() == 1 && targets.ndim() == 1 && loss.size(0) == targets.size(0));
  DT_CHECK(targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64);
}

}  // namespace

absl::Status TargetMeanStats(Device& device, const Tensor& loss, const Tensor& targets,
                             int64_t ignore, const Tensor& stats) {
  CheckLosses(loss, targets);
  DT_CHECK(stats.numel() == 2 && stats.dtype() == DType::kF64 && stats.is_contiguous());
  return kStats.Run(device, {loss.dtype(), targets.dtype()},
                    {.dtype = loss.dtype(),
                     .id_dtype = targets.dtype(),
                     .loss = StridedInput(loss),
                     .targets = StridedInput(targets),
                     .rows = targets.numel(),
                     .ignore = ignore,
                     .stats = stats.data<double>()});
}

absl::Status TargetMeanMerge(Device& device, const Tensor& stats, const Tensor& mean,
                             const Tensor& count) {
  DT_CHECK(stats.ndim() == 2 && stats.size(1) == 2 && stats.dtype() == DType::kF64);
  DT_CHECK(mean.numel() == 1 && (mean.dtype() == DType::kF32 || mean.dtype() == DType::kF64));
  DT_CHECK(count.numel() == 1 && count.dtype() == DType::kF64);
  return kMerge.Run(device, {mean.dtype()},
                    {.dtype = mean.dtype(),
                     .stats = StridedInput(stats),
                     .shards = stats.size(0),
                     .mean = mean.raw(),
                     .count = count.data<double>()});
}

absl::Status TargetMeanGrad(Device& device, const Tensor& targets, int64_t ignore,
                            const Tensor& count, const Tensor& dmean, const Tensor& dloss) {
  CheckLosses(dloss, targets);
  DT_CHECK(dloss.is_contiguous());
  DT_CHECK(count.numel() == 1 && count.dtype() == DType::kF64);
  DT_CHECK(dmean.numel() == 1 && dmean.dtype() == dloss.dtype());
  return kGrad.Run(device, {dloss.dtype(), targets.dtype()},
                   {.dtype = dloss.dtype(),
                    .id_dtype = targets.dtype(),
                    .targets = StridedInput(targets),
                    .count = StridedInput(count),
                    .dmean = StridedInput(dmean),
                    .rows = targets.numel(),
                    .ignore = ignore,
                    .dloss = dloss.raw()});
}

}  // namespace dtensor::kernels
