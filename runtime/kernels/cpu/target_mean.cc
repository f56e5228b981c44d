#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/ids.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

void RunStats(const TargetMeanStatsArgs& a) {
  std::vector<std::byte> scratch[2];
  const Ids ids(Packed(a.targets, scratch[0]), a.id_dtype);
  const void* loss = Packed(a.loss, scratch[1]);
  double sum = 0, count = 0;
  VisitFloat(a.dtype, [&](auto t) {
    for (int64_t i = 0; i < a.rows; ++i) {
      if (ids[i] == a.ignore) continue;
      sum += Cast<double>(static_cast<const decltype(t)*>(loss)[i]);
      count += 1;
    }
  });
  a.stats[0] = sum;
  a.stats[1] = count;
}

void RunMerge(const TargetMeanMergeArgs& a) {
  std::vector<std::byte> scratch;
  const auto* stats = static_cast<const double*>(Packed(a.stats, scratch));
  double sum = 0, count = 0;
  for (int64_t p = 0; p < a.shards; ++p) {
    sum += stats[2 * p];
    count += stats[2 * p + 1];
  }
  *a.count = count;
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    *static_cast<T*>(a.mean) = Cast<T>(sum / count);
  });
}

void RunGrad(const TargetMeanGradArgs& a) {
  std::vector<std::byte> scratch;
  const Ids ids(Packed(a.targets, scratch), a.id_dtype);
  const double count = *reinterpret_cast<const double*>(a.count.data);
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    const T share = Cast<T>(Cast<double>(*reinterpret_cast<const T*>(a.dmean.data)) / count);
    for (int64_t i = 0; i < a.rows; ++i) {
      static_cast<T*>(a.dloss)[i] = ids[i] == a.ignore ? T{0} : share;
    }
  });
}

}  // namespace

absl::Status TargetMeanStats(Device& device, const char* kernel, const TargetMeanStatsArgs& args) {
  return Launch(device, kernel, args, RunStats);
}

absl::Status TargetMeanMerge(Device& device, const char* kernel, const TargetMeanMergeArgs& args) {
  return Launch(device, kernel, args, RunMerge);
}

absl::Status TargetMeanGrad(Device& device, const char* kernel, const TargetMeanGradArgs& args) {
  return Launch(device, kernel, args, RunGrad);
}

}  // namespace dtensor::kernels::cpu
