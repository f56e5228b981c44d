// How fast rotary embedding turns each pair of elements: the same numbers on every device.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace dtensor::kernels {

// theta^(-2 i / d) for i < d / 2. By the host's pow for every device: at position p its last bit is
// worth p bits of an angle.
inline std::vector<double> RopeFrequencies(double theta, int64_t d) {
  std::vector<double> frequencies(d / 2);
  for (int64_t i = 0; i < d / 2; ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  }
  return frequencies;
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ROPE_FREQUENCY_H_
