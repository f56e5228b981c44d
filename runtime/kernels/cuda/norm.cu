#include "dtensor/runtime/kernels/cuda/norm.h"

#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/column_sums-inl.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
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

// sum(dy * weight * x).
template <typename T, int kLanes>
__device__ Compute<T> DotOfRow(const RowInput<T>& x, const RowInput<T>& dy,
                               const RowInput<T>& weight, int lane) {
  Compute<T> sum = 0;
  ForEachPack<T, kLanes>(x.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = x.Load(i), grads = dy.Load(i), scale = weight.Load(i);
    for (int v = 0; v < kPack<T>; ++v) {
      sum += Widen(grads.at[v]) * Widen(scale.at[v]) * Widen(values.at[v]);
    }
  });
  return SumLanes<kLanes>(sum);
}

template <typename T, int kLanes>
__global__ void DotsKernel(RmsNormGradDotsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowInput<T> x(a.rows, 0, r), dy(a.rows, 1, r), weight(a.weight, a.rows.n);
    const Compute<T> dot = DotOfRow<T, kLanes>(x, dy, weight, lane);
    if (lane == 0) static_cast<Compute<T>*>(a.dots)[r] = dot;
  });
}

template <typename T, int kLanes>
__global__ void RmsNormGradKernel(RmsNormGradArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowInput<T> x(a.rows, 0, r), dy(a.rows, 1, r), weight(a.weight, a.rows.n);
    const C dot = a.stats.shards == 0 ? DotOfRow<T, kLanes>(x, dy, weight, lane)
                                      : AddShards<1, C>(a.stats, r, 0);
    const C rstd = ElementOf<C>(a.rstd, r);
    const C mean_dot = dot * rstd / static_cast<C>(a.total);
    const RowOutput<T> dx(a.dx, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      const Pack<T, kPack<T>> values = x.Load(i), scale = weight.Load(i);
      Pack<T, kPack<T>> grads = dy.Load(i);
      for (int v = 0; v < kPack<T>; ++v) {
        const C xhat = Widen(values.at[v]) * rstd, scaled = Widen(grads.at[v]) * Widen(scale.at[v]);
        grads.at[v] = Round<T>(rstd * fma(-xhat, mean_dot, scaled));
      }
      dx.Store(i, grads);
    });
  });
}

// dy * xhat of a pack of a row.
template <typename T>
struct WeightTerm {
  RowOperands<2> rows;
  StridedInput rstd;
  __device__ ColumnTerms<T, 1> operator()(int64_t r, int64_t column) const {
    const Pack<T, kPack<T>> x = RowInput<T>(rows, 0, r).Load(column),
                            dy = RowInput<T>(rows, 1, r).Load(column);
    const auto scale = ElementOf<Compute<T>>(rstd, r);
    ColumnTerms<T, 1> terms;
    for (int v = 0; v < kPack<T>; ++v) {
      terms.at[0][v] = Widen(dy.at[v]) * (Widen(x.at[v]) * scale);
    }
    return terms;
  }
};

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

// dweight first: dx may be x's or dy's own memory.
absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args) {
  DT_RETURN_IF_ERROR(VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    return SumColumns<T, 1>(device, kernel, ElementsOf(args.rows.loop), args.rows.n,
                            WeightTerm<T>{args.rows, args.rstd}, {{static_cast<T*>(args.dweight)}});
  }));
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return RmsNormGradKernel<decltype(t), lanes>; });
}

}  // namespace dtensor::kernels::cuda
