// AdamW and SGD on contiguous memory, vectorized with run-time dispatch.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_

#include "dtensor/runtime/kernels/arguments/optimizer_args.h"

namespace dtensor::kernels::simd {

// With these factors instead of the arguments'.
void AdamW(const AdamWFactors& factors, const AdamWArgs& args);
void Sgd(const SgdFactors& factors, const SgdArgs& args);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
