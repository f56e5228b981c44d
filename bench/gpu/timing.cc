#include <algorithm>
#include <chrono>
#include <vector>

#include "dtensor/bench/gpu/figure.h"
#include "dtensor/bench/gpu/noise.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::bench {

absl::StatusOr<std::vector<double>> SecondsInTurn(Device& device, const Scale& scale,
                                                  const std::vector<Call>& calls) {
  using Clock = std::chrono::steady_clock;
  for (const Call& call : calls) DT_RETURN_IF_ERROR(call());  // plans are made, memory is there
  DT_RETURN_IF_ERROR(device.Synchronize());
  std::vector<double> fastest(calls.size());
  for (int round = 0; round < scale.rounds(); ++round) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto begin = Clock::now();
      for (int n = 0; n < scale.calls(); ++n) DT_RETURN_IF_ERROR(calls[i]());
      DT_RETURN_IF_ERROR(device.Synchronize());
      const double seconds =
          std::chrono::duration<double>(Clock::now() - begin).count() / scale.calls();
      fastest[i] = round == 0 ? seconds : std::min(fastest[i], seconds);
    }
  }
  return fastest;
}

absl::StatusOr<double> SecondsOf(Device& device, const Scale& scale, const Call& call) {
  DT_ASSIGN_OR_RETURN(const std::vector<double> seconds, SecondsInTurn(device, scale, {call}));
  return seconds[0];
}

absl::StatusOr<Tensor> Noise(Device& device, DType dtype, const Dims& shape) {
  DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(device, dtype, shape));
  std::vector<IndexSet> region;
  for (const int64_t size : shape) region.push_back(IndexSet::Interval(0, size));
  DT_RETURN_IF_ERROR(kernels::RandomNormal(device, region, shape, 1, 2, 0, 1, tensor));
  return tensor;
}

}  // namespace dtensor::bench
