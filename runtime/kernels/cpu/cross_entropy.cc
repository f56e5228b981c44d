#include <cmath>
#include <vector>

#include "dtensor/runtime/device/index_error.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/cross_entropy_simd.h"
#include "dtensor/runtime/kernels/cpu/ids.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/shard_stats.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// Completes rows of stats, `width` numbers each, with the target's logit.
template <typename T>
void GatherTargets(const T* logits, int64_t stride, int64_t count, const int64_t* target,
                   int64_t width, Compute<T>* stats) {
  for (int64_t r = 0; r < count; ++r) {
    stats[width * r + 2] =
        target[r] < 0 ? Compute<T>{0} : static_cast<Compute<T>>(logits[r * stride + target[r]]);
  }
}

std::vector<int64_t> FindTargets(const Ids& targets, int64_t rows, const IndexLookup& classes,
                                 int64_t ignore) {
  std::vector<int64_t> found(rows);
  for (int64_t t = 0; t < rows; ++t) {
    found[t] = targets[t] == ignore ? simd::kIgnored : classes.Position(targets[t]);
  }
  return found;
}

// The share of every class in a target with label smoothing.
double ShareOfEach(double label_smoothing, int64_t num_classes) {
  return label_smoothing == 0 ? 0 : label_smoothing / static_cast<double>(num_classes);
}

template <typename C>
void Merge(const CrossEntropyMergeArgs& a, const ShardStats<C>& stats, const Ids& targets) {
  const auto at_target = static_cast<C>(1 - a.label_smoothing);
  const auto at_each = static_cast<C>(ShareOfEach(a.label_smoothing, a.num_classes));
  for (int64_t t = 0; t < stats.rows; ++t) {
    const SumExp<C> all = MergeSumExp(stats, t);
    const C log_sum = std::log(all.sum);
    C target_logit = 0, below_max = 0;
    for (int64_t p = 0; p < stats.shards; ++p) {
      const C* shard = stats.At(p, t);
      target_logit += shard[2];
      if (stats.width > 3 && shard[4] > 0) {
        below_max += shard[3] + shard[4] * (shard[0] - all.max);
      }
    }
    C loss = log_sum - at_target * (target_logit - all.max);
    if (stats.width > 3) loss -= at_each * below_max;
    static_cast<C*>(a.max)[t] = all.max;
    static_cast<C*>(a.log_sum)[t] = log_sum;
    static_cast<C*>(a.loss)[t] = targets[t] == a.ignore ? C{0} : loss;
  }
}

absl::Status RunStats(const CrossEntropyStatsArgs& a) {
  std::vector<std::byte> scratch;
  const Ids ids(Packed(a.targets, scratch), a.id_dtype);
  for (int64_t t = 0; t < a.rows; ++t) {
    if (ids[t] == a.ignore || (ids[t] >= 0 && ids[t] < a.num_classes)) continue;
    return ToStatus(IndexError{"target", ids[t], t, a.num_classes});
  }
  const std::vector<int64_t> found = FindTargets(ids, a.rows, a.classes, a.ignore);
  ForEachRowGroup(a.logits, [&](auto in, auto stride, int64_t first, int64_t n) {
    VisitFloat(a.dtype, [&](auto t) {
      using T = decltype(t);
      const T* logits = static_cast<const T*>(in[0]);
      Compute<T>* s = static_cast<Compute<T>*>(a.stats) + a.width * first;
      const simd::RowShape shape = {a.dtype, n, a.logits.n};
      simd::MaxAndSumExp(shape, {in[0], stride[0]}, a.width, s);
      GatherTargets(logits, stride[0], n, found.data() + first, a.width, s);
      if (a.width > 3) simd::SumBelowMax(shape, {in[0], stride[0]}, a.width, s);
    });
  });
  return absl::OkStatus();
}

void RunMerge(const CrossEntropyMergeArgs& a) {
  std::vector<std::byte> stats_scratch, targets_scratch;
  const void* stats = Packed(a.stats, stats_scratch);
  const Ids ids(Packed(a.targets, targets_scratch), a.id_dtype);
  VisitFloat(a.dtype, [&](auto t) {
    using C = Compute<decltype(t)>;
    Merge(a, ShardStats<C>{static_cast<const C*>(stats), a.shards, a.rows, a.width}, ids);
  });
}

void RunGrad(const CrossEntropyGradArgs& a) {
  const int64_t n = a.logits.n;
  if (a.width == 0) return;
  std::vector<std::byte> scratch[4];
  const Ids ids(Packed(a.targets, scratch[0]), a.id_dtype);
  const auto* max = static_cast<const std::byte*>(Packed(a.max, scratch[1]));
  const auto* log_sum = static_cast<const std::byte*>(Packed(a.log_sum, scratch[2]));
  const auto* dloss = static_cast<const std::byte*>(Packed(a.dloss, scratch[3]));
  const std::vector<int64_t> found = FindTargets(ids, a.rows, a.classes, a.ignore);
  const int64_t size = SizeOf(a.dtype), stat_size = SizeOf(AccumulatorOf(a.dtype));
  const simd::CrossEntropyWeights weights = {1 - a.label_smoothing,
                                             ShareOfEach(a.label_smoothing, a.num_classes)};
  ForEachRowGroup(a.logits, [&](auto in, auto stride, int64_t first, int64_t count) {
    auto* dst = static_cast<std::byte*>(a.dlogits) + first * a.width * size;
    const int64_t skipped = first * stat_size;
    simd::CrossEntropyGrad({a.dtype, count, n}, {in[0], stride[0]}, found.data() + first, weights,
                           max + skipped, log_sum + skipped, dloss + skipped, a.width, dst);
  });
}

}  // namespace

absl::Status CrossEntropyStats(Device& device, const char* kernel,
                               const CrossEntropyStatsArgs& args) {
  return Launch(device, kernel, args, RunStats);
}

absl::Status CrossEntropyMerge(Device& device, const char* kernel,
                               const CrossEntropyMergeArgs& args) {
  return Launch(device, kernel, args, RunMerge);
}

absl::Status CrossEntropyGrad(Device& device, const char* kernel,
                              const CrossEntropyGradArgs& args) {
  return Launch(device, kernel, args, RunGrad);
}

}  // namespace dtensor::kernels::cpu
