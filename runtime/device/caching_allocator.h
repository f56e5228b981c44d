// CachingAllocator: host memory whose freed blocks are kept and handed out again.
//
// Sizes are rounded up to a class (8 classes for each power of two, so at most an eighth is lost),
// and each class keeps a list of its free blocks, last in first out: a step that allocates what the
// last one freed touches no fresh page, and a small block costs a few nanoseconds.
//
// Blocks below 2 MiB are carved from slabs. Those of blocks of more than 128 KiB are backed by huge
// pages, where the system has any, as larger blocks are: many tensors of some 100 KiB are more
// pages than a CPU keeps addresses of. Slabs stay until the end; free blocks of 2 MiB and more go
// back when the system refuses more.
//
// Under AddressSanitizer free blocks and the ends of blocks are poisoned, so that it still reports
// what runs past a block, unless its size is exactly its class's, or uses it after Free.
// Thread-compatible.
#ifndef DTENSOR_RUNTIME_DEVICE_CACHING_ALLOCATOR_H_
#define DTENSOR_RUNTIME_DEVICE_CACHING_ALLOCATOR_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace dtensor {

class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator();  // every block ends here, freed or not
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // 64-byte aligned, uninitialised; null when the system has no more. Requires: bytes > 0.
  void* Allocate(int64_t bytes);
  // Requires: `data` came from Allocate(bytes), with the same `bytes`.
  void Free(void* data, int64_t bytes);

  // Taken from the system, whole slabs among it. What was never touched needs no memory yet.
  int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  static constexpr int kClasses = 320;  // the last one has 2^47 bytes
  struct FreeBlock {
    FreeBlock* next;
  };

  // The rest of the newest slab of its kind.
  struct Slab {
    char* data = nullptr;
    int64_t bytes = 0;
  };

  void* Fresh(int size_class);
  void* CarveOrMap(int64_t bytes);
  void* Carve(Slab& slab, int64_t slab_bytes, int64_t bytes);
  void* Map(int64_t bytes);  // from the system
  void Unmap(void* data, int64_t bytes);
  void ReleaseFreeBlocks();  // large ones

  std::array<FreeBlock*, kClasses> free_ = {};
  Slab small_, medium_;
  std::vector<std::pair<void*, int64_t>> mapped_;  // slabs, and blocks mapped one by one
  int64_t reserved_bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CACHING_ALLOCATOR_H_
