#include "dtensor/runtime/kernels/cuda/softmax.h"

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/sum_exp-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// The statistics of the whole row, in each lane.
template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsOfRow(const RowOperands<1>& rows, int64_t r, int lane) {
  RunningStats<Compute<T>> stats = StatsOfLane<T, kLanes>(RowInput<T>(rows, 0, r), lane, false);
  MergeLanes<kLanes>(false, stats);
  return stats;
}

template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsFor(const SoftmaxArgs& a, int64_t r, int lane) {
  return StatsOfRow<T, kLanes>(a.rows, r, lane);
}

// The statistics of all shards. A shard without elements holds -inf, and so does every shard of a
// row of -inf.
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

// How a row's results are computed from x - max. kLog: subtracts log sum from it; both terms are
// small even if x is not.
template <typename T, SoftmaxForm kForm>
struct Results {
  using C = Compute<T>;
  static constexpr bool kLog = kForm == SoftmaxForm::kLog;

  __device__ explicit Results(C sum) : term(sum == 0 ? C{0} : kLog ? log(sum) : C{1} / sum) {}
  __device__ T Of(C shifted) const {
    return kLog ? Round<T>(shifted - term) : OfExp(ExpOfShifted<T>(shifted));
  }
  __device__ T OfExp(C exp) const { return Round<T>(exp * term); }
  __device__ Pack<T, kPack<T>> OfPack(const Words<T>& words, C base) const {
    const WidePack<T> x = WidenPack(words);
    Pack<T, kPack<T>> pack;
    for (int v = 0; v < kPack<T>; ++v) pack.at[v] = Of(x.at[v] - base);
    return pack;
  }

  C term;
};

// In two passes: for rows that do not fit into registers, and for shards.
template <typename T, int kLanes, SoftmaxForm kForm, typename Args>
__device__ void SoftmaxOfRow(const Args& a, int64_t r, int lane) {
  const RunningStats<Compute<T>> stats = StatsFor<T, kLanes>(a, r, lane);
  const Compute<T> base = stats.Base(stats.max);
  const Results<T, kForm> results(stats.sum_exp);
  const RowInput<T> x(a.rows, 0, r);
  const RowOutput<T> y(a.y, a.rows.n, r);
  ForEachPart<T, kLanes, 4>(x, lane, y.fits, [&](int64_t begin, const auto& part) {
    part.ForEach([&](const auto& words, int i, auto whole) {
      StoreTo(y, begin + i, results.OfPack(words, base), whole);
    });
  });
}

template <typename T, int kLanes, typename Args>
__global__ void __launch_bounds__(kThreads, 2) SoftmaxKernel(Args a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    if (a.form == SoftmaxForm::kLog) {
      SoftmaxOfRow<T, kLanes, SoftmaxForm::kLog>(a, r, lane);
    } else {
      SoftmaxOfRow<T, kLanes, SoftmaxForm::kPlain>(a, r, lane);
    }
  });
}

// --- In one pass: for rows that fit into the registers of a group. Each element is read once and
// has one exp. A group's lanes have as many elements as they can hold, so that what each does once
// per row costs little.

template <typename T>
inline constexpr int kKept = sizeof(T) > sizeof(float) ? 16 : 32;  // elements of a lane

template <int kLanes>
inline constexpr int kThreadsFor = kLanes == kWarp ? kThreads : kLanes;  // of a block

// ForEachRow of row_groups-inl.h, also for blocks with fewer threads.
template <int kLanes, typename Fn>
__device__ void ForEachKeptRow(int64_t rows, Fn fn) {
  if constexpr (kLanes == kWarp) {
    ForEachRow<kLanes>(rows, fn);
  } else {
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) fn(r, static_cast<int>(threadIdx.x));
  }
}

// A row in registers: its packs and, if these are whole, exp(x - max).
template <typename T, int kLanes, SoftmaxForm kForm>
struct KeptRow {
  using C = Compute<T>;
  static constexpr int V = kPack<T>, kPacks = kKept<T> / V;

  __device__ C SumOfLane() {
    C sum = 0;
    if (!x.whole || kForm == SoftmaxForm::kLog) {
      x.ForEach([&](const auto& words, int, auto) { sum += SumOfExps(words, base); });
      return sum;
    }
    x.ForEachKept([&](int k, const auto& words, int) {
      const WidePack<T> wide = WidenPack(words);
      C sum_here = 0;
      for (int v = 0; v < V; ++v) sum_here += exps[k][v] = ExpOfShifted<T>(wide.at[v] - base);
      sum += sum_here;
    });
    return sum;
  }
  __device__ void Store(const Results<T, kForm>& results, const RowOutput<T>& y) const {
    if (!x.whole || kForm == SoftmaxForm::kLog) {
      x.ForEach([&](const auto& words, int i, auto whole) {
        StoreTo(y, i, results.OfPack(words, base), whole);
      });
      return;
    }
    x.ForEachKept([&](int k, const auto&, int i) {
      Pack<T, V> pack;
      for (int v = 0; v < V; ++v) pack.at[v] = results.OfExp(exps[k][v]);
      y.StoreWhole(i, pack);
    });
  }

  RowPart<T, kLanes, kPacks> x;
  C base = 0;
  C exps[kPacks][V];
};

template <typename T, int kLanes, SoftmaxForm kForm>
__global__ void __launch_bounds__(kThreadsFor<kLanes>, 1024 / kThreadsFor<kLanes>)
    KeptKernel(SoftmaxArgs a, int64_t rows) {
  using C = Compute<T>;
  ForEachKeptRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowOutput<T> y(a.y, a.rows.n, r);
    KeptRow<T, kLanes, kForm> row = {{RowInput<T>(a.rows, 0, r), 0, lane, y.fits}};
    row.base = RunningStats<C>::Base(LargestOfLanes<kLanes>(LargestOf(row.x, kLowest<C>)));
    row.Store(Results<T, kForm>(SumLanes<kLanes>(row.SumOfLane())), y);
  });
}

// Calls fn(lanes) with a constant: the lanes that hold a row of n elements, or 0 if no group does.
template <typename T, typename Fn>
absl::Status WithLanesThatHold(int64_t n, Fn fn) {
  if (n <= kWarp * kKept<T>) return fn(std::integral_constant<int, kWarp>());
  if (n <= kThreads / 2 * kKept<T>) return fn(std::integral_constant<int, kThreads / 2>());
  if (n <= kThreads * kKept<T>) return fn(std::integral_constant<int, kThreads>());
  return fn(std::integral_constant<int, 0>());
}

template <typename T, SoftmaxForm kForm>
absl::Status LaunchSoftmax(Device& device, const char* name, const SoftmaxArgs& a, int64_t rows) {
  return WithLanesThatHold<T>(a.rows.n, [&](auto lanes) {
    if constexpr (lanes == 0) {
      return Launch(device, name, BlocksForRows<kThreads>(rows), kThreads,
                    SoftmaxKernel<T, kThreads, SoftmaxArgs>, a, rows);
    } else {
      constexpr int kGroups = lanes == kWarp ? kWarp : kThreads;  // one per block, or several
      return Launch(device, name, BlocksForRows<kGroups>(rows), kThreadsFor<lanes>,
                    KeptKernel<T, lanes, kForm>, a, rows);
    }
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
  const int64_t rows = ElementsOf(args.rows.loop);
  if (rows == 0) return device.failure();
  return VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    return args.form == SoftmaxForm::kLog
               ? LaunchSoftmax<T, SoftmaxForm::kLog>(device, kernel, args, rows)
               : LaunchSoftmax<T, SoftmaxForm::kPlain>(device, kernel, args, rows);
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
