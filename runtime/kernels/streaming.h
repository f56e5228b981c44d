// When outputs are written past the caches.
#ifndef DTENSOR_RUNTIME_KERNELS_STREAMING_H_
#define DTENSOR_RUNTIME_KERNELS_STREAMING_H_

#include <cstdint>
#include <initializer_list>

#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

// A streaming store saves reading the line that it overwrites, and costs the reader that comes next
// if the output would have stayed in the cache. So: only outputs too large to stay there, and never
// in place.
inline constexpr int64_t kStreamBytes = 8 << 20;

inline bool StreamStores(std::initializer_list<const Tensor*> inputs, const Tensor& out) {
  if (out.bytes() < kStreamBytes) return false;
  for (const Tensor* input : inputs) {
    if (input->SharesStorageWith(out)) return false;
  }
  return true;
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_STREAMING_H_
