// Tensors as numbers on the host that a check computes with, and how far such numbers are apart.
#ifndef DTENSOR_RUNTIME_TESTING_DOUBLES_H_
#define DTENSOR_RUNTIME_TESTING_DOUBLES_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// Row-major.
using Doubles = std::vector<double>;

// `n` numbers from a standard normal distribution, each rounded to `dtype`: the same on every call.
// bf16 values are exact in every float type, but for numbers next to 0 in f16. Requires: a float
// type.
Doubles RandomNormal(int64_t n, DType dtype, uint64_t seed);

// Rounds once. Errors: kInvalidArgument for a type that is no float; of FromHost.
absl::StatusOr<Tensor> FromDoubles(Device& device, DType dtype, const Doubles& values,
                                   const Dims& shape);
// Exact for floats, whatever the strides. Waits for the device. Errors: of ToHost.
absl::StatusOr<Doubles> ToDoubles(const Tensor& tensor);

// sqrt(sum x^2 / n) over the n values that are finite; 0 if there are none.
template <typename T>
long double Rms(const std::vector<T>& values) {
  long double sum = 0;
  int64_t finite = 0;
  for (const long double x : values) {
    if (!std::isfinite(x)) continue;
    sum += x * x;
    ++finite;
  }
  return finite == 0 ? 0 : std::sqrt(sum / static_cast<long double>(finite));
}

// sqrt(sum (x - y)^2 / sum y^2) over the elements where y is finite. Infinite if x is not finite
// there, is anything but y elsewhere, or has another number of elements. Where y cancels to less
// than 1e-9 of the size of the terms that it is a sum of, it is nothing but rounding: the error is
// relative to that size.
template <typename T, typename U>
double RelativeRms(const std::vector<T>& x, const std::vector<U>& y, long double term_size = 0) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (x.size() != y.size()) return kInfinite;
  long double error = 0, norm = 0;
  int64_t finite = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) {
      if (x[i] != y[i]) return kInfinite;
      continue;
    }
    if (!std::isfinite(x[i])) return kInfinite;
    const long double difference = static_cast<long double>(x[i]) - y[i];
    error += difference * difference;
    norm += static_cast<long double>(y[i]) * y[i];
    ++finite;
  }
  if (error == 0) return 0;
  const auto n = static_cast<long double>(finite);
  const long double size = std::sqrt(norm / n);
  return static_cast<double>(std::sqrt(error / n) / (size < 1e-9L * term_size ? term_size : size));
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_DOUBLES_H_
