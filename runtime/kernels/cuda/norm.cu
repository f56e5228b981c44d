#include "dtensor/runtime/kernels/cuda/norm.h"

#include <array>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/kept_row-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/norm_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/shard_stats-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename T, int kLanes, int kPacks>
__device__ Compute<T> SquaresOfRow(const LanePacks<T, kLanes, kPacks>& x) {
  Compute<T> sum = 0;
  x.ForEach([&](int64_t, int, int, const auto& values) {
    Compute<T> of_pack = 0;
    for (const Compute<T> value : values.at) of_pack = fma(value, value, of_pack);
    sum += of_pack;
  });
  return SumLanes<kLanes>(sum);
}

template <typename T, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads, kKeptBlocks<kPacks>)
    RmsNormKernel(const __grid_constant__ RmsNormArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const LanePacks<T, kLanes, kPacks> x(RowAt<T>(a.rows, 0, r), lane);
    const RowInput<T> weight(a.weight, a.rows.n);
    const C squares = a.stats.shards == 0 ? SquaresOfRow(x) : AddShards<1, C>(a.stats, r, 0);
    const C count = static_cast<C>(a.total > 0 ? a.total : 1);
    const C rstd = C{1} / sqrt(squares / count + static_cast<C>(a.eps));
    const RowOutput<T> y(a.y, a.rows.n, r);
    x.ForEach([&](int64_t i, int, int, const auto& pack) {
      auto values = pack;
      const auto scale = LoadWide<(kPacks > 0)>(weight, i);
      for (int v = 0; v < kPack<T>; ++v) values.at[v] = values.at[v] * rstd * scale.at[v];
      StoreBeside<kPacks>(y, i, values);
    });
    if (lane == 0) static_cast<C*>(a.rstd)[r] = rstd;
  });
}

template <typename T, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads, kKeptBlocks<kPacks>)
    RowSquaresKernel(const __grid_constant__ RowSquaresArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const Compute<T> squares =
        SquaresOfRow(LanePacks<T, kLanes, kPacks>(RowAt<T>(a.rows, 0, r), lane));
    if (lane == 0) static_cast<Compute<T>*>(a.squares)[r] = squares;
  });
}

// One row of the gradient, as norm_grad-inl.h requires. Its sum is that of dy * weight * x, which
// needs nothing else of the row.
template <typename T>
struct RmsGradRow {
  using C = Compute<T>;
  using Sums = C;
  static constexpr int kParameters = 1;

  RmsGradRow() = default;
  __device__ RmsGradRow(const RmsNormGradArgs& a, int64_t r) : rstd(ElementOf<C>(a.rstd, r)) {}
  __device__ RmsGradRow(const RmsNormGradArgs& a, int64_t r, EvenRow)
      : rstd(reinterpret_cast<const C*>(a.rstd.data)[r]) {}
  static bool HasContiguousStatistics(const RmsNormGradArgs& a) { return a.rstd.contiguous; }

  __device__ static void Add(C x, C g, Sums& sum) { sum = fma(g, x, sum); }
  __device__ static C OfShards(const ShardStatsInput& stats, int64_t r) {
    return AddShards<1, C>(stats, r, 0);
  }
  __device__ void Take(C dot, C total) { mean_dot = dot * rstd / total; }
  __device__ C Dx(C x, C g) const { return rstd * fma(-(x * rstd), mean_dot, g); }
  __device__ void AddParameter(int, C x, C dy, C& sum) const { sum = fma(dy, x * rstd, sum); }

  C rstd = 0, mean_dot = 0;
};

template <typename T, int kLanes>
__global__ void DotsKernel(RmsNormGradDotsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const Compute<T> dot = SumsOfRow<kLanes>(RmsGradRow<T>(), GradRow<T>(a, r), lane);
    if (lane == 0) static_cast<Compute<T>*>(a.dots)[r] = dot;
  });
}

}  // namespace

absl::Status RmsNorm(Device& device, const char* kernel, const RmsNormArgs& args) {
  return LaunchKeptRows(
      device, kernel, args,
      [&](auto t) {
        using T = decltype(t);
        return FitsKept<T>(args.weight) && FitsKept<T>(args.y);
      },
      [](auto t, auto lanes, auto packs) { return RmsNormKernel<decltype(t), lanes, packs>; });
}

absl::Status RowSquares(Device& device, const char* kernel, const RowSquaresArgs& args) {
  return LaunchKeptRows(
      device, kernel, args, [](auto) { return true; },
      [](auto t, auto lanes, auto packs) { return RowSquaresKernel<decltype(t), lanes, packs>; });
}

absl::Status RmsNormGradDots(Device& device, const char* kernel, const RmsNormGradDotsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return DotsKernel<decltype(t), lanes>; });
}

absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args) {
  return NormGrad<RmsGradRow>(device, kernel, args, std::array{args.dweight});
}

}  // namespace dtensor::kernels::cuda
