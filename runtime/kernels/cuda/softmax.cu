#include "dtensor/runtime/kernels/cuda/softmax.h"

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/sum_exp-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Of the whole row, in each lane.
template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsOfRow(const RowOperands<1>& rows, int64_t r, int lane) {
  const RowInput<T> x(rows, 0, r);
  RunningStats<Compute<T>> stats = StatsOfLane<T, kLanes>(x.row, x.stride, x.n, lane);
  MergeLanes<kLanes>(false, stats);
  return stats;
}

template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsFor(const SoftmaxArgs& a, int64_t r, int lane) {
  return StatsOfRow<T, kLanes>(a.rows, r, lane);
}

// Of all shards; a shard without elements holds -inf, and so does every shard of a row of -inf.
template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsFor(const SoftmaxMergeArgs& a, int64_t r, int) {
  using C = Compute<T>;
  const auto stat = [&](int64_t p, int k) {
    return ElementOf<C>(a.stats, (p * a.num_rows + r) * 2 + k);
  };
  RunningStats<C> all;
  for (int64_t p = 0; p < a.shards; ++p) all.max = LargerNumber(all.max, stat(p, 0));
  for (int64_t p = 0; p < a.shards; ++p) {
    const C max = stat(p, 0);
    all.sum_exp += max == all.max ? stat(p, 1) : exp(max - all.max) * stat(p, 1);
  }
  return all;
}

// kLog: (x - max) - log sum, both of which are small where x is not.
template <typename T, int kLanes, typename Args>
__global__ void SoftmaxKernel(Args a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RunningStats<C> stats = StatsFor<T, kLanes>(a, r, lane);
    const C base = stats.Base(stats.max), sum = stats.sum_exp;
    const C scale = sum == 0 ? C{0} : C{1} / sum, log_sum = sum == 0 ? C{0} : log(sum);
    const RowInput<T> x(a.rows, 0, r);
    const RowOutput<T> y(a.y, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      Pack<T, kPack<T>> pack = x.Load(i);
      for (T& value : pack.at) {
        const C shifted = Widen(value) - base;
        value = Round<T>(a.form == SoftmaxForm::kLog ? shifted - log_sum : exp(shifted) * scale);
      }
      y.Store(i, pack);
    });
  });
}

template <typename T, int kLanes>
__global__ void StatsKernel(SoftmaxStatsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RunningStats<Compute<T>> stats = StatsOfRow<T, kLanes>(a.rows, r, lane);
    if (lane != 0) return;
    auto* const out = static_cast<Compute<T>*>(a.stats) + 2 * r;
    out[0] = stats.max;
    out[1] = stats.sum_exp;
  });
}

// sum(y * dy); kLog: sum(dy).
template <typename T, int kLanes>
__device__ Compute<T> GradSumOfRow(SoftmaxForm form, const RowOperands<2>& rows, int64_t r,
                                   int lane) {
  using C = Compute<T>;
  const RowInput<T> y(rows, 0, r), dy(rows, 1, r);
  C sum = 0;
  ForEachPack<T, kLanes>(rows.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = y.Load(i), grads = dy.Load(i);
    for (int v = 0; v < kPack<T>; ++v) {
      const C grad = Widen(grads.at[v]);
      sum += form == SoftmaxForm::kLog ? grad : Widen(values.at[v]) * grad;
    }
  });
  return SumLanes<kLanes>(sum);
}

template <typename T, int kLanes>
__device__ Compute<T> GradSumFor(const SoftmaxGradArgs& a, int64_t r, int lane) {
  return GradSumOfRow<T, kLanes>(a.form, a.rows, r, lane);
}
template <typename T, int kLanes>
__device__ Compute<T> GradSumFor(const SoftmaxGradMergeArgs& a, int64_t r, int) {
  Compute<T> sum = 0;
  for (int64_t p = 0; p < a.shards; ++p) {
    sum += ElementOf<Compute<T>>(a.sums, p * a.num_rows + r);
  }
  return sum;
}

template <typename T, int kLanes, typename Args>
__global__ void GradKernel(Args a, int64_t rows) {
  using C = Compute<T>;
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const C sum = GradSumFor<T, kLanes>(a, r, lane);
    const RowInput<T> y(a.rows, 0, r), dy(a.rows, 1, r);
    const RowOutput<T> dx(a.dx, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      const Pack<T, kPack<T>> values = y.Load(i);
      Pack<T, kPack<T>> grads = dy.Load(i);
      for (int v = 0; v < kPack<T>; ++v) {
        const C value = Widen(values.at[v]), grad = Widen(grads.at[v]);
        grads.at[v] = Round<T>(a.form == SoftmaxForm::kLog ? fma(-exp(value), sum, grad)
                                                           : value * (grad - sum));
      }
      dx.Store(i, grads);
    });
  });
}

template <typename T, int kLanes>
__global__ void GradSumsKernel(SoftmaxGradSumsArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const Compute<T> sum = GradSumOfRow<T, kLanes>(a.form, a.rows, r, lane);
    if (lane == 0) static_cast<Compute<T>*>(a.sums)[r] = sum;
  });
}

}  // namespace

absl::Status Softmax(Device& device, const char* kernel, const SoftmaxArgs& args) {
  return LaunchRowKernel(device, kernel, args, [](auto t, auto lanes) {
    return SoftmaxKernel<decltype(t), lanes, SoftmaxArgs>;
  });
}

absl::Status SoftmaxGrad(Device& device, const char* kernel, const SoftmaxGradArgs& args) {
  return LaunchRowKernel(device, kernel, args, [](auto t, auto lanes) {
    return GradKernel<decltype(t), lanes, SoftmaxGradArgs>;
  });
}

absl::Status SoftmaxStats(Device& device, const char* kernel, const SoftmaxStatsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return StatsKernel<decltype(t), lanes>; });
}

absl::Status SoftmaxMerge(Device& device, const char* kernel, const SoftmaxMergeArgs& args) {
  return LaunchRowKernel(device, kernel, args, [](auto t, auto lanes) {
    return SoftmaxKernel<decltype(t), lanes, SoftmaxMergeArgs>;
  });
}

absl::Status SoftmaxGradSums(Device& device, const char* kernel, const SoftmaxGradSumsArgs& args) {
  return LaunchRowKernel(device, kernel, args,
                         [](auto t, auto lanes) { return GradSumsKernel<decltype(t), lanes>; });
}

absl::Status SoftmaxGradMerge(Device& device, const char* kernel,
                              const SoftmaxGradMergeArgs& args) {
  return LaunchRowKernel(device, kernel, args, [](auto t, auto lanes) {
    return GradKernel<decltype(t), lanes, SoftmaxGradMergeArgs>;
  });
}

}  // namespace dtensor::kernels::cuda
