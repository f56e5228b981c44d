#include "dtensor/runtime/kernels/cpu/softmax.h"

#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/cross_entropy_simd.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/output_rows.h"
#include "dtensor/runtime/kernels/cpu/shard_stats.h"
#include "dtensor/runtime/kernels/cpu/softmax_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

void RunSoftmax(const SoftmaxArgs& a) {
  const OutputRows y(a.y, a.dtype, a.rows.n);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::Softmax(a.form, {a.dtype, count, a.rows.n}, {in[0], stride[0]}, y.Row(first));
  });
}

void RunSoftmaxGrad(const SoftmaxGradArgs& a) {
  const OutputRows dx(a.dx, a.dtype, a.rows.n);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::SoftmaxGrad(a.form, {a.dtype, count, a.rows.n}, {in[0], stride[0]}, {in[1], stride[1]},
                      nullptr, dx.Row(first));
  });
}

void RunStats(const SoftmaxStatsArgs& a) {
  const OutputRows stats(a.stats, AccumulatorOf(a.dtype), 2);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::MaxAndSumExp({a.dtype, count, a.rows.n}, {in[0], stride[0]}, 2, stats.Row(first));
  });
}

template <typename T>
void Merge(const SoftmaxMergeArgs& a, const void* stats) {
  using C = Compute<T>;
  const ShardStats<C> shards = {static_cast<const C*>(stats), a.shards, a.num_rows, 2};
  std::vector<SumExp<C>> merged(a.num_rows);
  for (int64_t r = 0; r < a.num_rows; ++r) merged[r] = MergeSumExp(shards, r);
  const OutputRows y(a.y, a.dtype, a.rows.n);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::SoftmaxFromStats(a.form, {a.dtype, count, a.rows.n}, {in[0], stride[0]},
                           merged.data() + first, y.Row(first));
  });
}

void RunMerge(const SoftmaxMergeArgs& a) {
  std::vector<std::byte> scratch;
  const void* stats = Packed(a.stats, scratch);
  VisitFloat(a.dtype, [&](auto t) { Merge<decltype(t)>(a, stats); });
}

void RunGradSums(const SoftmaxGradSumsArgs& a) {
  const OutputRows sums(a.sums, AccumulatorOf(a.dtype), 1);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::SoftmaxGradSums(a.form, {a.dtype, count, a.rows.n}, {in[0], stride[0]},
                          {in[1], stride[1]}, sums.Row(first));
  });
}

template <typename T>
void GradMerge(const SoftmaxGradMergeArgs& a, const void* sums) {
  using C = Compute<T>;
  const std::vector<C> all =
      AddShards(ShardStats<C>{static_cast<const C*>(sums), a.shards, a.num_rows, 1});
  const OutputRows dx(a.dx, a.dtype, a.rows.n);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::SoftmaxGrad(a.form, {a.dtype, count, a.rows.n}, {in[0], stride[0]}, {in[1], stride[1]},
                      all.data() + first, dx.Row(first));
  });
}

void RunGradMerge(const SoftmaxGradMergeArgs& a) {
  std::vector<std::byte> scratch;
  const void* sums = Packed(a.sums, scratch);
  VisitFloat(a.dtype, [&](auto t) { GradMerge<decltype(t)>(a, sums); });
}

}  // namespace

absl::Status Softmax(Device& device, const char* kernel, const SoftmaxArgs& args) {
  return Launch(device, kernel, args, RunSoftmax);
}

absl::Status SoftmaxGrad(Device& device, const char* kernel, const SoftmaxGradArgs& args) {
  return Launch(device, kernel, args, RunSoftmaxGrad);
}

absl::Status SoftmaxStats(Device& device, const char* kernel, const SoftmaxStatsArgs& args) {
  return Launch(device, kernel, args, RunStats);
}

absl::Status SoftmaxMerge(Device& device, const char* kernel, const SoftmaxMergeArgs& args) {
  return Launch(device, kernel, args, RunMerge);
}

absl::Status SoftmaxGradSums(Device& device, const char* kernel, const SoftmaxGradSumsArgs& args) {
  return Launch(device, kernel, args, RunGradSums);
}

absl::Status SoftmaxGradMerge(Device& device, const char* kernel,
                              const SoftmaxGradMergeArgs& args) {
  return Launch(device, kernel, args, RunGradMerge);
}

}  // namespace dtensor::kernels::cpu
