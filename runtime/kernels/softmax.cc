#include "dtensor/runtime/kernels/softmax.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/softmax.h"
#include "dtensor/runtime/kernels/cuda/softmax.h"
#include "dtensor/runtime/kernels/row_checks.h"

namespace dtensor::kernels {
namespace {

using internal::CheckRows;
using internal::CheckRowStats;
using internal::CheckShardStats;
using internal::NumRows;

// The bytes of one tensor with the rows' shape: the result.
template <int kIn>
double BytesOfResult(const RowOperands<kIn>& rows, DType dtype) {
  return Bytes(Iterations(rows.loop) * static_cast<double>(rows.n), dtype);
}

// The bytes of `each` numbers for each row.
template <int kIn>
double BytesOfStats(const RowOperands<kIn>& rows, double each, DType dtype) {
  return Bytes(Iterations(rows.loop) * each, AccumulatorOf(dtype));
}

KernelWork WorkOf(const SoftmaxArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfResult(args.rows, args.dtype)};
}

KernelWork WorkOf(const SoftmaxGradArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfResult(args.rows, args.dtype)};
}

KernelWork WorkOf(const SoftmaxStatsArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfStats(args.rows, 2, args.dtype)};
}

KernelWork WorkOf(const SoftmaxMergeArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOf(args.stats) + BytesOfResult(args.rows, args.dtype)};
}

KernelWork WorkOf(const SoftmaxGradSumsArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfStats(args.rows, 1, args.dtype)};
}

KernelWork WorkOf(const SoftmaxGradMergeArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOf(args.sums) + BytesOfResult(args.rows, args.dtype)};
}

constexpr ByDevice<SoftmaxArgs> kSoftmax = {
    .name = "Softmax", .host = cpu::Softmax, .cuda = DT_ON_CUDA(cuda::Softmax), .work = WorkOf};
constexpr ByDevice<SoftmaxGradArgs> kSoftmaxGrad = {.name = "SoftmaxGrad",
                                                    .host = cpu::SoftmaxGrad,
                                                    .cuda = DT_ON_CUDA(cuda::SoftmaxGrad),
                                                    .work = WorkOf};
constexpr ByDevice<SoftmaxStatsArgs> kStats = {.name = "SoftmaxStats",
                                               .host = cpu::SoftmaxStats,
                                               .cuda = DT_ON_CUDA(cuda::SoftmaxStats),
                                               .work = WorkOf};
constexpr ByDevice<SoftmaxMergeArgs> kMerge = {.name = "SoftmaxMerge",
                                               .host = cpu::SoftmaxMerge,
                                               .cuda = DT_ON_CUDA(cuda::SoftmaxMerge),
                                               .work = WorkOf};
constexpr ByDevice<SoftmaxGradSumsArgs> kGradSums = {.name = "SoftmaxGradSums",
                                                     .host = cpu::SoftmaxGradSums,
                                                     .cuda = DT_ON_CUDA(cuda::SoftmaxGradSums),
                                                     .work = WorkOf};
constexpr ByDevice<SoftmaxGradMergeArgs> kGradMerge = {.name = "SoftmaxGradMerge",
                                                       .host = cpu::SoftmaxGradMerge,
                                                       .cuda = DT_ON_CUDA(cuda::SoftmaxGradMerge),
                                                       .work = WorkOf};

void CheckLike(const Tensor& y, const Tensor& dy) {
  DT_CHECK(dy.shape() == y.shape() && dy.dtype() == y.dtype());
}

}  // namespace

absl::Status Softmax(Device& device, SoftmaxForm form, const Tensor& x, const Tensor& y) {
  CheckRows(x, y);
  return kSoftmax.Run(device, {x.dtype()}, {x.dtype(), form, RowOperands<1>({&x}), y.raw()});
}

absl::Status SoftmaxGrad(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                         const Tensor& dx) {
  CheckRows(y, dx);
  CheckLike(y, dy);
  return kSoftmaxGrad.Run(device, {y.dtype()},
                          {y.dtype(), form, RowOperands<2>({&y, &dy}), dx.raw()});
}

absl::Status SoftmaxStats(Device& device, const Tensor& x, const Tensor& stats) {
  CheckRowStats(x, stats, {2});
  DT_CHECK(stats.is_contiguous());
  return kStats.Run(device, {x.dtype()}, {x.dtype(), RowOperands<1>({&x}), stats.raw()});
}

absl::Status SoftmaxMerge(Device& device, SoftmaxForm form, const Tensor& x, const Tensor& stats,
                          const Tensor& y) {
  CheckRows(x, y);
  CheckShardStats(x, stats, {2});
  return kMerge.Run(device, {x.dtype()},
                    {.dtype = x.dtype(),
                     .form = form,
                     .rows = RowOperands<1>({&x}),
                     .stats = StridedInput(stats),
                     .shards = stats.size(0),
                     .num_rows = NumRows(x),
                     .y = y.raw()});
}

absl::Status SoftmaxGradSums(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                             const Tensor& sums) {
  CheckRowStats(y, sums);
  CheckLike(y, dy);
  DT_CHECK(sums.is_contiguous());
  return kGradSums.Run(device, {y.dtype()},
                       {y.dtype(), form, RowOperands<2>({&y, &dy}), sums.raw()});
}

absl::Status SoftmaxGradMerge(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                              const Tensor& sums, const Tensor& dx) {
  CheckRows(y, dx);
  CheckLike(y, dy);
  CheckShardStats(y, sums);
  return kGradMerge.Run(device, {y.dtype()},
                        {.dtype = y.dtype(),
                         .form = form,
                         .rows = RowOperands<2>({&y, &dy}),
                         .sums = StridedInput(sums),
                         .shards = sums.size(0),
                         .num_rows = NumRows(y),
                         .dx = dx.raw()});
}

}  // namespace dtensor::kernels
