// The grid on the host: what g++ compiles a kernel's source with if CUDA is faked.
//
// Each CUDA thread is a fiber. The blocks of a grid run one after the other, in any order, on the
// thread of the stream that they were launched on; the threads of a block run in any order, each
// until it waits for others. This exposes code that relies on an order between threads. For TSan,
// only launches and barriers order threads. Shared memory is filled with 0xFF, and has gaps that
// ASan checks.
//
// The program is stopped with status 67 (fake.h) for: a barrier that not all threads of the block
// reach, or that they reach at different lines; lanes of a warp that wait for different things;
// more threads or shared memory than a GPU has; shared memory that PTX's asynchronous proxy reads
// and that a thread has written since the last fence of all threads.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_HOST_GRID_H_
#define DTENSOR_TOOLS_CUDA_FAKE_HOST_GRID_H_

#include <cuda_runtime_api.h>
// exp(float) without std::, as nvcc has it: <cmath> alone leaves exp(double) there.
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace dtensor::fake_cuda {

struct BuiltIns {
  uint3 thread = {}, block = {};
  dim3 threads, blocks;  // of a block, of the grid
};
extern constinit thread_local BuiltIns built_ins;  // no function makes it at first use

inline constexpr int kWarpSize = 32;
inline constexpr size_t kSharedBytes = 227 << 10;  // of one block, as sm_90 has

int Lane();
void SyncThreads(int line);
void SyncWarp(unsigned mask, int line);
// What `lane` of this warp brought, once all lanes of `mask` have brought theirs.
uint64_t Shuffle(unsigned mask, uint64_t bits, int lane, int line);
// What each lane of this warp brought.
void FromAllLanes(uint64_t bits, uint64_t (&all)[kWarpSize], int line);
// Whether `holds` for any lane of this warp.
bool AnyLane(unsigned mask, bool holds, int line);
// This block's memory for `site`, an array in a kernel's source.
void* Shared(const void* site, size_t bytes);
// A thread's fence.proxy.async: once all threads of the block have called it, again, the
// asynchronous proxy sees shared memory as it is then.
void FenceAsyncProxy();
// What an instruction of that proxy reads.
void RequireFenced(const void* data, size_t bytes);

// Runs `thread` for each thread of a grid. On a stream's thread.
void RunGrid(dim3 blocks, dim3 threads, const std::function<void()>& thread);
// A kernel's address, and the bytes of its arguments, of which the last is empty.
struct Kernel {
  struct Argument {
    const void* data;
    size_t bytes;
  };
  const void* address;
  const Argument* arguments;
};
// The same, behind what `stream` has. Refuses a grid that no GPU takes, and arguments that name
// memory of a GPU that this one has no access to.
void LaunchGrid(cudaStream_t stream, dim3 blocks, dim3 threads, const Kernel& kernel,
                std::function<void()> thread);

template <typename T>
T ShuffleAs(unsigned mask, T value, int lane, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(mask, bits, lane, line);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// As CUDA's: a lane beyond the warp gives the caller's own value.
inline int LaneBelow(int lane) { return lane < kWarpSize ? lane : Lane(); }

}  // namespace dtensor::fake_cuda

// As CUDA's, which orders nothing else.
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;  // what was there
}
template <typename T>
T atomicAdd(T* address, T value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

// For the host's version of what a warp does by an instruction that g++ does not know.
#define DT_FROM_ALL_LANES(bits, all) ::dtensor::fake_cuda::FromAllLanes(bits, all, __LINE__)

#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
#undef __grid_constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (::dtensor::fake_cuda::built_ins.thread)
#define blockIdx (::dtensor::fake_cuda::built_ins.block)
#define blockDim (::dtensor::fake_cuda::built_ins.threads)
#define gridDim (::dtensor::fake_cuda::built_ins.blocks)
#define __syncthreads() ::dtensor::fake_cuda::SyncThreads(__LINE__)
#define __syncwarp() ::dtensor::fake_cuda::SyncWarp(~0u, __LINE__)
#define __any_sync(mask, holds) ::dtensor::fake_cuda::AnyLane(mask, holds, __LINE__)
#define __shfl_sync(mask, value, lane) ::dtensor::fake_cuda::ShuffleAs(mask, value, lane, __LINE__)
#define __shfl_xor_sync(mask, value, bits)                                                 \
  ::dtensor::fake_cuda::ShuffleAs(                                                         \
      mask, value, ::dtensor::fake_cuda::LaneBelow(::dtensor::fake_cuda::Lane() ^ (bits)), \
      __LINE__)
#define __shfl_down_sync(mask, value, delta)                                                \
  ::dtensor::fake_cuda::ShuffleAs(                                                          \
      mask, value, ::dtensor::fake_cuda::LaneBelow(::dtensor::fake_cuda::Lane() + (delta)), \
      __LINE__)

#endif  // DTENSOR_TOOLS_CUDA_FAKE_HOST_GRID_H_
