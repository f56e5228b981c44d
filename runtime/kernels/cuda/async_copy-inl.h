// Asynchronous copies from a GPU's memory into a block's shared memory, while their thread does
// something else (PTX's cp.async, sm_80 and later). On the host grid the copy is made when it is
// waited for, so that reading too early is detected.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ASYNC_COPY_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ASYNC_COPY_INL_H_

#include <cstdint>

#include "dtensor/tools/cuda/kernel-inl.h"

#ifndef __CUDACC__
#include <cstring>
#include <vector>

#include "dtensor/runtime/core/status.h"
#endif

namespace dtensor::kernels::cuda {

// The copies of one thread.
class AsyncCopies {
 public:
  // Begins to copy `bytes` <= 16, and fills up to 16 with zeros. `from` and `to` are multiples of
  // 16. Until the copy is complete, its source must not change, and no thread may access `to`.
  __device__ void Begin(const void* from, void* to, int bytes) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
#else
    DT_CHECK(reinterpret_cast<uintptr_t>(from) % 16 == 0 && bytes >= 0 && bytes <= 16);
    DT_CHECK(reinterpret_cast<uintptr_t>(to) % 16 == 0);
    std::memset(to, 0xFF, 16);
    begun_.push_back({from, to, bytes, groups_});
#endif
  }

  // Makes a group of the copies begun since the last Commit. There may be none.
  __device__ void Commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    ++groups_;
#endif
  }

  // Waits until what this thread has begun is complete. Other threads see it after a barrier.
  __device__ void Wait() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    Arrive(groups_);
#endif
  }
  // Like Wait, for all groups but the last.
  __device__ void WaitButLast() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group 1;" ::: "memory");
#else
    Arrive(groups_ - 2);
#endif
  }

#ifndef __CUDACC__
  ~AsyncCopies() { DT_CHECK(begun_.empty()); }

 private:
  struct Copy {
    const void* from;
    void* to;
    int bytes, group;
  };
  void Arrive(int last_group) {
    std::erase_if(begun_, [&](const Copy& copy) {
      if (copy.group > last_group) return false;
      std::memset(copy.to, 0, 16);
      std::memcpy(copy.to, copy.from, copy.bytes);
      return true;
    });
  }

  std::vector<Copy> begun_;
  int groups_ = 0;
#endif
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ASYNC_COPY_INL_H_
