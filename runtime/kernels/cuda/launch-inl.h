// How kernels on a GPU are launched, and how elements are divided among their threads.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_LAUNCH_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_LAUNCH_INL_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

inline constexpr int kThreads = 256;  // of a block, unless a kernel says otherwise

// Errors: the device's failure; that of the launch, which fails the device.
template <typename... P>
absl::Status Launch(Device& device, const char* name, dim3 blocks, int threads,
                    void (*kernel)(P...), const std::type_identity_t<P>&... args) {
  DT_ASSIGN_OR_RETURN(const cudaStream_t stream, BeginCudaLaunch(device));
  return EndCudaLaunch(device, name, LaunchKernel(stream, blocks, threads, 0, kernel, args...));
}

// For a kernel that has a Memory by DT_LARGE_SHARED.
template <typename Memory, typename... P>
absl::Status LaunchLarge(Device& device, const char* name, dim3 blocks, int threads,
                         void (*kernel)(P...), const std::type_identity_t<P>&... args) {
  DT_ASSIGN_OR_RETURN(const cudaStream_t stream, BeginCudaLaunch(device));
  return EndCudaLaunch(device, name,
                       LaunchKernel(stream, blocks, threads, sizeof(Memory), kernel, args...));
}

// Enough blocks of kThreads for n > 0 pieces of work, one per thread. Beyond a limit there are
// fewer, and threads take several pieces (ForEachPiece). Depends on the shape alone: no result
// depends on how many processors a GPU has.
inline unsigned BlocksFor(int64_t n) {
  constexpr int64_t kMost = 4096;
  return static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMost));
}

__device__ inline int64_t Lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// a / b for numbers that are not negative; in 32 bits if possible, since 64-bit divisions are slow.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// On the GPU: calls fn(i) for this thread's pieces, of all n that the threads of a grid share.
// `Index` must hold n plus the grid's size, which is below 2^21.
template <typename Index, typename Fn>
__device__ void ForEachPiece(Index n, Fn fn) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) fn(i);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_LAUNCH_INL_H_
