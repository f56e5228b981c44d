#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/layer_norm_simd.h"
#include "dtensor/runtime/kernels/cpu/norm.h"
#include "dtensor/runtime/kernels/cpu/output_rows.h"
#include "dtensor/runtime/kernels/cpu/shard_stats.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// The moments of all shards together, after Chan, Golub & LeVeque.
std::vector<simd::Moments> MergeMoments(const ShardStatsInput& stats) {
  const auto* shards = static_cast<const simd::Moments*>(stats.data);
  std::vector<simd::Moments> merged(stats.rows);
  for (int64_t p = 0; p < stats.shards; ++p) {
    for (int64_t r = 0; r < stats.rows; ++r) {
      const simd::Moments& shard = shards[p * stats.rows + r];
      simd::Moments& all = merged[r];
      if (shard.count == 0) continue;
      const double delta = shard.mean - all.mean;
      const double share = shard.count / (all.count + shard.count);
      all.squares += shard.squares + delta * delta * all.count * share;
      all.mean += delta * share;
      all.count += shard.count;
    }
  }
  return merged;
}

void NormRows(const LayerNormArgs& a) {
  const int64_t n = a.rows.n;
  const DType accumulator = AccumulatorOf(a.dtype);
  const OutputRows y(a.y, a.dtype, n), mean(a.mean, accumulator, 1), rstd(a.rstd, accumulator, 1);
  const bool stream = StreamStores(a.out_bytes, a.in_place), merges = a.stats.shards > 0;
  std::vector<std::byte> scratch[2];
  const void *weight = Packed(a.weight, scratch[0]), *bias = Packed(a.bias, scratch[1]);
  std::vector<simd::Moments> moments;
  if (merges) moments = MergeMoments(a.stats);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::LayerNorm({a.dtype, count, n, stream}, {in[0], stride[0]}, weight, bias, a.eps,
                    merges ? moments.data() + first : nullptr, y.Row(first), mean.Row(first),
                    rstd.Row(first));
  });
  FinishStores(stream);
}

void RunRowMoments(const RowMomentsArgs& a) {
  static_assert(sizeof(simd::Moments) == 3 * sizeof(double));
  auto* moments = reinterpret_cast<simd::Moments*>(a.moments);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RowMoments({a.dtype, count, a.rows.n}, {in[0], stride[0]}, moments + first);
  });
}

// The operands of each row for one kernel call, in row-major memory.
class GradRows {
 public:
  GradRows(DType dtype, const StridedInput& weight, const StridedInput& mean,
           const StridedInput& rstd)
      : stat_size_(SizeOf(AccumulatorOf(dtype))),
        weight_(Packed(weight, scratch_[0])),
        mean_(static_cast<const std::byte*>(Packed(mean, scratch_[1]))),
        rstd_(static_cast<const std::byte*>(Packed(rstd, scratch_[2]))) {}

  simd::LayerNormGradRows From(int64_t first) const {
    return {weight_, mean_ + first * stat_size_, rstd_ + first * stat_size_};
  }

 private:
  std::vector<std::byte> scratch_[3];
  int64_t stat_size_;
  const void* weight_;
  const std::byte *mean_, *rstd_;
};

template <typename T>
void GradOfRows(const LayerNormGradArgs& a) {
  using C = Compute<T>;
  const int64_t n = a.rows.n;
  const OutputRows dx(a.dx, a.dtype, n);
  const bool stream = StreamStores(a.out_bytes, a.in_place), merges = a.stats.shards > 0;
  const GradRows rows(a.dtype, a.weight, a.mean, a.rstd);
  RowSums parameters(AccumulatorOf(a.dtype), 2 * n);
  std::vector<C> sums;
  if (merges) {
    sums = AddShards(
        ShardStats<C>{static_cast<const C*>(a.stats.data), a.stats.shards, a.stats.rows, 2});
  }
  const auto add = [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::LayerNormGrad({a.dtype, count, n, stream}, {in[0], stride[0]}, rows.From(first),
                        {in[1], stride[1]}, merges ? sums.data() + 2 * first : nullptr, a.total,
                        dx.Row(first), parameters.block());
    parameters.Added(count);
  };
  ForEachRowGroup(a.rows, add, RowSums::kBlock);
  FinishStores(stream);
  const C* total = static_cast<const C*>(parameters.Total());
  RoundAll(total, static_cast<T*>(a.dweight), n);
  RoundAll(total + n, static_cast<T*>(a.dbias), n);
}

void RunGradSums(const LayerNormGradSumsArgs& a) {
  const OutputRows sums(a.sums, AccumulatorOf(a.dtype), 2);
  const GradRows rows(a.dtype, a.weight, a.mean, a.rstd);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::LayerNormGradSums({a.dtype, count, a.rows.n}, {in[0], stride[0]}, rows.From(first),
                            {in[1], stride[1]}, sums.Row(first));
  });
}

}  // namespace

absl::Status LayerNorm(Device& device, const char* kernel, const LayerNormArgs& args) {
  return Launch(device, kernel, args, NormRows);
}

absl::Status RowMoments(Device& device, const char* kernel, const RowMomentsArgs& args) {
  return Launch(device, kernel, args, RunRowMoments);
}

absl::Status LayerNormGrad(Device& device, const char* kernel, const LayerNormGradArgs& args) {
  return Launch(device, kernel, args, [](const LayerNormGradArgs& a) {
    VisitFloat(a.dtype, [&](auto t) { GradOfRows<decltype(t)>(a); });
  });
}

absl::Status LayerNormGradSums(Device& device, const char* kernel,
                               const LayerNormGradSumsArgs& args) {
  return Launch(device, kernel, args, RunGradSums);
}

}  // namespace dtensor::kernels::cpu
