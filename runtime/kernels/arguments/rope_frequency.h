// How fast rotary embedding rotates each pair of elements: the same numbers on every device.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/rope_scaling.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

struct RopeBase {
  double theta = 10000;
  RopeScaling scaling = {};
  friend bool operator==(const RopeBase&, const RopeBase&) = default;
};

// For each pair: 1 if its frequency stays as it is, 0 if it is divided by the factor, and between
// the two in the transition. Requires: factor != 1.
inline double RopeShareKept(const RopeBase& base, int64_t d, int64_t pair, double frequency) {
  const RopeScaling& scaling = base.scaling;
  if (scaling.trained == 0) return 0;
  double kept;
  if (scaling.transition == RopeTransition::kByTurns) {
    const double turns = scaling.trained * frequency / (2 * std::numbers::pi);
    kept = (turns - scaling.low) / (scaling.high - scaling.low);
  } else {
    // The pair whose frequency makes so many turns.
    const auto pair_of = [&](double turns) {
      return static_cast<double>(d) * std::log(scaling.trained / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(base.theta));
    };
    double first = pair_of(scaling.high), last = pair_of(scaling.low);
    if (scaling.transition == RopeTransition::kByWholePairs) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::fmax(first, 0);
    last = std::fmin(last, static_cast<double>(d - 1));
    if (first == last) last += 0.001;
    kept = 1 - (static_cast<double>(pair) - first) / (last - first);
  }
  return std::fmin(std::fmax(kept, 0), 1);
}

// The frequency of each pair (rope_scaling.h). Uses the host's pow for every device: at position p,
// an error in its last bit is multiplied by p.
inline std::vector<double> RopeFrequencies(const RopeBase& base, int64_t d) {
  std::vector<double> frequencies(d / 2);
  for (int64_t i = 0; i < d / 2; ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(base.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    if (base.scaling.factor == 1) continue;
    const double kept = RopeShareKept(base, d, i, frequency);
    frequency *= kept + (1 - kept) / base.scaling.factor;
  }
  return frequencies;
}

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
