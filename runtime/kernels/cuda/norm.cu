#include "dtensor/runtime/kernels/cuda/norm.h"

#include <array>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/norm_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/shard_stats-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename T, int kLanes>
__device__ Compute<T> SquaresOfRow(const RowInput<T>& x, int lane) {
  Compute<T> sum = 0;
  ForEachPack<T, kLanes>(x.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = x.Load(i);
    for (int v = 0; v < kPack<T>; ++v) sum += Widen(values.at[v]) * Widen(values.at[v]);
  });
  return SumLanes<kLanes>(sum);
}

template <typename T, int kLanes>
__global__ void RmsNormKernel(RmsNormArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowInput<T> x(a.rows, 0, r), weight(a.weight, a.rows.n);
    const C squares =
        a.stats.shards == 0 ? SquaresOfRow<T, kLanes>(x, lane) : AddShards<1, C>(a.stats, r, 0);
    const C count = static_cast<C>(a.total > 0 ? a.total : 1);
    const C rstd = C{1} / sqrt(squares / count + static_cast<C>(a.eps));
    const RowOutput<T> y(a.y, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      Pack<T, kPack<T>> values = x.Load(i);
      const Pack<T, kPack<T>> scale = weight.Load(i);
      for (int v = 0; v < kPack<T>; ++v) {
        values.at[v] = Round<T>(Widen(values.at[v]) * rstd * Widen(scale.at[v]));
      }
      y.Store(i, values);
    });
    if (lane == 0) static_cast<C*>(a.rstd)[r] = rstd;
  });
}

template <typename T, int kLanes>
__global__ void RowSquaresKernel(RowSquaresArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const Compute<T> squares = SquaresOfRow<T, kLanes>(RowInput<T>(a.rows, 0, r), lane);
    if (lane == 0) static_cast<Compute<T>*>(a.squares)[r] = squares;
  });
}

// One row of the gradient, as norm_grad-inl.h asks for it. Its sum is that of dy * weight * x, for
// which nothing else needs to be known of the row.
template <typename T>
struct RmsGradRow {
  using C = Compute<T>;
  using Sums = C;
  static constexpr int kParameters = 1;

  RmsGradRow() = default;
  __device__ RmsGradRow(const RmsNormGradArgs& a, int64_t r) : rstd(ElementOf<C>(a.rstd, r)) {}

  __device__ static C Term(C x, C g) { return g * x; }
  __device__ static C OfShards(const ShardStatsInput& stats, int64_t r) {
    return AddShards<1, C>(stats, r, 0);
  }
  __device__ void Take(C dot, C total) { mean_dot = dot * rstd / total; }
  __device__ C Dx(C x, C g) const { return rstd * fma(-(x * rstd), mean_dot, g); }
  __device__ C Parameter(int, C x, C dy) const { return dy * (x * rstd); }

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
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return RmsNormKernel<decltype(t), lanes>; });
}

absl::Status RowSquares(Device& device, const char* kernel, const RowSquaresArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return RowSquaresKernel<decltype(t), lanes>; });
}

absl::Status RmsNormGradDots(Device& device, const char* kernel, const RmsNormGradDotsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return DotsKernel<decltype(t), lanes>; });
}

absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args) {
  return NormGrad<RmsGradRow>(device, kernel, args, std::array{args.dweight});
}

}  // namespace dtensor::kernels::cuda
