// Ids on a GPU, and the check of their range.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_IDS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_IDS_INL_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/kernel_error.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"

namespace dtensor::kernels::cuda {

// Element i of an input, row-major.
template <typename T>
__device__ T ElementOf(const StridedInput& input, int64_t i) {
  const int64_t at = input.contiguous ? i : OffsetsOf(input.loop, static_cast<uint64_t>(i)).at[0];
  return reinterpret_cast<const T*>(input.data)[at];
}

// Ids of either integer type.
struct Ids {
  Ids(const StridedInput& ids, DType dtype) : input(ids), wide(dtype == DType::kI64) {}
  __device__ int64_t operator[](int64_t i) const {
    return wide ? ElementOf<int64_t>(input, i) : ElementOf<int32_t>(input, i);
  }

  StridedInput input;
  bool wide;
};

// Makes the device fail, once its stream is waited for, if an index is outside [0, limit).
struct IndexCheck {
  IndexCheck(const Device& device, const char* kernel, const char* what, int64_t limit)
      : error(CudaKernelErrorOf(device)), kernel(kernel), what(what), limit(limit) {}

  // Whether the index at `position` of the input is in range.
  __device__ bool Passes(int64_t index, int64_t position) const {
    if (index >= 0 && index < limit) return true;
    if (atomicCAS(&error->found, 0, 1) == 0) {
      error->kernel = kernel;
      error->index = {what, index, position, limit};
    }
    return false;
  }

  KernelError* error;
  const char *kernel, *what;  // string literals
  int64_t limit;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_IDS_INL_H_
