// LayerNorm of norm.h.
#include <array>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/norm.h"
#include "dtensor/runtime/kernels/cuda/norm_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/shard_stats-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Of a row or a part of it, as RowMoments has them in memory.
struct Moments {
  double count, mean, squares;  // squares of x - mean, added up
};

// The first pass only says where the second is centred: what the sum of a long row lost is put back
// there (the corrected two-pass algorithm of Chan, Golub & LeVeque).
template <typename T, int kLanes>
__device__ Moments MomentsOfRow(const RowInput<T>& x, int lane) {
  using C = Compute<T>;
  const double divisor = static_cast<double>(x.n > 0 ? x.n : 1);
  C sum = 0;
  ForEachPack<T, kLanes>(x.n, lane, [&](int64_t i) {
    for (const T& value : x.Load(i).at) sum += Widen(value);
  });
  const C near = SumLanes<kLanes>(sum) / static_cast<C>(divisor);
  double rest = 0, about_near = 0;
  ForEachPack<T, kLanes>(x.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = x.Load(i);
    C part = 0, squares = 0;
    for (int v = 0; v < kPack<T> && i + v < x.n; ++v) {
      const C difference = Widen(values.at[v]) - near;
      part += difference;
      squares = fma(difference, difference, squares);
    }
    rest += part;
    about_near += squares;
  });
  rest = SumLanes<kLanes>(rest);
  const double squares = SumLanes<kLanes>(about_near) - rest * rest / divisor;
  return {static_cast<double>(x.n), static_cast<double>(near) + rest / divisor,
          squares < 0 ? 0 : squares};  // NaN stays
}

// Of all shards together: Chan, Golub & LeVeque.
__device__ Moments MergeMoments(const ShardStatsInput& stats, int64_t row) {
  Moments all = {0, 0, 0};
  for (int64_t p = 0; p < stats.shards; ++p) {
    const Moments shard = static_cast<const Moments*>(stats.data)[p * stats.rows + row];
    if (shard.count == 0) continue;
    const double delta = shard.mean - all.mean;
    const double share = shard.count / (all.count + shard.count);
    all.squares += shard.squares + delta * delta * all.count * share;
    all.mean += delta * share;
    all.count += shard.count;
  }
  return all;
}

template <typename T, int kLanes>
__global__ void LayerNormKernel(LayerNormArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowInput<T> x(a.rows, 0, r), weight(a.weight, a.rows.n), bias(a.bias, a.rows.n);
    const Moments m =
        a.stats.shards == 0 ? MomentsOfRow<T, kLanes>(x, lane) : MergeMoments(a.stats, r);
    const double variance = m.squares / (m.count > 0 ? m.count : 1);
    const C mean = static_cast<C>(m.mean), rstd = static_cast<C>(1 / sqrt(variance + a.eps));
    const RowOutput<T> y(a.y, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      Pack<T, kPack<T>> values = x.Load(i);
      const Pack<T, kPack<T>> scale = weight.Load(i), shift = bias.Load(i);
      for (int v = 0; v < kPack<T>; ++v) {
        const C xhat = (Widen(values.at[v]) - mean) * rstd;
        values.at[v] = Round<T>(fma(xhat, Widen(scale.at[v]), Widen(shift.at[v])));
      }
      y.Store(i, values);
    });
    if (lane != 0) return;
    static_cast<C*>(a.mean)[r] = mean;
    static_cast<C*>(a.rstd)[r] = rstd;
  });
}

template <typename T, int kLanes>
__global__ void RowMomentsKernel(RowMomentsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const Moments moments = MomentsOfRow<T, kLanes>(RowInput<T>(a.rows, 0, r), lane);
    if (lane == 0) reinterpret_cast<Moments*>(a.moments)[r] = moments;
  });
}

// Of g = dy * weight, and of g * xhat.
template <typename C>
struct GradSums {
  C g, dot;

  friend __device__ GradSums operator+(const GradSums& a, const GradSums& b) {
    return {a.g + b.g, a.dot + b.dot};
  }
};

// One row of the gradient, as norm_grad-inl.h asks for it.
template <typename T>
struct LayerGradRow {
  using C = Compute<T>;
  using Sums = GradSums<C>;
  static constexpr int kParameters = 2;

  template <typename Args>
  __device__ LayerGradRow(const Args& a, int64_t r)
      : mean(ElementOf<C>(a.mean, r)), rstd(ElementOf<C>(a.rstd, r)) {}

  __device__ C Normalized(C x) const { return (x - mean) * rstd; }

  __device__ Sums Term(C x, C g) const { return {g, g * Normalized(x)}; }
  __device__ static Sums OfShards(const ShardStatsInput& stats, int64_t r) {
    return {AddShards<2, C>(stats, r, 0), AddShards<2, C>(stats, r, 1)};
  }
  __device__ void Take(const Sums& sums, C total) {
    mean_g = sums.g / total;
    mean_dot = sums.dot / total;
  }
  __device__ C Dx(C x, C g) const { return rstd * fma(-Normalized(x), mean_dot, g - mean_g); }
  __device__ C Parameter(int k, C x, C dy) const { return k == 0 ? dy * Normalized(x) : dy; }

  C mean, rstd, mean_g = 0, mean_dot = 0;
};

template <typename T, int kLanes>
__global__ void GradSumsKernel(LayerNormGradSumsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const auto sums = SumsOfRow<kLanes>(LayerGradRow<T>(a, r), GradRow<T>(a, r), lane);
    if (lane == 0) static_cast<GradSums<Compute<T>>*>(a.sums)[r] = sums;
  });
}

}  // namespace

absl::Status LayerNorm(Device& device, const char* kernel, const LayerNormArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return LayerNormKernel<decltype(t), lanes>; });
}

absl::Status RowMoments(Device& device, const char* kernel, const RowMomentsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return RowMomentsKernel<decltype(t), lanes>; });
}

absl::Status LayerNormGradSums(Device& device, const char* kernel,
                               const LayerNormGradSumsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return GradSumsKernel<decltype(t), lanes>; });
}

absl::Status LayerNormGrad(Device& device, const char* kernel, const LayerNormGradArgs& args) {
  return NormGrad<LayerGradRow>(device, kernel, args, std::array{args.dweight, args.dbias});
}

}  // namespace dtensor::kernels::cuda
