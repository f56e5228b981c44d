// For sources of kernels: CUDA's own words where nvcc compiles them, the host grid's where g++
// does (--config=cuda_fake, docs/cuda.md). One source serves both; what it needs beyond CUDA C++ is
// here.
#ifndef DTENSOR_TOOLS_CUDA_KERNEL_INL_H_
#define DTENSOR_TOOLS_CUDA_KERNEL_INL_H_

#include <cuda_runtime_api.h>

#include <type_traits>

#ifndef __CUDACC__
#include "dtensor/tools/cuda/fake/host_grid.h"
#endif

// T name[n] in the block's shared memory. `n` is a constant.
#ifdef __CUDACC__
#define DT_SHARED(T, name, n) __shared__ T name[n]
#else
#define DT_SHARED(T, name, n)        \
  static const char name##_site = 0; \
  T(&name)[n] = *static_cast<T(*)[n]>(::dtensor::fake_cuda::Shared(&name##_site, sizeof(T[n])))
#endif

// T& name in the block's shared memory, at a multiple of 1024 bytes, which may be more than the
// 48 KiB of arrays: of a kernel that is launched with sizeof(T) bytes of it, has this once, and no
// other shared memory.
#ifdef __CUDACC__
#define DT_LARGE_SHARED(T, name)                             \
  extern __shared__ __align__(1024) uint4 dt_large_shared[]; \
  T& name = *reinterpret_cast<T*>(dt_large_shared)
#else
#define DT_LARGE_SHARED(T, name) \
  DT_SHARED(T, name##_array, 1); \
  T& name = name##_array[0]
#endif

// The type of a kernel's argument that is so long that a copy for each thread would be most of what
// the host grid does.
#ifdef __CUDACC__
#define DT_GRID_CONSTANT(...) const __grid_constant__ __VA_ARGS__
#else
#define DT_GRID_CONSTANT(...) const __VA_ARGS__&
#endif

namespace dtensor {

// kernel<<<blocks, threads, large_bytes, stream>>>(args...), with what the launch returns.
// Arguments are copied as bytes, at most 4 KB of them. `large_bytes`: of DT_LARGE_SHARED.
template <typename... P>
cudaError_t LaunchKernel(cudaStream_t stream, dim3 blocks, dim3 threads,
                         [[maybe_unused]] size_t large_bytes, void (*kernel)(P...),
                         const std::type_identity_t<P>&... args) {
  static_assert((std::is_trivially_copyable_v<std::remove_cvref_t<P>> && ...));
  static_assert((sizeof(P) + ... + 0) <= 4000);
#ifdef __CUDACC__
  if (large_bytes > 48 << 10) {  // of this GPU's own
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(large_bytes));
    if (error != cudaSuccess) return error;
  }
  const void* pointers[] = {&args..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads,
                          const_cast<void**>(pointers), large_bytes, stream);
#else
  const fake_cuda::Kernel::Argument arguments[] = {{&args, sizeof(args)}..., {}};
  fake_cuda::LaunchGrid(stream, blocks, threads, {reinterpret_cast<const void*>(kernel), arguments},
                        [kernel, ... copy = args] { kernel(copy...); });
  return cudaSuccess;
#endif
}

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_CUDA_KERNEL_INL_H_
