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
  int pool;  // where it is from one
};

// The first are GPUs' default ones, a program's come behind them.
constexpr int kMostPools = 64;
struct Pool {
  int gpu;
  bool is_open;
  size_t used;
  bool lets_read[kMostGpus];
};

class Memory {
 public:
  Memory() {
    for (int gpu = 0; gpu < kMostGpus; ++gpu) {
      pools_[gpu] = {gpu, true, 0, {}};
      current_[gpu] = gpu;
    }
  }

  void* Allocate(int gpu, size_t bytes, From from) { return Allocate(gpu, bytes, from, -1); }
  // From the GPU's current pool, or the given one.
  void* AllocateFromPool(int gpu, size_t bytes, int pool) {
    return Allocate(gpu, bytes, From::kPool, pool);
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
    if (from == From::kPool) pools_[block.pool].used -= block.bytes;
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

  // Null where there is none, or no more.
  Pool* FindPool(cudaMemPool_t pool) {
    std::lock_guard lock(mutex_);
    for (Pool& one : pools_) {
      if (pool == reinterpret_cast<cudaMemPool_t>(&one)) return one.is_open ? &one : nullptr;
    }
    return nullptr;
  }
  cudaMemPool_t DefaultPool(int gpu) { return reinterpret_cast<cudaMemPool_t>(&pools_[gpu]); }
  int NumberOf(const Pool* pool) const { return static_cast<int>(pool - pools_); }
  cudaMemPool_t MakePool(int gpu) {
    std::lock_guard lock(mutex_);
    for (int i = kMostGpus; i < kMostPools; ++i) {
      if (pools_[i].is_open || pools_[i].used > 0) continue;
      pools_[i] = {gpu, true, 0, {}};
      return reinterpret_cast<cudaMemPool_t>(&pools_[i]);
    }
    Refuse("cudaMemPoolCreate", "more pools than are faked");
  }
  void SetCurrent(const Pool* pool) {
    std::lock_guard lock(mutex_);
    current_[pool->gpu] = NumberOf(pool);
  }
  // What is allocated from it stays. Its GPU has its default pool again.
  void EndPool(Pool* pool) {
    std::lock_guard lock(mutex_);
    pool->is_open = false;
    if (current_[pool->gpu] == NumberOf(pool)) current_[pool->gpu] = pool->gpu;
  }
  size_t UsedOf(const Pool* pool) {
    std::lock_guard lock(mutex_);
    return pool->used;
  }
  void LetRead(int reader, Pool* pool) {
    std::lock_guard lock(mutex_);
    pool->lets_read[reader] = true;
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
      if (is_pools ? pools_[block->pool].lets_read[gpu]
                   : dtensor::fake_cuda::IsPeerEnabled(gpu, block->gpu)) {
        continue;
      }
      Refuse("a launch", is_pools ? "the pool of another GPU's memory gives this GPU no access"
                                  : "this GPU has no access to memory of a peer");
    }
  }
  ~Memory() {
    if (ForgivesLeaks()) return;
    if (!blocks_.empty()) Refuse("at the end of the program", "memory was not freed");
    for (int i = kMostGpus; i < kMostPools; ++i) {
      if (pools_[i].is_open) Refuse("at the end of the program", "a pool was not destroyed");
    }
  }

 private:
  void* Allocate(int gpu, size_t bytes, From from, int pool) {
    std::lock_guard lock(mutex_);
    void* data = nullptr;
    if (bytes > kBytesOfGpu - used_[gpu] || posix_memalign(&data, kAlignment, bytes) != 0) {
      return nullptr;
    }
    used_[gpu] += bytes;
    if (from == From::kPool) {
      if (pool < 0) pool = current_[gpu];
      pools_[pool].used += bytes;
    }
    blocks_[reinterpret_cast<uintptr_t>(data)] = {bytes, gpu, from, pool};
    return data;
  }
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
  Pool pools_[kMostPools] = {};
  int current_[kMostGpus];  // each GPU's pool
};

Memory& AllMemory() {
  static Memory memory;
  return memory;
}

// Memory of the stream's GPU, of a number in Memory's pools; -1: of the current one.
cudaError_t AllocateInOrder(void** data, size_t bytes, int pool, cudaStream_t stream) {
  if (bytes == 0) return Return(cudaErrorInvalidValue);
  void* const memory = AllMemory().AllocateFromPool(GpuOf(stream), bytes, pool);
  if (memory == nullptr) return Return(cudaErrorMemoryAllocation);
  Enqueue(stream, [memory, bytes] { std::memset(memory, kPoison, bytes); });
  *data = memory;
  return cudaSuccess;
}

bool IsGpu(const cudaMemLocation& where) {
  return where.type == cudaMemLocationTypeDevice && where.id >= 0 && where.id < Gpus();
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
  return AllocateInOrder(data, bytes, -1, stream);
}

cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const Pool* const found = AllMemory().FindPool(pool);
  if (found == nullptr) return Return(cudaErrorInvalidValue);
  if (found->gpu != GpuOf(stream)) {
    Refuse("cudaMallocFromPoolAsync", "only a pool of the stream's own GPU is faked");
  }
  return AllocateInOrder(data, bytes, AllMemory().NumberOf(found), stream);
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
  *pool = AllMemory().DefaultPool(gpu);
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* wanted) {
  if (wanted->allocType != cudaMemAllocationTypePinned || !IsGpu(wanted->location)) {
    Refuse("cudaMemPoolCreate", "only pools of a GPU's own memory are faked");
  }
  *pool = AllMemory().MakePool(wanted->location.id);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  Pool* const found = AllMemory().FindPool(pool);
  if (found == nullptr || pool == AllMemory().DefaultPool(found->gpu)) {
    return Return(cudaErrorInvalidValue);
  }
  AllMemory().EndPool(found);
  return cudaSuccess;
}

cudaError_t cudaDeviceSetMemPool(int gpu, cudaMemPool_t pool) {
  const Pool* const found = AllMemory().FindPool(pool);
  if (found == nullptr || found->gpu != gpu) return Return(cudaErrorInvalidValue);
  AllMemory().SetCurrent(found);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (attribute != cudaMemPoolAttrUsedMemCurrent) {
    Refuse("cudaMemPoolGetAttribute", "only cudaMemPoolAttrUsedMemCurrent is faked");
  }
  const Pool* const found = AllMemory().FindPool(pool);
  if (found == nullptr) return Return(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = AllMemory().UsedOf(found);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void*) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) {
    Refuse("cudaMemPoolSetAttribute", "only cudaMemPoolAttrReleaseThreshold is faked");
  }
  return AllMemory().FindPool(pool) != nullptr ? cudaSuccess : Return(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int peer) {
  if (gpu < 0 || gpu >= Gpus() || peer < 0 || peer >= Gpus()) return Return(cudaErrorInvalidDevice);
  *can = gpu != peer;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t n) {
  Pool* const found = AllMemory().FindPool(pool);
  if (found == nullptr) return Return(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; ++i) {
    if (!IsGpu(access[i].location)) return Return(cudaErrorInvalidDevice);
    if (access[i].flags != cudaMemAccessFlagsProtReadWrite) {
      Refuse("cudaMemPoolSetAccess", "only access to read and write is faked");
    }
    AllMemory().LetRead(access[i].location.id, found);
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  return AllMemory().FindPool(pool) != nullptr ? cudaSuccess : Return(cudaErrorInvalidValue);
}

}  // extern "C"
