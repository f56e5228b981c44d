#include "dtensor/runtime/kernels/cuda/cross_entropy.h"

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/sum_exp-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// One value, or one row of logits, for each row.
struct PerRow {
  explicit PerRow(const StridedInput& input)
      : data(input.data), stride(input.loop.inner_stride(0)) {}
  explicit PerRow(const RowOperands<1>& rows)
      : data(rows.in[0]), stride(rows.loop.inner_stride(0)) {}
  template <typename T>
  __device__ const T* At(int64_t row) const {
    return reinterpret_cast<const T*>(data) + row * stride;
  }

  const std::byte* data;
  int64_t stride;
};

// Logits whose columns are the global `classes`, and their targets.
struct LabelledRows {
  template <typename Args>
  LabelledRows(const Args& args, const IndexRuns& classes)
      : logits(args.logits),
        targets(args.targets),
        wide_targets(args.id_dtype == DType::kI64),
        rows(args.rows),
        n(args.logits.n),
        stride(args.logits.stride[0]),
        ignore(args.ignore),
        classes(classes) {}
  __device__ int64_t TargetAt(int64_t row) const {
    return wide_targets ? *targets.At<int64_t>(row) : *targets.At<int32_t>(row);
  }
  // The first `count` logits of a row.
  template <typename T>
  __device__ RowInput<T> LogitsAt(int64_t row, int64_t count) const {
    return {reinterpret_cast<const std::byte*>(logits.At<T>(row)), stride, count};
  }

  PerRow logits, targets;
  bool wide_targets;
  int64_t rows, n, stride;  // stride: within a row of logits
  int64_t ignore;
  IndexRuns classes;
};

struct StatsArgs {
  LabelledRows x;
  IndexCheck check;
  int64_t width;
  void* stats;
};

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) StatsKernel(StatsArgs a) {
  using C = Compute<T>;
  ForEachRow<kLanes>(a.x.rows, [&](int64_t row, int lane) {
    // The target's logit is loaded while the lanes join their statistics.
    const int64_t target = a.x.TargetAt(row);
    const RowInput<T> logits = a.x.LogitsAt<T>(row, a.x.n);
    const bool smooth = a.width > 3;
    RunningStats<C> stats = StatsOfLane<T, kLanes>(logits, lane, smooth);
    int64_t column = -1;
    T of_target = {};
    if (lane == 0 && target != a.x.ignore && a.check.Passes(target, row)) {
      column = a.x.classes.PositionOf(target);
      if (column >= 0) of_target = logits.row[column * logits.stride];
    }
    MergeLanes<kLanes>(smooth, stats);
    if (lane != 0) return;
    C* const out = static_cast<C*>(a.stats) + row * a.width;
    out[0] = stats.max;
    out[1] = stats.sum_exp;
    out[2] = column < 0 ? C{0} : Widen(of_target);
    if (!smooth) return;
    out[3] = stats.below_max;
    out[4] = stats.count;
  });
}

// The share of every class in a target with label smoothing.
double ShareOfEach(double label_smoothing, int64_t num_classes) {
  return label_smoothing == 0 ? 0 : label_smoothing / static_cast<double>(num_classes);
}

struct MergeArgs {
  StridedInput stats;
  Ids targets;
  int64_t shards, rows, ignore, width;
  double at_target, at_each;
  void *max, *log_sum, *loss;
};

// One thread per row. It adds shards in ascending order, as on the CPU.
template <typename C>
__global__ void MergeKernel(MergeArgs a) {
  ForEachPiece<int64_t>(a.rows, [&](int64_t row) {
    const auto stat = [&](int64_t shard, int k) {
      return ElementOf<C>(a.stats, (shard * a.rows + row) * a.width + k);
    };
    C max = kLowest<C>, sum_exp = 0, logit = 0, below_max = 0;
    for (int64_t p = 0; p < a.shards; ++p) max = LargerNumber(max, stat(p, 0));
    for (int64_t p = 0; p < a.shards; ++p) {
      const C shard_max = stat(p, 0), shard_sum = stat(p, 1);
      // A shard without elements holds -inf, and so does every shard of a row of -inf.
      sum_exp += shard_max == max ? shard_sum : exp(shard_max - max) * shard_sum;
      logit += stat(p, 2);
      if (a.width > 3 && stat(p, 4) > 0) {
        below_max += stat(p, 3) + stat(p, 4) * (shard_max - max);
      }
    }
    const C log_sum = log(sum_exp);
    C loss = log_sum - static_cast<C>(a.at_target) * (logit - max);
    if (a.width > 3) loss -= static_cast<C>(a.at_each) * below_max;
    static_cast<C*>(a.max)[row] = max;
    static_cast<C*>(a.log_sum)[row] = log_sum;
    static_cast<C*>(a.loss)[row] = a.targets[row] == a.ignore ? C{0} : loss;
  });
}

struct GradArgs {
  LabelledRows x;
  PerRow max, log_sum, dloss;
  double at_target, at_each;
  int64_t width;
  void* dlogits;
};

// The values from which the gradients of one row are computed.
template <typename T>
struct GradRow {
  using C = Compute<T>;

  // `excess`: by how much each probability exceeds the smoothed target's share.
  __device__ T At(C logit, bool is_target) const {
    C excess = ExpOfShifted<T>((logit - max) - log_sum) - at_each;
    if (is_target) excess -= at_target;
    return Round<T>(excess * dloss);
  }

  C max, log_sum, dloss, at_target, at_each;
};

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) GradKernel(GradArgs a) {
  using C = Compute<T>;
  const C at_target = static_cast<C>(a.at_target), at_each = static_cast<C>(a.at_each);
  ForEachRow<kLanes>(a.x.rows, [&](int64_t row, int lane) {
    const int64_t target = a.x.TargetAt(row);
    const int64_t column = a.x.classes.PositionOf(target);
    const GradRow<T> grad = {*a.max.At<C>(row), *a.log_sum.At<C>(row), *a.dloss.At<C>(row),
                             at_target, at_each};
    // An ignored row gets zeros, whatever its other inputs are.
    const int64_t n = target == a.x.ignore ? 0 : a.x.n;
    const RowInput<T> logits = a.x.LogitsAt<T>(row, n);
    const RowOutput<T> out(a.dlogits, a.width, row);
    ForEachPart<T, kLanes, 4>(logits, lane, out.fits, [&](int64_t begin, const auto& part) {
      const int64_t past = column - begin;  // in 32 bits for the elements
      const int at = past >= 0 && past < part.n ? static_cast<int>(past) : -1;
      part.ForEach([&](const auto& words, int i, auto whole) {
        const WidePack<T> wide = WidenPack(words);
        Pack<T, kPack<T>> grads;
        for (int v = 0; v < kPack<T>; ++v) {
          const bool here = whole || i + v < part.n;
          grads.at[v] = here ? grad.At(wide.at[v], i + v == at) : Round<T>(C{0});
        }
        StoreTo(out, begin + i, grads, whole);
      });
    });
    // Zeros from the first pack on that has no logits.
    const int64_t rest = (n + kPack<T> - 1) / kPack<T> * kPack<T>;
    ForEachPack<T, kLanes>(a.width - rest, lane, [&](int64_t i) { out.Store(rest + i, {}); });
  });
}

}  // namespace

absl::Status CrossEntropyStats(Device& device, const char* kernel,
                               const CrossEntropyStatsArgs& args) {
  if (args.rows == 0) return device.failure();
  return WithIndexRuns(device, kernel, args.classes, [&](const IndexRuns& classes) {
    const StatsArgs stats = {LabelledRows(args, classes),
                             IndexCheck(device, kernel, "target", args.num_classes), args.width,
                             args.stats};
    return VisitFloat(args.dtype, [&](auto t) {
      return WithLanes(args.logits.n, [&](auto lanes) {
        return LaunchRows<lanes()>(device, kernel, args.rows, StatsKernel<decltype(t), lanes()>,
                                   stats);
      });
    });
  });
}

absl::Status CrossEntropyMerge(Device& device, const char* kernel,
                               const CrossEntropyMergeArgs& args) {
  if (args.rows == 0) return device.failure();
  const MergeArgs merge = {args.stats,
                           Ids(args.targets, args.id_dtype),
                           args.shards,
                           args.rows,
                           args.ignore,
                           args.width,
                           1 - args.label_smoothing,
                           ShareOfEach(args.label_smoothing, args.num_classes),
                           args.max,
                           args.log_sum,
                           args.loss};
  return VisitFloat(args.dtype, [&](auto t) {
    return Launch(device, kernel, BlocksFor(args.rows), kThreads, MergeKernel<Compute<decltype(t)>>,
                  merge);
  });
}

absl::Status CrossEntropyGrad(Device& device, const char* kernel,
                              const CrossEntropyGradArgs& args) {
  if (args.rows == 0 || args.width == 0) return device.failure();
  return WithIndexRuns(device, kernel, args.classes, [&](const IndexRuns& classes) {
    const GradArgs grad = {LabelledRows(args, classes),
                           PerRow(args.max),
                           PerRow(args.log_sum),
                           PerRow(args.dloss),
                           1 - args.label_smoothing,
                           ShareOfEach(args.label_smoothing, args.num_classes),
                           args.width,
                           args.dlogits};
    return VisitFloat(args.dtype, [&](auto t) {
      return WithLanes(args.width, [&](auto lanes) {
        return LaunchRows<lanes()>(device, kernel, args.rows, GradKernel<decltype(t), lanes()>,
                                   grad);
      });
    });
  });
}

}  // namespace dtensor::kernels::cuda
