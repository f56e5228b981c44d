// Lists that a kernel reads: boxes, runs of indices. Short ones are passed in its arguments; others
// are in the GPU's memory while it runs.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_LIST_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_LIST_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {

// A kernel argument. T is a plain value.
template <typename T, int kNear>
struct List {
  int64_t size;
  const T* far;  // null: the elements are near
  T near[kNear];

  __device__ const T& operator[](int64_t i) const { return far != nullptr ? far[i] : near[i]; }
};

namespace internal {

// Lists are copied to the GPU through kernel arguments: so host memory is not read later, and the
// copies run in stream order.
struct ListPart {
  static constexpr int kWords = 480;
  uint64_t words[kWords];
};

static __global__ void WriteListKernel(uint64_t* list, ListPart part, int words) {
  for (int i = threadIdx.x; i < words; i += blockDim.x) list[i] = part.words[i];
}

inline absl::Status WriteList(Device& device, const char* name, void* list, const void* from,
                              int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += sizeof(ListPart)) {
    const int64_t here = std::min<int64_t>(bytes - at, sizeof(ListPart));
    ListPart part = {};
    std::memcpy(&part, static_cast<const std::byte*>(from) + at, here);
    DT_RETURN_IF_ERROR(Launch(device, name, 1, 128, WriteListKernel,
                              reinterpret_cast<uint64_t*>(static_cast<std::byte*>(list) + at), part,
                              static_cast<int>((here + 7) / 8)));
  }
  return absl::OkStatus();
}

}  // namespace internal

// Calls launch(list), which launches a kernel that reads it. Errors: kResourceExhausted, the
// device's failure, launch's.
template <int kNear, typename T, typename Fn>
absl::Status WithList(Device& device, const char* name, absl::Span<const T> values, Fn launch) {
  static_assert(std::is_trivially_copyable_v<T>);
  List<T, kNear> list = {static_cast<int64_t>(values.size()), nullptr, {}};
  if (values.size() <= kNear) {
    std::copy(values.begin(), values.end(), list.near);
    return launch(list);
  }
  const int64_t bytes = (values.size() * sizeof(T) + 7) / 8 * 8;
  DT_ASSIGN_OR_RETURN(const Scratch far, Scratch::Make(device, bytes));
  list.far = static_cast<const T*>(far.get());
  DT_RETURN_IF_ERROR(
      internal::WriteList(device, name, far.get(), values.data(), values.size() * sizeof(T)));
  return launch(list);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_LIST_INL_H_
