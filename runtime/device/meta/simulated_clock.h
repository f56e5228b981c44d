// SimulatedClock: how long a simulated rank would take, and how much work it would do.
//
// Kernels run one after the other, each as long as its work takes at the machine's rates. What
// other ranks send comes over links, one for each mesh axis. A link carries one exchange at a time
// and needs no kernel. A rank waits when it needs something that has not arrived yet.
//
//   compute        ####### ####                        ########
//   link tp        begins: ==================| ends
//   exposed                    ..............         the rank waits
//
// What it leaves out: caches, kernels that slow each other or the links down, and waiting for
// slower ranks, since each rank is simulated by itself.
#ifndef DTENSOR_RUNTIME_DEVICE_META_SIMULATED_CLOCK_H_
#define DTENSOR_RUNTIME_DEVICE_META_SIMULATED_CLOCK_H_

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/machine_rates.h"
#include "dtensor/runtime/core/work.h"

namespace DTENSOR_EXPORT dtensor {

// Since the beginning of the run. The cost of a part of a run is the difference of two values.
struct SimulatedTime {
  double compute_seconds = 0;        // in kernels
  double communication_seconds = 0;  // of exchanges, exposed or not
  double exposed_seconds = 0;        // waiting for exchanges
  double total() const { return compute_seconds + exposed_seconds; }

  friend SimulatedTime operator-(const SimulatedTime& a, const SimulatedTime& b) {
    return {a.compute_seconds - b.compute_seconds,
            a.communication_seconds - b.communication_seconds,
            a.exposed_seconds - b.exposed_seconds};
  }
  friend SimulatedTime operator+(const SimulatedTime& a, const SimulatedTime& b) {
    return {a.compute_seconds + b.compute_seconds,
            a.communication_seconds + b.communication_seconds,
            a.exposed_seconds + b.exposed_seconds};
  }
  friend bool operator==(const SimulatedTime&, const SimulatedTime&) = default;
};

class SimulatedClock {
 public:
  explicit SimulatedClock(MachineRates rates) : rates_(std::move(rates)) {}

  const MachineRates& rates() const { return rates_; }
  const SimulatedTime& time() const { return time_; }
  const WorkCounts& work() const { return work_; }

  // --- Called by the device and the communicator.
  void Compute(const KernelWork& work);  // one kernel
  // Adds an exchange over the links of `axes`, a Collective's label, which takes `seconds` once all
  // of them are free. Returns the time at which it ends, for WaitUntil.
  double Communicate(absl::string_view axes, double seconds);
  void WaitUntil(double end);

 private:
  const MachineRates rates_;
  SimulatedTime time_;
  WorkCounts work_;
  std::map<std::string, double, std::less<>> free_at_;  // by axis
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_META_SIMULATED_CLOCK_H_
