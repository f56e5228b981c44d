// CachingAllocator: host memory whose freed blocks are kept and handed out again.
//
// Sizes are rounded up to a class (8 classes for each power of two, so at most an eighth is lost),
// and each class keeps a list of its free blocks, last in first out: a step that allocates what the
// last one freed touches no fresh page, and a small block costs a few nanoseconds. Memory goes back
// to the system when the system refuses more, and at the end.
//
// Under AddressSanitizer free blocks and the ends of blocks are poisoned, so that it still reports
// what runs past a block or uses it after Free. Thread-compatible.
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

  int64_t reserved_bytes() const { return reserved_bytes_; }  // taken from the system

 private:
  static constexpr int kClasses = 320;  // the last one has 2^47 bytes
  struct FreeBlock {
    FreeBlock* next;
  };

  void* Fresh(int size_class);
  void* Carve(int64_t bytes);  // from a slab: small blocks
  void* Map(int64_t bytes);    // from the system
  void Unmap(void* data, int64_t bytes);
  void ReleaseFreeBlocks();  // of those that were mapped one by one

  std::array<FreeBlock*, kClasses> free_ = {};
  char* slab_ = nullptr;  // the rest of the newest slab
  int64_t slab_bytes_ = 0;
  std::vector<std::pair<void*, int64_t>> mapped_;  // slabs, and blocks mapped one by one
  int64_t reserved_bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CACHING_ALLOCATOR_H_
