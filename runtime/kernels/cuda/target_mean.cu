#include "dtensor/runtime/kernels/cuda/target_mean.h"

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/term_sums-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// For each row that has a target: its loss, and 1 for the count.
template <typename T>
struct LossTerm {
  static constexpr int kTerms = 1;
  Ids targets;
  StridedInput loss;
  int64_t ignore;
  __device__ Sums<2> operator()(int64_t i, int64_t) const {
    if (targets[i] == ignore) return {};
    return {{static_cast<double>(Widen(ElementOf<T>(loss, i))), 1}};
  }
};

struct StoreStats {
  double* stats;
  __device__ void operator()(const Sums<2>& sums) const {
    stats[0] = sums.at[0];
    stats[1] = sums.at[1];
  }
};

// Runs with one thread, since there are only as many terms as shards.
template <typename T>
__global__ void MergeKernel(TargetMeanMergeArgs a) {
  double sum = 0, count = 0;
  for (int64_t p = 0; p < a.shards; ++p) {
    sum += ElementOf<double>(a.stats, 2 * p);
    count += ElementOf<double>(a.stats, 2 * p + 1);
  }
  *a.count = count;
  *static_cast<T*>(a.mean) = Convert<T>(sum / count);
}

template <typename T>
__global__ void GradKernel(TargetMeanGradArgs a, Ids targets) {
  const auto mean = static_cast<double>(Widen(*reinterpret_cast<const T*>(a.dmean.data)));
  const T share = Convert<T>(mean / *reinterpret_cast<const double*>(a.count.data));
  ForEachPiece<int64_t>(a.rows, [&](int64_t i) {
    static_cast<T*>(a.dloss)[i] = targets[i] == a.ignore ? Convert<T>(0.0) : share;
  });
}

}  // namespace

absl::Status TargetMeanStats(Device& device, const char* kernel, const TargetMeanStatsArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    const LossTerm<decltype(t)> term = {Ids(args.targets, args.id_dtype), args.loss, args.ignore};
    return SumTerms<2>(device, kernel, args.rows, term, StoreStats{args.stats});
  });
}

absl::Status TargetMeanMerge(Device& device, const char* kernel, const TargetMeanMergeArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return Launch(device, kernel, 1, 1, MergeKernel<decltype(t)>, args);
  });
}

absl::Status TargetMeanGrad(Device& device, const char* kernel, const TargetMeanGradArgs& args) {
  if (args.rows == 0) return device.failure();
  return VisitFloat(args.dtype, [&](auto t) {
    return Launch(device, kernel, BlocksFor(args.rows), kThreads, GradKernel<decltype(t)>, args,
                  Ids(args.targets, args.id_dtype));
  });
}

}  // namespace dtensor::kernels::cuda
