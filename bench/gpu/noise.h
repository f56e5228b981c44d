// Operands of the GPU benchmarks.
#ifndef DTENSOR_BENCH_GPU_NOISE_H_
#define DTENSOR_BENCH_GPU_NOISE_H_

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::bench {

// Normally distributed numbers, the same each time: what is all alike may cost a GPU less power,
// and be computed faster. Errors: of the allocation; the device's failure.
absl::StatusOr<Tensor> Noise(Device& device, DType dtype, const Dims& shape);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_GPU_NOISE_H_
