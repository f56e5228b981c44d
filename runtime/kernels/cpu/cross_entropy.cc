#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dtensor/runtime/kernels/cpu/cross_entropy_simd.h"
#include "dtensor/runtime/kernels/cpu/ids.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// Completes rows [first, first + count) of stats with the target's logit.
template <typename T>
void GatherTargets(const T* logits, int64_t stride, int64_t count, const int64_t* target,
                   Compute<T>* stats) {
  for (int64_t r = 0; r < count; ++r) {
    stats[3 * r + 2] =
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

// sum over shards of exp(max_p - max) * sum_p, without overflow, for row t of stats [shards, rows,
// 3].
template <typename C>
C MergeRow(const C* stats, int64_t shards, int64_t rows, int64_t t, C* target_logit) {
  C max = -std::numeric_limits<C>::infinity(), sum = 0;
  for (int64_t p = 0; p < shards; ++p) max = std::max(max, stats[(p * rows + t) * 3]);
  for (int64_t p = 0; p < shards; ++p) {
    const C* shard = stats + (p * rows + t) * 3;
    // A shard without classes holds -inf, and so does every shard of a row of -inf.
    sum += shard[0] == max ? shard[1] : std::exp(shard[0] - max) * shard[1];
    *target_logit += shard[2];
  }
  return max + std::log(sum);
}

template <typename C>
void Merge(const C* stats, int64_t shards, int64_t rows, const Ids& targets, int64_t ignore, C* lse,
           C* loss) {
  for (int64_t t = 0; t < rows; ++t) {
    C target_logit = 0;
    lse[t] = MergeRow(stats, shards, rows, t, &target_logit);
    loss[t] = targets[t] == ignore ? C{0} : lse[t] - target_logit;
  }
}

absl::Status RunStats(const CrossEntropyStatsArgs& a) {
  std::vector<std::byte> scratch;
  const Ids ids(Packed(a.targets, scratch), a.id_dtype);
  for (int64_t t = 0; t < a.rows; ++t) {
    if (ids[t] == a.ignore || (ids[t] >= 0 && ids[t] < a.num_classes)) continue;
    return IdOutOfRange("CrossEntropy", "target", ids[t], t, a.num_classes);
  }
  const std::vector<int64_t> found = FindTargets(ids, a.rows, a.classes, a.ignore);
  ForEachRowGroup(a.logits, [&](auto in, auto stride, int64_t first, int64_t n) {
    VisitFloat(a.dtype, [&](auto t) {
      using T = decltype(t);
      Compute<T>* s = static_cast<Compute<T>*>(a.stats) + 3 * first;
      simd::MaxAndSumExp({a.dtype, n, a.logits.n}, {in[0], stride[0]}, s);
      GatherTargets(static_cast<const T*>(in[0]), stride[0], n, found.data() + first, s);
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
    Merge(static_cast<const C*>(stats), a.shards, a.rows, ids, a.ignore, static_cast<C*>(a.lse),
          static_cast<C*>(a.loss));
  });
}

void RunGrad(const CrossEntropyGradArgs& a) {
  const int64_t n = a.logits.n;
  if (n == 0) return;
  std::vector<std::byte> scratch[3];
  const Ids ids(Packed(a.targets, scratch[0]), a.id_dtype);
  const auto* lse = static_cast<const std::byte*>(Packed(a.lse, scratch[1]));
  const auto* dloss = static_cast<const std::byte*>(Packed(a.dloss, scratch[2]));
  const std::vector<int64_t> found = FindTargets(ids, a.rows, a.classes, a.ignore);
  const int64_t size = SizeOf(a.dtype), stat_size = SizeOf(AccumulatorOf(a.dtype));
  ForEachRowGroup(a.logits, [&](auto in, auto stride, int64_t first, int64_t count) {
    auto* dst = static_cast<std::byte*>(a.dlogits) + first * n * size;
    simd::CrossEntropyGrad({a.dtype, count, n}, {in[0], stride[0]}, found.data() + first,
                           lse + first * stat_size, dloss + first * stat_size, dst);
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
