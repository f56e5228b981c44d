// Memory of the fake CUDA runtime: the host's, poisoned when it is allocated and freed in the order
// of the stream, so that sanitizers see who touches it too early or too late. Page-locked memory,
// and a GPU's that is in no pool, is allocated and freed at once. Compiled without TSan's
// instrumentation (ordering.h); TSan sees memcpy and memset all the same.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/ordering.h"

using dtensor::fake_cuda::CurrentGpu;
using dtensor::fake_cuda::Enqueue;
using dtensor::fake_cuda::ForgivesLeaks;
using dtensor::fake_cuda::GpuOf;
using dtensor::fake_cuda::Gpus;
using dtensor::fake_cuda::kMostGpus;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::RequireOnGpu;
using dtensor::fake_cuda::RequireWithin;
using dtensor::fake_cuda::Return;
using dtensor::fake_cuda::SpinLock;
using dtensor::fake_cuda::WaitForGpu;

namespace {

constexpr size_t kBytesOfGpu = size_t{4} << 30;
constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xFF;     // a NaN, and an index that is out of range
constexpr int kHost = kMostGpus;  // in place of a GPU: page-locked memory of the host

enum class From { kPool, kGpu, kHost };  // cudaMallocAsync, cudaMalloc, cudaMallocHost

struct Block {
  size_t bytes;
  int gpu;
  From from;
};

class Memory {
 public:
  void* Allocate(int gpu, size_t bytes, From from) {
    std::lock_guard lock(mutex_);
    void* data = nullptr;
    if (bytes > kBytesOfGpu - used_[gpu] || posix_memalign(&data, kAlignment, bytes) != 0) {
      return nullptr;
    }
    used_[gpu] += bytes;
    blocks_[reinterpret_cast<uintptr_t>(data)] = {bytes, gpu, from};
    return data;
  }
  // From now on no call may name it.
  Block Take(const char* call, void* data, From from) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(data));
    if (found == blocks_.end() || found->second.from != from) {
      Refuse(call, "no such memory was allocated, or it was freed before");
    }
    const Block block = found->second;
    used_[block.gpu] -= block.bytes;
    blocks_.erase(found);
    return block;
  }
  void RequireWithin(const char* call, const void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    Find(call, data, bytes);
  }
  void RequireOnGpu(const char* call, int gpu, const void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    const Block* const block = Find(call, data, bytes);
    if (block == nullptr || block->gpu == kHost) Refuse(call, "it is not memory of a GPU");
    if (block->gpu != gpu) Refuse(call, "it is memory of another GPU");
  }
  // The GPU, or kHost; -1 where nothing was allocated.
  int PlaceOf(const void* data) {
    std::lock_guard lock(mutex_);
    const Block* const block = Find("", data, 0);
    return block == nullptr ? -1 : block->gpu;
  }
  void LetRead(int reader, int owner) {
    std::lock_guard lock(mutex_);
    lets_read_[owner][reader] = true;
  }
  void RequireAccess(int gpu, const void* arguments, size_t bytes) {
    std::lock_guard lock(mutex_);
    const auto* const words = static_cast<const char*>(arguments);
    for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
      void* address;
      std::memcpy(&address, words + at, sizeof(address));
      const Block* const block = Find("a launch", address, 0);
      if (block == nullptr || block->gpu == gpu || block->from == From::kHost) continue;
      const bool is_pools = block->from == From::kPool;
      if (is_pools ? lets_read_[block->gpu][gpu]
                   : dtensor::fake_cuda::IsPeerEnabled(gpu, block->gpu)) {
        continue;
      }
      Refuse("a launch", is_pools ? "the pool of another GPU's memory gives this GPU no access"
                                  : "this GPU has no access to memory of a peer");
    }
  }
  ~Memory() {
    if (!blocks_.empty() && !ForgivesLeaks())
      Refuse("at the end of the program", "memory was not freed");
  }

 private:
  // The block that has all of it; null if it begins in none.
  const Block* Find(const char* call, const void* data, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto block = blocks_.upper_bound(address);
    if (block == blocks_.begin()) return nullptr;
    --block;
    const size_t offset = address - block->first;
    if (offset >= block->second.bytes) return nullptr;
    if (bytes > block->second.bytes - offset) {
      Refuse(call, "it reaches beyond the end of what was allocated");
    }
    return &block->second;
  }

  SpinLock mutex_;
  std::map<uintptr_t, Block> blocks_;
  size_t used_[kMostGpus + 1] = {};
  bool lets_read_[kMostGpus][kMostGpus] = {};  // [owner of a pool][reader]
};

Memory& AllMemory() {
  static Memory memory;
  return memory;
}

// What a pool's handle points to; there is nothing to know of it.
char pools[kMostGpus];

bool IsPool(cudaMemPool_t pool) {
  for (char& one : pools) {
    if (pool == reinterpret_cast<cudaMemPool_t>(&one)) return true;
  }
  return false;
}

}  // namespace

namespace dtensor::fake_cuda {

void RequireWithin(const char* call, const void* data, size_t bytes) {
  AllMemory().RequireWithin(call, data, bytes);
}

void RequireOnGpu(const char* call, int gpu, const void* data, size_t bytes) {
  if (bytes > 0) AllMemory().RequireOnGpu(call, gpu, data, bytes);
}

void RequireAccess(int gpu, const void* arguments, size_t bytes) {
  AllMemory().RequireAccess(gpu, arguments, bytes);
}

}  // namespace dtensor::fake_cuda

extern "C" {

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return Return(cudaErrorInvalidValue);
  void* const memory = AllMemory().Allocate(GpuOf(stream), bytes, From::kPool);
  if (memory == nullptr) return Return(cudaErrorMemoryAllocation);
  Enqueue(stream, [memory, bytes] { std::memset(memory, kPoison, bytes); });
  *data = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  const Block block = AllMemory().Take("cudaFreeAsync", data, From::kPool);
  Enqueue(stream, [data, block] {
    std::memset(data, kPoison, block.bytes);
    std::free(data);
  });
  return cudaSuccess;
}

// It and the next three may wait for all that the GPU does (CUDA's guide: implicit
// synchronization). It has the same address on the host and on all GPUs, says the guide too.
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  if (bytes == 0) Refuse("cudaMallocHost", "only 1 byte and more are faked");
  WaitForGpu(CurrentGpu());
  void* const memory = AllMemory().Allocate(kHost, bytes, From::kHost);
  if (memory == nullptr) return Return(cudaErrorMemoryAllocation);
  std::memset(memory, kPoison, bytes);
  *data = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  WaitForGpu(CurrentGpu());
  AllMemory().Take("cudaFreeHost", data, From::kHost);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (bytes == 0) Refuse("cudaMalloc", "only 1 byte and more are faked");
  WaitForGpu(CurrentGpu());
  void* const memory = AllMemory().Allocate(CurrentGpu(), bytes, From::kGpu);
  if (memory == nullptr) return Return(cudaErrorMemoryAllocation);
  std::memset(memory, kPoison, bytes);
  *data = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  WaitForGpu(AllMemory().Take("cudaFree", data, From::kGpu).gpu);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* known, const void* data) {
  const int place = AllMemory().PlaceOf(data);
  *known = {};
  known->type = place < 0        ? cudaMemoryTypeUnregistered
                : place == kHost ? cudaMemoryTypeHost
                                 : cudaMemoryTypeDevice;
  known->device = place == kHost ? 0 : place;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) Refuse("cudaMemcpyAsync", "only cudaMemcpyDefault is faked");
  RequireWithin("cudaMemcpyAsync", to, bytes);
  RequireWithin("cudaMemcpyAsync", from, bytes);
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  RequireOnGpu("cudaMemsetAsync", GpuOf(stream), data, bytes);
  Enqueue(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int gpu) {
  if (gpu < 0 || gpu >= Gpus()) return Return(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&pools[gpu]);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void*) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) {
    Refuse("cudaMemPoolSetAttribute", "only cudaMemPoolAttrReleaseThreshold is faked");
  }
  return IsPool(pool) ? cudaSuccess : Return(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int peer) {
  if (gpu < 0 || gpu >= Gpus() || peer < 0 || peer >= Gpus()) return Return(cudaErrorInvalidDevice);
  *can = gpu != peer;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t n) {
  if (!IsPool(pool)) return Return(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; ++i) {
    const cudaMemLocation& where = access[i].location;
    if (where.type != cudaMemLocationTypeDevice || where.id < 0 || where.id >= Gpus()) {
      return Return(cudaErrorInvalidDevice);
    }
    if (access[i].flags != cudaMemAccessFlagsProtReadWrite) {
      Refuse("cudaMemPoolSetAccess", "only access to read and write is faked");
    }
    AllMemory().LetRead(where.id, static_cast<int>(reinterpret_cast<char*>(pool) - pools));
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  return IsPool(pool) ? cudaSuccess : Return(cudaErrorInvalidValue);
}

}  // extern "C"
