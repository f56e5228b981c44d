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

namespace dtensor {

// kernel<<<blocks, threads, 0, stream>>>(args...), with what the launch returns. Arguments are
// copied as bytes, at most 4 KB of them.
template <typename... P>
cudaError_t LaunchKernel(cudaStream_t stream, dim3 blocks, dim3 threads, void (*kernel)(P...),
                         const std::type_identity_t<P>&... args) {
  static_assert((std::is_trivially_copyable_v<P> && ...));
  static_assert((sizeof(P) + ... + 0) <= 4000);
#ifdef __CUDACC__
  const void* pointers[] = {&args..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads,
                          const_cast<void**>(pointers), 0, stream);
#else
  const fake_cuda::Kernel::Argument arguments[] = {{&args, sizeof(args)}..., {}};
  fake_cuda::LaunchGrid(stream, blocks, threads, {reinterpret_cast<const void*>(kernel), arguments},
                        [kernel, ... copy = args] { kernel(copy...); });
  return cudaSuccess;
#endif
}

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_CUDA_KERNEL_INL_H_
