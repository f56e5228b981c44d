// How fast rotary embedding turns each pair of elements: the same numbers on every device.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Which frequencies there are: theta^(-2 i / d) for i < d / 2, slowed down where a model was made
// for more positions than it was first trained on.
//
//   factor 1      as they are
//   trained 0     all are divided by `factor`: positions are, as "linear" has it
//   otherwise     by the turns that a frequency makes in `trained` positions, as "llama3" has it:
//                 fewer than `low` are divided, more than `high` stay, between them by degrees
struct RopeBase {
  double theta = 10000;
  double factor = 1;
  double low = 1, high = 4;  // Requires: low < high
  double trained = 0;
  friend bool operator==(const RopeBase&, const RopeBase&) = default;
};

// By the host's pow for every device: at position p its last bit is worth p bits of an angle.
inline std::vector<double> RopeFrequencies(const RopeBase& base, int64_t d) {
  std::vector<double> frequencies(d / 2);
  for (int64_t i = 0; i < d / 2; ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(base.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    if (base.factor == 1) continue;
    const double turns = base.trained * frequency / (2 * std::numbers::pi);
    const double kept = (turns - base.low) / (base.high - base.low);
    const double share = base.trained == 0 || kept < 0 ? 0 : kept > 1 ? 1 : kept;
    frequency *= share + (1 - share) / base.factor;
  }
  return frequencies;
}

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
