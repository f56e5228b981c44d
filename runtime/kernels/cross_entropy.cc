#include <cmath>
#include <limits>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/cross_entropy_simd.h"
#include "dtensor/runtime/kernels/cpu/index_lookup.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

void CheckLogits(const Tensor& logits, const Tensor& targets, const IndexSet& classes) {
  DT_CHECK(logits.ndim() == 2 && IsFloat(logits.dtype()));
  DT_CHECK(logits.size(1) == classes.size());
  DT_CHECK(targets.ndim() == 1 && targets.size(0) == logits.size(0));
  DT_CHECK(targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64);
}

void CheckPerRow(const Tensor& values, DType dtype, int64_t rows) {
  DT_CHECK(values.ndim() == 1 && values.size(0) == rows && values.dtype() == dtype);
}

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

}  // namespace

absl::Status CrossEntropyStats(Device& device, const Tensor& logits, const Tensor& targets,
                               const IndexSet& classes, int64_t num_classes, int64_t ignore,
                               const Tensor& stats) {
  CheckLogits(logits, targets, classes);
  DT_CHECK(stats.ndim() == 2 && stats.size(0) == logits.size(0) && stats.size(1) == 3);
  DT_CHECK(stats.dtype() == AccumulatorOf(logits.dtype()) && stats.is_contiguous());
  const Rows<1> rows({&logits});
  const Packed packed(targets);
  return device.Launch(
      "CrossEntropyStats",
      [=, lookup = IndexLookup(classes), dtype = logits.dtype(), id_dtype = targets.dtype(),
       total = targets.numel(), out = stats.raw()]() -> absl::Status {
        std::vector<std::byte> scratch;
        const Ids ids(packed.Get(scratch), id_dtype);
        for (int64_t t = 0; t < total; ++t) {
          if (ids[t] == ignore || (ids[t] >= 0 && ids[t] < num_classes)) continue;
          return IdOutOfRange("CrossEntropy", "target", ids[t], t, num_classes);
        }
        const std::vector<int64_t> found = FindTargets(ids, total, lookup, ignore);
        rows.ForEach([&](const void* const* in, const int64_t* stride, int64_t first, int64_t n) {
          VisitFloat(dtype, [&](auto t) {
            using T = decltype(t);
            Compute<T>* s = static_cast<Compute<T>*>(out) + 3 * first;
            simd::MaxAndSumExp({dtype, n, rows.row_size()}, {in[0], stride[0]}, s);
            GatherTargets(static_cast<const T*>(in[0]), stride[0], n, found.data() + first, s);
          });
        });
        return absl::OkStatus();
      });
}

absl::Status CrossEntropyMerge(Device& device, const Tensor& stats, const Tensor& targets,
                               int64_t ignore, const Tensor& lse, const Tensor& loss) {
  DT_CHECK(stats.ndim() == 3 && stats.size(2) == 3 && stats.size(1) == targets.numel());
  CheckPerRow(lse, stats.dtype(), targets.numel());
  CheckPerRow(loss, stats.dtype(), targets.numel());
  DT_CHECK(lse.is_contiguous() && loss.is_contiguous());
  const Packed packed_stats(stats), packed_targets(targets);
  return device.Launch("CrossEntropyMerge", [=, dtype = stats.dtype(), id_dtype = targets.dtype(),
                                             shards = stats.size(0), rows = stats.size(1),
                                             lse = lse.raw(), loss = loss.raw()] {
    std::vector<std::byte> stats_scratch, targets_scratch;
    const void* s = packed_stats.Get(stats_scratch);
    const Ids ids(packed_targets.Get(targets_scratch), id_dtype);
    VisitFloat(dtype, [&](auto t) {
      using C = Compute<decltype(t)>;
      Merge(static_cast<const C*>(s), shards, rows, ids, ignore, static_cast<C*>(lse),
            static_cast<C*>(loss));
    });
  });
}

absl::Status CrossEntropyGrad(Device& device, const Tensor& logits, const Tensor& targets,
                              const IndexSet& classes, int64_t ignore, const Tensor& lse,
                              const Tensor& dloss, const Tensor& dlogits) {
  CheckLogits(logits, targets, classes);
  CheckPerRow(lse, AccumulatorOf(logits.dtype()), logits.size(0));
  CheckPerRow(dloss, AccumulatorOf(logits.dtype()), logits.size(0));
  DT_CHECK(dlogits.shape() == logits.shape() && dlogits.dtype() == logits.dtype());
  DT_CHECK(dlogits.is_contiguous());
  const Rows<1> rows({&logits});
  const Packed packed_targets(targets), packed_lse(lse), packed_dloss(dloss);
  return device.Launch("CrossEntropyGrad", [=, lookup = IndexLookup(classes),
                                            dtype = logits.dtype(), id_dtype = targets.dtype(),
                                            total = targets.numel(), out = dlogits.raw()] {
    if (rows.row_size() == 0) return;
    std::vector<std::byte> scratch[3];
    const Ids ids(packed_targets.Get(scratch[0]), id_dtype);
    const auto* l = static_cast<const std::byte*>(packed_lse.Get(scratch[1]));
    const auto* g = static_cast<const std::byte*>(packed_dloss.Get(scratch[2]));
    const std::vector<int64_t> found = FindTargets(ids, total, lookup, ignore);
    const int64_t size = SizeOf(dtype), stat_size = SizeOf(AccumulatorOf(dtype));
    rows.ForEach([&](const void* const* in, const int64_t* stride, int64_t first, int64_t n) {
      auto* dst = static_cast<std::byte*>(out) + first * rows.row_size() * size;
      simd::CrossEntropyGrad({dtype, n, rows.row_size()}, {in[0], stride[0]}, found.data() + first,
                             l + first * stat_size, g + first * stat_size, dst);
    });
  });
}

}  // namespace dtensor::kernels
