#include "dtensor/runtime/device/cpu/caching_allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

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
// A slab's unused end is at most an eighth of it.
constexpr int64_t kSmallSlab = int64_t{1} << 20, kLargestSmall = kSmallSlab / 8;
// Blocks from kLarge on are mapped one by one.
constexpr int64_t kMediumSlab = 8 * PageSource::kHugePage, kLarge = kMediumSlab / 8;
constexpr int64_t kLargest = int64_t{1} << 47;

// Up to 512 bytes a class for each 64; from there on the top four bits of the size, rounded up.
constexpr int ClassOf(int64_t bytes) {
  const uint64_t last = bytes - 1;
  if (bytes <= 512) return static_cast<int>(last / kAlignment);
  const int width = std::bit_width(last);
  return (width - 9) * 8 + static_cast<int>(last >> (width - 4)) - 8;
}

// A table: each Allocate and Free asks, and computing it would cost them a fifth of their time.
constexpr auto kSizes = [] {
  std::array<int64_t, ClassOf(kLargest) + 1> sizes = {};
  for (int c = 0; c < static_cast<int>(sizes.size()); ++c) {
    sizes[c] = c < 8 ? (c + 1) * kAlignment : int64_t{9 + c % 8} << (c / 8 + 5);
  }
  return sizes;
}();
static_assert(kSizes.back() == kLargest);

constexpr int64_t SizeOfClass(int size_class) { return kSizes[size_class]; }

constexpr int kFirstLarge = ClassOf(kLarge);

// So much must be free beyond what may be, before slabs are looked at.
constexpr int64_t kWorthALook = kMediumSlab;

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Of a free block, which is poisoned.
template <typename Block>
Block Read(Block* block) {
  ASAN_UNPOISON_MEMORY_REGION(block, sizeof(Block));
  const Block copy = *block;
  ASAN_POISON_MEMORY_REGION(block, sizeof(Block));
  return copy;
}

template <typename Block>
void SetNext(Block* block, Block* next) {
  ASAN_UNPOISON_MEMORY_REGION(block, sizeof(Block));
  block->next = next;
  ASAN_POISON_MEMORY_REGION(block, sizeof(Block));
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  while (!mappings_.empty()) Unmap(mappings_.begin());
}

void* CachingAllocator::Allocate(int64_t bytes) {
  if (bytes > kLargest) return nullptr;
  const int size_class = ClassOf(bytes);
  void* block = free_[size_class];
  if (block == nullptr) {
    block = Fresh(size_class);
    if (block == nullptr) return nullptr;
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(block, std::max<int64_t>(bytes, sizeof(FreeBlock)));
    free_[size_class] = static_cast<FreeBlock*>(block)->next;
    if (size_class >= kFirstLarge) kept_large_ -= SizeOfClass(size_class);
  }
  used_ += SizeOfClass(size_class);
  if (used_ > most_used_) most_used_ = used_;
  return block;
}

void CachingAllocator::Free(void* data, int64_t bytes) {
  const int size_class = ClassOf(bytes);
  ASAN_UNPOISON_MEMORY_REGION(data, sizeof(FreeBlock));
  auto* block = new (data) FreeBlock{free_[size_class], ++frees_};
  free_[size_class] = block;
  ASAN_POISON_MEMORY_REGION(data, SizeOfClass(size_class));
  used_ -= SizeOfClass(size_class);
  if (size_class >= kFirstLarge) kept_large_ += SizeOfClass(size_class);
  if (kept_bytes_.has_value()) [[unlikely]] {
    Keep(*kept_bytes_);
  }
}

void CachingAllocator::Trim() {
  ReleaseFree();
  most_used_ = used_;
}

void CachingAllocator::set_kept_bytes(int64_t bytes) {
  kept_bytes_ = bytes;
  if (kept() > bytes) ReleaseOldest(0, kept() - bytes);
}

void* CachingAllocator::Fresh(int size_class) {
  const int64_t bytes = SizeOfClass(size_class);
  if (void* data = CarveOrMap(bytes)) return data;
  ReleaseFree();
  if (void* data = CarveOrMap(bytes)) return data;
  auto* const mapping = Map(bytes, bytes);  // there is no room for a slab
  return mapping == nullptr ? nullptr : mapping->first;
}

void* CachingAllocator::CarveOrMap(int64_t bytes) {
  if (bytes <= kLargestSmall) return Carve(small_, kSmallSlab, bytes);
  if (bytes < kLarge) return Carve(medium_, kMediumSlab, bytes);
  auto* const mapping = Map(bytes, bytes);
  return mapping == nullptr ? nullptr : mapping->first;
}

void* CachingAllocator::Carve(Slab& slab, int64_t slab_bytes, int64_t bytes) {
  if (slab.bytes < bytes) {
    auto* const fresh = Map(slab_bytes, 0);
    if (fresh == nullptr) return nullptr;
    slab = {fresh->first, slab_bytes, &fresh->second};
  }
  void* const data = slab.data;
  slab.data += bytes;
  slab.bytes -= bytes;
  slab.mapping->carved += bytes;
  made_ += bytes;
  return data;
}

CachingAllocator::Mappings::value_type* CachingAllocator::Map(int64_t bytes, int64_t carved) {
  Keep(kept_bytes_.value_or(most_used_));
  bytes = RoundUp(bytes, kPage);
  void* const mapped = pages_.Map(bytes);
  if (mapped == nullptr) return nullptr;
  reserved_bytes_ += bytes;
  made_ += carved;
  ASAN_POISON_MEMORY_REGION(mapped, bytes);
  return &*mappings_.emplace(static_cast<char*>(mapped), Mapping{bytes, carved}).first;
}

void CachingAllocator::Unmap(Mappings::iterator mapping) {
  const auto [data, bytes] = std::pair(mapping->first, mapping->second.bytes);
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  pages_.Unmap(data, bytes);
  reserved_bytes_ -= bytes;
  made_ -= mapping->second.carved;
  mappings_.erase(mapping);
}

CachingAllocator::Mapping& CachingAllocator::MappingOf(FreeBlock* block) {
  return std::prev(mappings_.upper_bound(reinterpret_cast<char*>(block)))->second;
}

// Takes those free blocks of a class out of its list for which drop(block, what it says) holds.
template <typename Drop>
void CachingAllocator::RemoveIf(int size_class, Drop drop) {
  FreeBlock* block = std::exchange(free_[size_class], nullptr);
  FreeBlock* last = nullptr;  // of those that stay
  while (block != nullptr) {
    const FreeBlock known = Read(block);
    if (!drop(block, known)) {
      last == nullptr ? void(free_[size_class] = block) : SetNext(last, block);
      last = block;
    }
    block = known.next;
  }
  if (last != nullptr) SetNext<FreeBlock>(last, nullptr);
}

void CachingAllocator::Keep(int64_t bytes) {
  if (kept() > bytes + kWorthALook && IsWorthALook(bytes)) ReleaseOldest(0, kept() - bytes);
  if (kept_large_ > bytes) ReleaseOldest(kFirstLarge, kept_large_ - bytes);
}

// A look at slabs costs time for each free block. So it waits until a quarter as many blocks were
// freed since the last look as that one saw; and, if that one could not give back enough, until
// more is free or much less in use. With nothing in use it always helps.
bool CachingAllocator::IsWorthALook(int64_t bytes) const {
  if (used_ == 0) return true;
  if (frees_ - look_.frees < look_.blocks / 4) return false;
  return look_.kept <= bytes || kept() > look_.kept + kWorthALook || used_ <= look_.used / 2;
}

// Finds out what is free of each mapping, of blocks of this class and larger ones. Returns how many
// such blocks are free.
uint64_t CachingAllocator::CountFree(int first_class) {
  uint64_t blocks = 0;
  for (auto& [data, mapping] : mappings_) mapping.free = 0;
  for (int c = first_class; c < kClasses; ++c) {
    RemoveIf(c, [&](FreeBlock* block, const FreeBlock& known) {
      ++blocks;
      Mapping& mapping = MappingOf(block);
      mapping.free += SizeOfClass(c);
      mapping.freed = std::max(mapping.freed, known.freed);
      return false;
    });
  }
  return blocks;
}

// Gives back at least `excess` bytes, if so much is unused, beginning with what was freed first.
void CachingAllocator::ReleaseOldest(int first_class, int64_t excess) {
  const uint64_t blocks = CountFree(first_class);
  using Unused = std::pair<uint64_t, int64_t>;  // (freed, bytes)
  // A Free must not throw: where there is no memory for a list, all that is unused goes.
  const std::unique_ptr<Unused[]> unused(new (std::nothrow) Unused[mappings_.size()]);
  uint64_t freed = unused == nullptr ? frees_ : 0;
  if (unused != nullptr) {
    Unused* end = unused.get();
    for (const auto& [data, mapping] : mappings_) {
      if (mapping.unused()) *end++ = {mapping.freed, mapping.carved};
    }
    std::sort(unused.get(), end);
    for (const Unused* it = unused.get(); it != end && excess > 0; ++it) {
      freed = it->first;
      excess -= it->second;
    }
  }
  if (freed > 0) Release(first_class, freed);
  if (first_class == 0) look_ = {frees_, blocks, kept(), used_};
}

// Gives back what CountFree() found unused, and freed then and before.
void CachingAllocator::Release(int first_class, uint64_t freed) {
  const auto leaves = [&](const Mapping& mapping) {
    return mapping.unused() && mapping.freed <= freed;
  };
  for (int c = first_class; c < kClasses; ++c) {
    RemoveIf(c, [&](FreeBlock* block, const FreeBlock&) {
      const bool goes = leaves(MappingOf(block));
      if (goes && c >= kFirstLarge) kept_large_ -= SizeOfClass(c);
      return goes;
    });
  }
  for (Slab* slab : {&small_, &medium_}) {
    if (slab->mapping != nullptr && leaves(*slab->mapping)) *slab = {};
  }
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    const auto mapping = it++;
    if (leaves(mapping->second)) Unmap(mapping);
  }
}

// Gives back all that has no block in use. Takes no memory itself: there may be none.
void CachingAllocator::ReleaseFree() {
  const uint64_t blocks = CountFree(0);
  Release(0, frees_);
  look_ = {frees_, blocks, kept(), used_};
}

}  // namespace dtensor
