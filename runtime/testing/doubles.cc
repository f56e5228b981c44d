#include "dtensor/runtime/testing/doubles.h"

#include <random>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"

namespace dtensor {

Doubles RandomNormal(int64_t n, DType dtype, uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  Doubles values(n);
  kernels::VisitFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (double& x : values) x = kernels::Cast<double>(kernels::Cast<T>(normal(bits)));
  });
  return values;
}

absl::StatusOr<Tensor> FromDoubles(Device& device, DType dtype, const Doubles& values,
                                   const Dims& shape) {
  if (!IsFloat(dtype)) return InvalidArgument({"FromDoubles: ", ToString(dtype), " is no float"});
  return kernels::VisitFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> typed;
    typed.reserve(values.size());
    for (const double x : values) typed.push_back(kernels::Cast<T>(x));
    return FromHost<T>(device, typed, shape);
  });
}

absl::StatusOr<Doubles> ToDoubles(const Tensor& tensor) {
  return VisitDType(tensor.dtype(), [&](auto zero) -> absl::StatusOr<Doubles> {
    using T = decltype(zero);
    DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToHost<T>(tensor));
    Doubles doubles;
    doubles.reserve(values.size());
    for (const T x : values) doubles.push_back(kernels::Cast<double>(x));
    return doubles;
  });
}

}  // namespace dtensor
