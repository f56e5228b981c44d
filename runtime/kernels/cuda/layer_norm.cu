// LayerNorm of norm.h.
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/column_sums-inl.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/norm.h"
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

// One row of a gradient: what both its passes read.
template <typename T>
struct GradRow {
  template <typename Args>
  __device__ GradRow(const Args& a, int64_t r)
      : x(a.rows, 0, r),
        dy(a.rows, 1, r),
        weight(a.weight, a.rows.n),
        mean(ElementOf<Compute<T>>(a.mean, r)),
        rstd(ElementOf<Compute<T>>(a.rstd, r)) {}
  __device__ Compute<T> Normalized(T value) const { return (Widen(value) - mean) * rstd; }

  RowInput<T> x, dy, weight;
  Compute<T> mean, rstd;
};

// Of g = dy * weight, and of g * xhat.
template <typename C>
struct GradSums {
  C g, dot;
};

template <typename T, int kLanes>
__device__ GradSums<Compute<T>> GradSumsOfRow(const GradRow<T>& row, int lane) {
  using C = Compute<T>;
  GradSums<C> sums = {0, 0};
  ForEachPack<T, kLanes>(row.x.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = row.x.Load(i), grads = row.dy.Load(i),
                            scale = row.weight.Load(i);
    for (int v = 0; v < kPack<T>; ++v) {
      const C g = Widen(grads.at[v]) * Widen(scale.at[v]);  // 0 beyond the row's end
      sums.g += g;
      sums.dot += g * row.Normalized(values.at[v]);
    }
  });
  return {SumLanes<kLanes>(sums.g), SumLanes<kLanes>(sums.dot)};
}

template <typename T, int kLanes>
__global__ void GradSumsKernel(LayerNormGradSumsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const GradSums<Compute<T>> sums = GradSumsOfRow<T, kLanes>(GradRow<T>(a, r), lane);
    if (lane == 0) static_cast<GradSums<Compute<T>>*>(a.sums)[r] = sums;
  });
}

template <typename T, int kLanes>
__global__ void GradKernel(LayerNormGradArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const GradRow<T> row(a, r);
    GradSums<C> sums;
    if (a.stats.shards == 0) {
      sums = GradSumsOfRow<T, kLanes>(row, lane);
    } else {
      sums = {AddShards<2, C>(a.stats, r, 0), AddShards<2, C>(a.stats, r, 1)};
    }
    const C mean_g = sums.g / static_cast<C>(a.total),
            mean_dot = sums.dot / static_cast<C>(a.total);
    const RowOutput<T> dx(a.dx, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      const Pack<T, kPack<T>> values = row.x.Load(i), scale = row.weight.Load(i);
      Pack<T, kPack<T>> grads = row.dy.Load(i);
      for (int v = 0; v < kPack<T>; ++v) {
        const C centred = Widen(grads.at[v]) * Widen(scale.at[v]) - mean_g;
        grads.at[v] = Round<T>(row.rstd * fma(-row.Normalized(values.at[v]), mean_dot, centred));
      }
      dx.Store(i, grads);
    });
  });
}

// dy * xhat and dy of a pack of a row.
template <typename T>
struct ParameterTerms {
  RowOperands<2> rows;
  StridedInput mean, rstd;
  __device__ ColumnTerms<T, 2> operator()(int64_t r, int64_t column) const {
    const Pack<T, kPack<T>> x = RowInput<T>(rows, 0, r).Load(column),
                            dy = RowInput<T>(rows, 1, r).Load(column);
    const auto centre = ElementOf<Compute<T>>(mean, r), scale = ElementOf<Compute<T>>(rstd, r);
    ColumnTerms<T, 2> terms;
    for (int v = 0; v < kPack<T>; ++v) {
      const auto grad = Widen(dy.at[v]);
      terms.at[0][v] = grad * ((Widen(x.at[v]) - centre) * scale);
      terms.at[1][v] = grad;
    }
    return terms;
  }
};

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

// Parameters first: dx may be x's or dy's own memory.
absl::Status LayerNormGrad(Device& device, const char* kernel, const LayerNormGradArgs& args) {
  DT_RETURN_IF_ERROR(VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    return SumColumns<T, 2>(device, kernel, ElementsOf(args.rows.loop), args.rows.n,
                            ParameterTerms<T>{args.rows, args.mean, args.rstd},
                            {{static_cast<T*>(args.dweight), static_cast<T*>(args.dbias)}});
  }));
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return GradKernel<decltype(t), lanes>; });
}

}  // namespace dtensor::kernels::cuda
