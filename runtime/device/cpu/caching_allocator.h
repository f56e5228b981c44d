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
// What is kept is bounded, for a program whose sizes change would keep a block of each. Of blocks
// of 2 MiB and more, those freed first go back to the system while more is free than a bound:
// kept_bytes where that is set; otherwise what was in use at one time, and only when a block must
// come from the system anyway, so a program that finds its sizes here never pays for it. All that
// is free goes back, whole slabs among it, by Trim() or when the system refuses more.
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
  void set_kept_bytes(int64_t bytes);  // 0 or more; applies at once

  // Taken from the system, whole slabs among it. What was never touched needs no memory yet.
  int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  static constexpr int kClasses = 320;  // the last one has 2^47 bytes
  struct FreeBlock {
    FreeBlock* next;
    uint64_t freed;  // the how manieth Free this was: lists have the latest first
  };

  // From the system: a block, or a slab.
  struct Mapping {
    int64_t bytes;
    int64_t carved;    // of which blocks were made so far
    int64_t free = 0;  // as ReleaseFree() counted
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
  void Keep(int64_t bytes);  // at most, of large blocks
  void ReleaseLarge(uint64_t freed);
  void ReleaseFree();

  PageSource& pages_;
  std::array<FreeBlock*, kClasses> free_ = {};
  Slab small_, medium_;
  Mappings mappings_;
  int64_t reserved_bytes_ = 0;
  uint64_t frees_ = 0;
  // Of blocks of 2 MiB and more.
  int64_t used_ = 0, most_used_ = 0, kept_ = 0;
  std::optional<int64_t> kept_bytes_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_CACHING_ALLOCATOR_H_
