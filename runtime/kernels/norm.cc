#include "dtensor/runtime/kernels/norm.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/norm_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/norm.h"
#include "dtensor/runtime/kernels/cuda/norm.h"
#include "dtensor/runtime/kernels/row_checks.h"

namespace dtensor::kernels {
namespace {

using internal::CheckRows;
using internal::CheckRowStats;
using internal::CheckWeight;
using internal::ShardStatsOf;

// The bytes of `each` statistics for each row, in the accumulator type.
template <int kIn>
double BytesOfStats(const RowOperands<kIn>& rows, double each, DType dtype) {
  return Bytes(Iterations(rows.loop) * each, AccumulatorOf(dtype));
}

// The same for the statistics of all shards.
double BytesOfStats(const ShardStatsInput& stats, double each, DType dtype) {
  return Bytes(static_cast<double>(stats.shards * stats.rows) * each, AccumulatorOf(dtype));
}

KernelWork WorkOf(const RmsNormArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOf(args.weight) +
                   BytesOfStats(args.stats, 1, args.dtype) + static_cast<double>(args.out_bytes) +
                   BytesOfStats(args.rows, 1, args.dtype)};
}

KernelWork WorkOf(const RowSquaresArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfStats(args.rows, 1, args.dtype)};
}

KernelWork WorkOf(const RmsNormGradArgs& args) {
  return {.bytes = BytesOf(args.rows) + 2 * BytesOf(args.weight) + BytesOf(args.rstd) +
                   BytesOfStats(args.stats, 1, args.dtype) + static_cast<double>(args.out_bytes)};
}

KernelWork WorkOf(const RmsNormGradDotsArgs& args) {
  return {.bytes =
              BytesOf(args.rows) + BytesOf(args.weight) + BytesOfStats(args.rows, 1, args.dtype)};
}

KernelWork WorkOf(const LayerNormArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOf(args.weight) + BytesOf(args.bias) +
                   BytesOfStats(args.stats, 3, DType::kF64) + static_cast<double>(args.out_bytes) +
                   BytesOfStats(args.rows, 2, args.dtype)};
}

KernelWork WorkOf(const RowMomentsArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOfStats(args.rows, 3, DType::kF64)};
}

KernelWork WorkOf(const LayerNormGradArgs& args) {
  return {.bytes = BytesOf(args.rows) + 3 * BytesOf(args.weight) + BytesOf(args.mean) +
                   BytesOf(args.rstd) + BytesOfStats(args.stats, 2, args.dtype) +
                   static_cast<double>(args.out_bytes)};
}

KernelWork WorkOf(const LayerNormGradSumsArgs& args) {
  return {.bytes = BytesOf(args.rows) + BytesOf(args.weight) + BytesOf(args.mean) +
                   BytesOf(args.rstd) + BytesOfStats(args.rows, 2, args.dtype)};
}

constexpr ByDevice<RmsNormArgs> kRmsNorm = {
    .name = "RmsNorm", .host = cpu::RmsNorm, .cuda = DT_ON_CUDA(cuda::RmsNorm), .work = WorkOf};
constexpr ByDevice<RowSquaresArgs> kRowSquares = {.name = "RowSquares",
                                                  .host = cpu::RowSquares,
                                                  .cuda = DT_ON_CUDA(cuda::RowSquares),
                                                  .work = WorkOf};
constexpr ByDevice<RmsNormGradArgs> kRmsNormGrad = {.name = "RmsNormGrad",
                                                    .host = cpu::RmsNormGrad,
                                                    .cuda = DT_ON_CUDA(cuda::RmsNormGrad),
                                                    .work = WorkOf};
constexpr ByDevice<RmsNormGradDotsArgs> kRmsNormGradDots = {
    .name = "RmsNormGradDots",
    .host = cpu::RmsNormGradDots,
    .cuda = DT_ON_CUDA(cuda::RmsNormGradDots),
    .work = WorkOf};
constexpr ByDevice<LayerNormArgs> kLayerNorm = {.name = "LayerNorm",
                                                .host = cpu::LayerNorm,
                                                .cuda = DT_ON_CUDA(cuda::LayerNorm),
                                                .work = WorkOf};
constexpr ByDevice<RowMomentsArgs> kRowMoments = {.name = "RowMoments",
                                                  .host = cpu::RowMoments,
                                                  .cuda = DT_ON_CUDA(cuda::RowMoments),
                                                  .work = WorkOf};
constexpr ByDevice<LayerNormGradArgs> kLayerNormGrad = {.name = "LayerNormGrad",
                                                        .host = cpu::LayerNormGrad,
                                                        .cuda = DT_ON_CUDA(cuda::LayerNormGrad),
                                                        .work = WorkOf};
constexpr ByDevice<LayerNormGradSumsArgs> kLayerNormGradSums = {
    .name = "LayerNormGradSums",
    .host = cpu::LayerNormGradSums,
    .cuda = DT_ON_CUDA(cuda::LayerNormGradSums),
    .work = WorkOf};

int64_t TotalOf(const Tensor& x, const Tensor* stats, int64_t total) {
  return stats == nullptr ? x.shape().back() : total;
}

void CheckLike(const Tensor& x, const Tensor& dy) {
  DT_CHECK(dy.shape() == x.shape() && dy.dtype() == x.dtype());
}

}  // namespace

absl::Status RmsNorm(Device& device, const Tensor& x, const Tensor& weight, double eps,
                     const Tensor& y, const Tensor& rstd, const Tensor* stats, int64_t total) {
  CheckRows(x, y);
  CheckWeight(x, weight);
  CheckRowStats(x, rstd);
  DT_CHECK(rstd.is_contiguous());
  return kRmsNorm.Run(device, {x.dtype()},
                      {.dtype = x.dtype(),
                       .eps = eps,
                       .total = TotalOf(x, stats, total),
                       .rows = RowOperands<1>({&x}),
                       .weight = StridedInput(weight),
                       .stats = ShardStatsOf(x, stats),
                       .y = y.raw(),
                       .rstd = rstd.raw(),
                       .out_bytes = y.bytes(),
                       .in_place = x.SharesStorageWith(y)});
}

absl::Status RowSquares(Device& device, const Tensor& x, const Tensor& squares) {
  CheckRowStats(x, squares);
  DT_CHECK(squares.is_contiguous());
  return kRowSquares.Run(device, {x.dtype()}, {x.dtype(), RowOperands<1>({&x}), squares.raw()});
}

absl::Status RmsNormGrad(Device& device, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                         const Tensor* stats, int64_t total) {
  CheckRows(x, dx);
  CheckWeight(x, weight);
  CheckWeight(x, dweight);
  CheckRowStats(x, rstd);
  CheckLike(x, dy);
  DT_CHECK(dweight.is_contiguous());
  return kRmsNormGrad.Run(device, {x.dtype()},
                          {.dtype = x.dtype(),
                           .total = TotalOf(x, stats, total),
                           .rows = RowOperands<2>({&x, &dy}),
                           .weight = StridedInput(weight),
                           .rstd = StridedInput(rstd),
                           .stats = ShardStatsOf(x, stats),
                           .dx = dx.raw(),
                           .dweight = dweight.raw(),
                           .out_bytes = dx.bytes(),
                           .in_place = x.SharesStorageWith(dx) || dy.SharesStorageWith(dx)});
}

absl::Status RmsNormGradDots(Device& device, const Tensor& x, const Tensor& weight,
                             const Tensor& dy, const Tensor& dots) {
  CheckRowStats(x, dots);
  CheckWeight(x, weight);
  CheckLike(x, dy);
  DT_CHECK(dots.is_contiguous());
  return kRmsNormGradDots.Run(
      device, {x.dtype()},
      {x.dtype(), RowOperands<2>({&x, &dy}), StridedInput(weight), dots.raw()});
}

absl::Status LayerNorm(Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       double eps, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                       const Tensor* stats) {
  CheckRows(x, y);
  CheckWeight(x, weight);
  CheckWeight(x, bias);
  CheckRowStats(x, mean);
  CheckRowStats(x, rstd);
  DT_CHECK(mean.is_contiguous() && rstd.is_contiguous());
  return kLayerNorm.Run(device, {x.dtype()},
                        {.dtype = x.dtype(),
                         .eps = eps,
                         .rows = RowOperands<1>({&x}),
                         .weight = StridedInput(weight),
                         .bias = StridedInput(bias),
                         .stats = ShardStatsOf(x, stats, DType::kF64, {3}),
                         .y = y.raw(),
                         .mean = mean.raw(),
                         .rstd = rstd.raw(),
                         .out_bytes = y.bytes(),
                         .in_place = x.SharesStorageWith(y)});
}

absl::Status RowMoments(Device& device, const Tensor& x, const Tensor& moments) {
  CheckRowStats(x, moments, DType::kF64, {3});
  DT_CHECK(moments.is_contiguous());
  return kRowMoments.Run(device, {x.dtype()},
                         {x.dtype(), RowOperands<1>({&x}), moments.data<double>()});
}

absl::Status LayerNormGrad(Device& device, const Tensor& x, const Tensor& weight,
                           const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                           const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor* stats, int64_t total) {
  CheckRows(x, dx);
  for (const Tensor* t : {&weight, &dweight, &dbias}) CheckWeight(x, *t);
  CheckRowStats(x, mean);
  CheckRowStats(x, rstd);
  CheckLike(x, dy);
  DT_CHECK(dweight.is_contiguous() && dbias.is_contiguous());
  return kLayerNormGrad.Run(device, {x.dtype()},
                            {.dtype = x.dtype(),
                             .total = TotalOf(x, stats, total),
                             .rows = RowOperands<2>({&x, &dy}),
                             .weight = StridedInput(weight),
                             .mean = StridedInput(mean),
                             .rstd = StridedInput(rstd),
                             .stats = ShardStatsOf(x, stats, {2}),
                             .dx = dx.raw(),
                             .dweight = dweight.raw(),
                             .dbias = dbias.raw(),
                             .out_bytes = dx.bytes(),
                             .in_place = x.SharesStorageWith(dx) || dy.SharesStorageWith(dx)});
}

absl::Status LayerNormGradSums(Device& device, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                               const Tensor& sums) {
  CheckRowStats(x, sums, {2});
  CheckWeight(x, weight);
  CheckRowStats(x, mean);
  CheckRowStats(x, rstd);
  CheckLike(x, dy);
  DT_CHECK(sums.is_contiguous());
  return kLayerNormGradSums.Run(device, {x.dtype()},
                                {.dtype = x.dtype(),
                                 .rows = RowOperands<2>({&x, &dy}),
                                 .weight = StridedInput(weight),
                                 .mean = StridedInput(mean),
                                 .rstd = StridedInput(rstd),
                                 .sums = sums.raw()});
}

}  // namespace dtensor::kernels
