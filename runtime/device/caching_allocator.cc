#include "dtensor/runtime/device/caching_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

namespace dtensor {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
// A slab's unused end is at most an eighth of it.
constexpr int64_t kSmallSlab = int64_t{1} << 20, kLargestSmall = kSmallSlab / 8;
// Blocks from kLarge on are mapped one by one.
constexpr int64_t kMediumSlab = 8 * kHugePage, kLarge = kMediumSlab / 8;
constexpr int64_t kLargest = int64_t{1} << 47;

// Up to 512 bytes a class for each 64; from there on the top four bits of the size, rounded up.
int ClassOf(int64_t bytes) {
  const uint64_t last = bytes - 1;
  if (bytes <= 512) return static_cast<int>(last / kAlignment);
  const int width = std::bit_width(last);
  return (width - 9) * 8 + static_cast<int>(last >> (width - 4)) - 8;
}

int64_t SizeOfClass(int size_class) {
  if (size_class < 8) return (size_class + 1) * kAlignment;
  return int64_t{9 + size_class % 8} << (size_class / 8 + 5);
}

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  for (auto [data, bytes] : mapped_) Unmap(data, bytes);
}

void* CachingAllocator::Allocate(int64_t bytes) {
  if (bytes > kLargest) return nullptr;
  const int size_class = ClassOf(bytes);
  FreeBlock* block = free_[size_class];
  if (block == nullptr) {
    void* fresh = Fresh(size_class);
    if (fresh != nullptr) ASAN_UNPOISON_MEMORY_REGION(fresh, bytes);
    return fresh;
  }
  ASAN_UNPOISON_MEMORY_REGION(block, std::max<int64_t>(bytes, sizeof(FreeBlock)));
  free_[size_class] = block->next;
  return block;
}

void CachingAllocator::Free(void* data, int64_t bytes) {
  const int size_class = ClassOf(bytes);
  ASAN_UNPOISON_MEMORY_REGION(data, sizeof(FreeBlock));
  auto* block = new (data) FreeBlock{free_[size_class]};
  free_[size_class] = block;
  ASAN_POISON_MEMORY_REGION(data, SizeOfClass(size_class));
}

void* CachingAllocator::Fresh(int size_class) {
  const int64_t bytes = SizeOfClass(size_class);
  if (void* data = CarveOrMap(bytes)) return data;
  ReleaseFreeBlocks();
  if (void* data = CarveOrMap(bytes)) return data;
  return Map(bytes);  // there is no room for a slab
}

void* CachingAllocator::CarveOrMap(int64_t bytes) {
  if (bytes <= kLargestSmall) return Carve(small_, kSmallSlab, bytes);
  if (bytes < kLarge) return Carve(medium_, kMediumSlab, bytes);
  return Map(bytes);
}

void* CachingAllocator::Carve(Slab& slab, int64_t slab_bytes, int64_t bytes) {
  if (slab.bytes < bytes) {
    void* const fresh = Map(slab_bytes);
    if (fresh == nullptr) return nullptr;
    slab = {static_cast<char*>(fresh), slab_bytes};
  }
  void* const data = slab.data;
  slab.data += bytes;
  slab.bytes -= bytes;
  return data;
}

// Large blocks and the slabs of medium ones begin at a huge page and ask for huge pages: a first
// touch then costs one fault for 2 MiB instead of 512.
void* CachingAllocator::Map(int64_t bytes) {
  bytes = RoundUp(bytes, kPage);
  const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* data = static_cast<char*>(mapped);
  if (slack > 0) {
    const int64_t head = -reinterpret_cast<uintptr_t>(data) % kHugePage;
    if (head > 0) munmap(data, head);
    data += head;
    if (slack > head) munmap(data + bytes, slack - head);
    madvise(data, bytes, MADV_HUGEPAGE);
  }
  mapped_.emplace_back(data, bytes);
  reserved_bytes_ += bytes;
  ASAN_POISON_MEMORY_REGION(data, bytes);
  return data;
}

void CachingAllocator::Unmap(void* data, int64_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  munmap(data, bytes);
  reserved_bytes_ -= bytes;
}

void CachingAllocator::ReleaseFreeBlocks() {
  std::vector<void*> released;
  for (int c = ClassOf(kLarge); c < kClasses; ++c) {
    for (FreeBlock* block = free_[c]; block != nullptr;) {
      ASAN_UNPOISON_MEMORY_REGION(block, sizeof(FreeBlock));
      released.push_back(block);
      block = block->next;
    }
    free_[c] = nullptr;
  }
  std::sort(released.begin(), released.end());
  std::erase_if(mapped_, [&](const std::pair<void*, int64_t>& mapped) {
    const bool free = std::binary_search(released.begin(), released.end(), mapped.first);
    if (free) Unmap(mapped.first, mapped.second);
    return free;
  });
}

}  // namespace dtensor
