// One line of the GPU benchmarks, and how it is timed.
#ifndef DTENSOR_BENCH_GPU_FIGURE_H_
#define DTENSOR_BENCH_GPU_FIGURE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::bench {

// A rate, or a time; and its share of a limit that was measured in the same run.
struct Figure {
  std::string name;  // "attention/fwd/8192/128/causal/cudnn"
  double value = 0;
  std::string unit;   // "GB/s", "TF/s", "us"
  std::string limit;  // of what `share` is a share; empty: there is none
  double share = 0;
  std::string remarks;  // what else was seen, as "bus 120 GB/s"
};
using Report = std::function<void(const Figure&)>;

// Sizes: of a GPU, or so small that fakes compute them too.
struct Scale {
  bool tiny = false;
  int rounds() const { return tiny ? 1 : 10; }
  int calls() const { return tiny ? 1 : 20; }  // between two waits
  int64_t Of(int64_t size, int64_t of_tiny) const { return tiny ? of_tiny : size; }
};

// Seconds of one call, of the fastest round: the host waits once for each round's calls, so that
// what a launch costs it is hidden as in programs. Errors: of the calls; the device's failure.
template <typename Fn>
absl::StatusOr<double> SecondsOf(Device& device, const Scale& scale, const Fn& call) {
  using Clock = std::chrono::steady_clock;
  DT_RETURN_IF_ERROR(call());  // plans are made, memory is there
  DT_RETURN_IF_ERROR(device.Synchronize());
  double fastest = 0;
  for (int round = 0; round < scale.rounds(); ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < scale.calls(); ++i) DT_RETURN_IF_ERROR(call());
    DT_RETURN_IF_ERROR(device.Synchronize());
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fastest = round == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest / scale.calls();
}

// One GPU: a copy, kernels that memory bounds, products, attention, what a launch costs the host.
absl::Status MeasureOneGpu(Device& device, const Scale& scale, const Report& report);
// Products beside bare calls of cuBLASLt, in turn.
absl::Status MeasureProducts(Device& device, const Scale& scale, const Report& report);
// `ranks` threads on the GPUs that there are, one each or sharing them: exchanges, a ring, a
// tensor-parallel model.
absl::Status MeasureRanks(int ranks, const Scale& scale, const Report& report);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_GPU_FIGURE_H_
