// LayerNorm of norm.h.
#include <array>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/kept_row-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/norm.h"
#include "dtensor/runtime/kernels/cuda/norm_grad-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/shard_stats-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// The moments of a row or a part of it, in the layout of RowMoments.
struct Moments {
  double count, mean, squares;  // squares: the sum of (x - mean)^2
};

// The sums of x - near and of its square.
template <typename C>
struct Deviations {
  C sum, squares;

  template <typename Other>
  __device__ explicit operator Deviations<Other>() const {
    return {static_cast<Other>(sum), static_cast<Other>(squares)};
  }
  friend __device__ Deviations operator+(const Deviations& a, const Deviations& b) {
    return {a.sum + b.sum, a.squares + b.squares};
  }
};

template <typename C, int V>
__device__ Deviations<C> DeviationsOf(const Pack<C, V>& values, int elements, C near) {
  Deviations<C> all = {};
  for (int v = 0; v < V && v < elements; ++v) {
    const C difference = values.at[v] - near;
    all.sum += difference;
    all.squares = fma(difference, difference, all.squares);
  }
  return all;
}

// The deviations of one lane, in chains of kMostKept packs, which are added in f64. A row that is
// kept has only one chain, whose sum has the same bits in both types.
template <typename T, int kLanes, int kPacks>
__device__ Deviations<Compute<T>> DeviationsOf(const LanePacks<T, kLanes, kPacks>& x,
                                               Compute<T> near) {
  Deviations<Compute<T>> chain = {};
  Deviations<double> all = {};
  x.ForEach([&](int64_t, int k, int elements, const auto& values) {
    chain = chain + DeviationsOf(values, elements, near);
    if (kPacks > 0 || (k + 1) % kMostKept<kLanes> != 0) return;
    all = all + static_cast<Deviations<double>>(chain);
    chain = {};
  });
  if constexpr (kPacks > 0) return chain;
  return static_cast<Deviations<Compute<T>>>(all + static_cast<Deviations<double>>(chain));
}

// Sums over all lanes, within each warp in C, and over the warps in f64. Only lanes of the group's
// first warp get the result. All lanes call it, and wait for each other before they call it again.
template <int kLanes, typename C>
__device__ Deviations<double> SumDeviations(const Deviations<C>& of_lane) {
  auto sums = static_cast<Deviations<double>>(SumLanes<kWarp>(of_lane));
  if constexpr (kLanes > kWarp) {
    constexpr int kWarps = kLanes / kWarp;
    DT_SHARED(Deviations<double>, of_warps, kWarps);
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sums;
    __syncthreads();
    if (threadIdx.x < kWarp) sums = SumLanes<kWarps>(of_warps[threadIdx.x % kWarps]);
  }
  return sums;
}

// The result is for lanes of the group's first warp. The first pass only gives the centre for the
// second, which restores what the sum of a long row lost by rounding (the corrected two-pass
// algorithm of Chan, Golub & LeVeque).
template <typename T, int kLanes, int kPacks>
__device__ Moments MomentsOfRow(const LanePacks<T, kLanes, kPacks>& x, int64_t n) {
  using C = Compute<T>;
  C sum = 0;
  x.ForEach([&](int64_t, int, int, const auto& values) {
    C of_pack = 0;
    for (const C value : values.at) of_pack += value;
    sum += of_pack;
  });
  const C near = SumLanes<kLanes>(sum) / static_cast<C>(n > 0 ? n : 1);
  const Deviations<double> rest = SumDeviations<kLanes>(DeviationsOf(x, near));
  if (kLanes > kWarp && threadIdx.x >= kWarp) return {};
  const double mean = rest.sum / static_cast<double>(n > 0 ? n : 1);
  const double squares = rest.squares - rest.sum * mean;
  return {static_cast<double>(n), static_cast<double>(near) + mean,
          squares < 0 ? 0 : squares};  // NaN stays
}

// The moments of all shards together, after Chan, Golub & LeVeque.
__device__ Moments MergeMoments(const ShardStatsInput& stats, int64_t row) {
  Moments all = {0, 0, 0};
#pragma unroll 1  // unrolled, it would take registers from rows without shards
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

// The values that normalize an element.
template <typename C>
struct Normalizer {
  C mean, rstd;
};

// The result is for all lanes, but one warp of the group computes it, since f64 is slow.
template <typename T, int kLanes, int kPacks>
__device__ Normalizer<Compute<T>> NormalizerOf(const LayerNormArgs& a, int64_t r,
                                               const LanePacks<T, kLanes, kPacks>& x) {
  using C = Compute<T>;
  Moments m = {};
  if (a.stats.shards == 0) m = MomentsOfRow(x, a.rows.n);
  const auto finish = [&]() -> Normalizer<C> {
    if (a.stats.shards > 0) m = MergeMoments(a.stats, r);
    const double variance = m.squares / (m.count > 0 ? m.count : 1);
    return {static_cast<C>(m.mean), static_cast<C>(1 / sqrt(variance + a.eps))};
  };
  if constexpr (kLanes == kWarp) return finish();
  DT_SHARED(Normalizer<C>, of_row, 1);
  if (threadIdx.x < kWarp) {
    const Normalizer<C> own = finish();
    if (threadIdx.x == 0) of_row[0] = own;
  }
  __syncthreads();
  const Normalizer<C> all = of_row[0];
  __syncthreads();  // of_row is written again for the next row
  return all;
}

template <typename T, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads, kKeptBlocks<kPacks>)
    LayerNormKernel(const __grid_constant__ LayerNormArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const LanePacks<T, kLanes, kPacks> x(RowAt<T>(a.rows, 0, r), lane);
    const RowInput<T> weight(a.weight, a.rows.n), bias(a.bias, a.rows.n);
    const Normalizer<C> by = NormalizerOf(a, r, x);
    const RowOutput<T> y(a.y, a.rows.n, r);
    x.ForEach([&](int64_t i, int, int, const auto& pack) {
      auto values = pack;
      const auto scale = LoadWide<(kPacks > 0)>(weight, i), shift = LoadWide<(kPacks > 0)>(bias, i);
      for (int v = 0; v < kPack<T>; ++v) {
        const C xhat = (values.at[v] - by.mean) * by.rstd;
        values.at[v] = fma(xhat, scale.at[v], shift.at[v]);
      }
      StoreBeside<kPacks>(y, i, values);
    });
    if (lane != 0) return;
    static_cast<C*>(a.mean)[r] = by.mean;
    static_cast<C*>(a.rstd)[r] = by.rstd;
  });
}

template <typename T, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads, kKeptBlocks<kPacks>)
    RowMomentsKernel(const __grid_constant__ RowMomentsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const LanePacks<T, kLanes, kPacks> x(RowAt<T>(a.rows, 0, r), lane);
    const Moments moments = MomentsOfRow(x, a.rows.n);
    if (lane == 0) reinterpret_cast<Moments*>(a.moments)[r] = moments;
  });
}

// The sums of g = dy * weight and of g * xhat.
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
  template <typename Args>
  __device__ LayerGradRow(const Args& a, int64_t r, EvenRow)
      : mean(reinterpret_cast<const C*>(a.mean.data)[r]),
        rstd(reinterpret_cast<const C*>(a.rstd.data)[r]) {}
  template <typename Args>
  static bool HasContiguousStatistics(const Args& a) {
    return a.mean.contiguous && a.rstd.contiguous;
  }

  __device__ C Normalized(C x) const { return (x - mean) * rstd; }

  __device__ void Add(C x, C g, Sums& sums) const {
    sums.g += g;
    sums.dot = fma(g, Normalized(x), sums.dot);
  }
  __device__ static Sums OfShards(const ShardStatsInput& stats, int64_t r) {
    return {AddShards<2, C>(stats, r, 0), AddShards<2, C>(stats, r, 1)};
  }
  __device__ void Take(const Sums& sums, C total) {
    mean_g = sums.g / total;
    mean_dot = sums.dot / total;
  }
  __device__ C Dx(C x, C g) const { return rstd * fma(-Normalized(x), mean_dot, g - mean_g); }
  __device__ void AddParameter(int k, C x, C dy, C& sum) const {
    sum = k == 0 ? fma(dy, Normalized(x), sum) : sum + dy;
  }

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
  return LaunchKeptRows(
      device, kernel, args,
      [&](auto t) {
        using T = decltype(t);
        return FitsKept<T>(args.weight) && FitsKept<T>(args.bias) && FitsKept<T>(args.y);
      },
      [](auto t, auto lanes, auto packs) { return LayerNormKernel<decltype(t), lanes, packs>; });
}

absl::Status RowMoments(Device& device, const char* kernel, const RowMomentsArgs& args) {
  return LaunchKeptRows(
      device, kernel, args, [](auto) { return true; },
      [](auto t, auto lanes, auto packs) { return RowMomentsKernel<decltype(t), lanes, packs>; });
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
