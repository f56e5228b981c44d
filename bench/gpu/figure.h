// One line of the GPU benchmarks, and how it is timed.
#ifndef DTENSOR_BENCH_GPU_FIGURE_H_
#define DTENSOR_BENCH_GPU_FIGURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {
class Context;
}  // namespace dtensor

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

using Call = std::function<absl::Status()>;

// Seconds of one call of each, of its fastest round. Rounds are taken in turn, so that what else
// happens to the machine meanwhile happens to all. The host waits once for each round's calls, so
// that what a launch costs it is hidden as in programs. Errors: of the calls; the device's failure.
absl::StatusOr<std::vector<double>> SecondsInTurn(Device& device, const Scale& scale,
                                                  const std::vector<Call>& calls);
absl::StatusOr<double> SecondsOf(Device& device, const Scale& scale, const Call& call);

// One GPU: what follows, attention, what a launch costs the host.
absl::Status MeasureOneGpu(Device& device, const Scale& scale, const Report& report);
// A copy, and kernels that memory bounds. Returns what the copy reaches, in GB/s.
absl::StatusOr<double> MeasureMemory(Device& device, const Scale& scale, const Report& report);
// Products beside bare calls of cuBLASLt, in turn.
absl::Status MeasureProducts(Device& device, const Scale& scale, const Report& report);
// `ranks` threads on the GPUs that there are, one each or sharing them: exchanges, a ring, a
// tensor-parallel model.
absl::Status MeasureRanks(int ranks, const Scale& scale, const Report& report);
// The exchanges alone, of a world of processes on one host with a GPU each: by NCCL. Collective;
// rank 0 reports.
absl::Status MeasureNccl(Context& context, const Scale& scale, const Report& report);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_GPU_FIGURE_H_
