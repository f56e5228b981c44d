// How fast rotary embedding rotates each pair of elements: the same numbers on every device.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// The frequencies: theta^(-2 i / d) for i < d / 2, reduced if a model was made for more positions
// than it was first trained on.
//
//   factor 1      unchanged
//   trained 0     all are divided by `factor`, so positions are: "linear" scaling
//   otherwise     "llama3" scaling, by the number of turns that a frequency makes in `trained`
//                 positions: with fewer than `low` it is divided by `factor`, with more than `high`
//                 it is unchanged, with a gradual transition between the two
struct RopeBase {
  double theta = 10000;
  double factor = 1;
  double low = 1, high = 4;  // Requires: low < high
  double trained = 0;
  friend bool operator==(const RopeBase&, const RopeBase&) = default;
};

// Uses the host's pow for every device: at position p, an error in its last bit is multiplied by p.
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
