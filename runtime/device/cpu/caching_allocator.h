// CachingAllocator: host memory whose freed blocks are kept and handed out again.
//
// Sizes are rounded up to a class (8 classes for each power of two, so at most an eighth is lost),
// and each class keeps a list of its free blocks, last in first out: a step that allocates what the
// last one freed touches no fresh page, and a small block costs a few nanoseconds.
//
// Blocks below 2 MiB are carved from slabs. Those of blocks of more than 128 KiB are backed by huge
// pages, where the system has any, as larger blocks are: many tensors of some 100 KiB are more
// pages than a CPU keeps addresses of.
//
// What is kept is bounded, for a program whose sizes change would keep a block of each. What was
// freed first goes back to the system, blocks of 2 MiB and more and whole slabs alike, while more
// is free than a bound: kept_bytes where that is set; otherwise what was in use at one time, and
// only when memory must come from the system anyway, so a program that finds its sizes here never
// pays for it. Finding out which slabs are free takes a look at each free block. So slabs go only
// when 16 MiB more is free than the bound, and not at every Free (IsWorthALook). A slab of which a
// block is in use stays. All that is free goes back by Trim() or when the system refuses more.
//
// Under AddressSanitizer free blocks and the ends of blocks are poisoned, so that it still reports
// what runs past a block, unless its size is exactly its class's, or uses it after Free.
// Thread-compatible.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_CACHING_ALLOCATOR_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_CACHING_ALLOCATOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "dtensor/runtime/device/cpu/page_source.h"

namespace dtensor {

class CachingAllocator {
 public:
  // `pages` outlives it.
  explicit CachingAllocator(PageSource& pages) : pages_(pages) {}
  ~CachingAllocator();  // every block ends here, freed or not
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // 64-byte aligned, uninitialised; null when the system has no more. Requires: bytes > 0.
  void* Allocate(int64_t bytes);
  // Requires: `data` came from Allocate(bytes), with the same `bytes`.
  void Free(void* data, int64_t bytes);

  void Trim();
  void set_kept_bytes(int64_t bytes);  // 0 or more; applies at once, to whole slabs too

  // Taken from the system, whole slabs among it. What was never touched needs no memory yet.
  int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  static constexpr int kClasses = 312;  // the last one has 2^47 bytes
  struct FreeBlock {
    FreeBlock* next;
    uint64_t freed;  // the how manieth Free this was: lists have the latest first
  };

  // From the system: a block, or a slab.
  struct Mapping {
    int64_t bytes;
    int64_t carved;  // of which blocks were made so far
    // As CountFree() found it: what is free of it, and the last Free of that.
    int64_t free = 0;
    uint64_t freed = 0;
    bool unused() const { return free == carved; }
  };
  using Mappings = std::map<char*, Mapping>;

  // The rest of the newest slab of its kind.
  struct Slab {
    char* data = nullptr;
    int64_t bytes = 0;
    Mapping* mapping = nullptr;
  };

  void* Fresh(int size_class);
  void* CarveOrMap(int64_t bytes);
  void* Carve(Slab& slab, int64_t slab_bytes, int64_t bytes);
  Mappings::value_type* Map(int64_t bytes, int64_t carved);  // null: the system refuses
  void Unmap(Mappings::iterator mapping);
  Mapping& MappingOf(FreeBlock* block);
  template <typename Drop>
  void RemoveIf(int size_class, Drop drop);
  int64_t kept() const { return made_ - used_; }
  void Keep(int64_t bytes);
  bool IsWorthALook(int64_t bytes) const;
  uint64_t CountFree(int first_class);
  void ReleaseOldest(int first_class, int64_t excess);
  void Release(int first_class, uint64_t freed);
  void ReleaseFree();

  PageSource& pages_;
  std::array<FreeBlock*, kClasses> free_ = {};
  Slab small_, medium_;
  Mappings mappings_;
  int64_t reserved_bytes_ = 0;
  uint64_t frees_ = 0;
  int64_t made_ = 0;  // blocks, in use or free
  int64_t used_ = 0, most_used_ = 0;
  int64_t kept_large_ = 0;  // free blocks of 2 MiB and more
  // What there was after the last look at slabs: how many blocks had been freed so far, how many
  // free blocks it saw, and how many bytes were kept and in use.
  struct Look {
    uint64_t frees = 0, blocks = 0;
    int64_t kept = 0, used = 0;
  } look_;
  std::optional<int64_t> kept_bytes_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_CACHING_ALLOCATOR_H_
