#include "dtensor/runtime/kernels/cpu/norm.h"

#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/norm_simd.h"
#include "dtensor/runtime/kernels/cpu/output_rows.h"
#include "dtensor/runtime/kernels/cpu/shard_stats.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// Calls run(sums) with the rows' sums over all shards, or null if there are no shards.
template <typename T, typename Fn>
void WithSums(const ShardStatsInput& stats, Fn run) {
  using C = Compute<T>;
  if (stats.shards == 0) return run(static_cast<const C*>(nullptr));
  const std::vector<C> sums =
      AddShards(ShardStats<C>{static_cast<const C*>(stats.data), stats.shards, stats.rows, 1});
  run(sums.data());
}

template <typename T>
void NormRows(const RmsNormArgs& a, const Compute<T>* squares) {
  const int64_t n = a.rows.n;
  const OutputRows y(a.y, a.dtype, n), rstd(a.rstd, AccumulatorOf(a.dtype), 1);
  const bool stream = StreamStores(a.out_bytes, a.in_place);
  std::vector<std::byte> scratch;
  const void* weight = Packed(a.weight, scratch);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RmsNorm({a.dtype, count, n, stream}, {in[0], stride[0]}, weight, a.eps,
                  squares == nullptr ? nullptr : squares + first, a.total, y.Row(first),
                  rstd.Row(first));
  });
  FinishStores(stream);
}

void RunRmsNorm(const RmsNormArgs& a) {
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    WithSums<T>(a.stats, [&](const Compute<T>* squares) { NormRows<T>(a, squares); });
  });
}

void RunRowSquares(const RowSquaresArgs& a) {
  const OutputRows squares(a.squares, AccumulatorOf(a.dtype), 1);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RowSquares({a.dtype, count, a.rows.n}, {in[0], stride[0]}, squares.Row(first));
  });
}

template <typename T>
void NormGradRows(const RmsNormGradArgs& a, const Compute<T>* dots) {
  const DType accumulator = AccumulatorOf(a.dtype);
  const int64_t n = a.rows.n, stat_size = SizeOf(accumulator);
  const OutputRows dx(a.dx, a.dtype, n);
  const bool stream = StreamStores(a.out_bytes, a.in_place);
  std::vector<std::byte> weight_scratch, rstd_scratch;
  RowSums sums(accumulator, n);
  const void* weight = Packed(a.weight, weight_scratch);
  const auto* rstd = static_cast<const std::byte*>(Packed(a.rstd, rstd_scratch));
  const auto add = [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RmsNormGrad({a.dtype, count, n, stream}, {in[0], stride[0]}, weight,
                      rstd + first * stat_size, {in[1], stride[1]},
                      dots == nullptr ? nullptr : dots + first, a.total, dx.Row(first),
                      sums.block());
    sums.Added(count);
  };
  ForEachRowGroup(a.rows, add, RowSums::kBlock);
  FinishStores(stream);
  RoundAll(static_cast<const Compute<T>*>(sums.Total()), static_cast<T*>(a.dweight), n);
}

void RunRmsNormGrad(const RmsNormGradArgs& a) {
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    WithSums<T>(a.stats, [&](const Compute<T>* dots) { NormGradRows<T>(a, dots); });
  });
}

void RunRmsNormGradDots(const RmsNormGradDotsArgs& a) {
  const OutputRows dots(a.dots, AccumulatorOf(a.dtype), 1);
  std::vector<std::byte> scratch;
  const void* weight = Packed(a.weight, scratch);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RmsNormGradDots({a.dtype, count, a.rows.n}, {in[0], stride[0]}, weight,
                          {in[1], stride[1]}, dots.Row(first));
  });
}

}  // namespace

absl::Status RmsNorm(Device& device, const char* kernel, const RmsNormArgs& args) {
  return Launch(device, kernel, args, RunRmsNorm);
}

absl::Status RowSquares(Device& device, const char* kernel, const RowSquaresArgs& args) {
  return Launch(device, kernel, args, RunRowSquares);
}

absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args) {
  return Launch(device, kernel, args, RunRmsNormGrad);
}

absl::Status RmsNormGradDots(Device& device, const char* kernel, const RmsNormGradDotsArgs& args) {
  return Launch(device, kernel, args, RunRmsNormGradDots);
}

}  // namespace dtensor::kernels::cpu
