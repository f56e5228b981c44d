#include "dtensor/runtime/device/cpu/caching_allocator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "dtensor/runtime/device/cpu/page_source.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

class SharedPages final : public PageSource {
 public:
  void* Map(int64_t bytes) override { return arena_->Map(bytes); }
  void Unmap(void* data, int64_t bytes) override { arena_->Unmap(data, bytes); }

 private:
  const std::unique_ptr<SharedArena> arena_ = SharedArena::Create(int64_t{1} << 32, 0).value();
};

template <typename Pages>
class CachingAllocatorTest : public testing::Test {};
using AllPages = testing::Types<PrivatePages, SharedPages>;
TYPED_TEST_SUITE(CachingAllocatorTest, AllPages);

TYPED_TEST(CachingAllocatorTest, BlocksAreAlignedAndApart) {
  TypeParam source;
  CachingAllocator allocator(source);
  std::map<char*, int64_t> blocks;
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    // Up to 4 MiB, small ones more often.
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (uint64_t{1} << (1 + random() % 22)));
    char* data = static_cast<char*>(allocator.Allocate(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0);
    data[0] = data[bytes - 1] = 1;
    const auto after = blocks.lower_bound(data);
    if (after != blocks.end()) {
      ASSERT_LE(data + bytes, after->first);
    }
    if (after != blocks.begin()) {
      ASSERT_LE(std::prev(after)->first + std::prev(after)->second, data);
    }
    blocks[data] = bytes;
    if (random() % 2 == 0) {
      const auto victim = std::next(blocks.begin(), random() % blocks.size());
      allocator.Free(victim->first, victim->second);
      blocks.erase(victim);
    }
  }
}

TYPED_TEST(CachingAllocatorTest, HandsFreedBlocksOutAgain) {
  TypeParam source;
  CachingAllocator allocator(source);
  for (int64_t bytes : {1, 64, 1000, 100 << 10, 200 << 10, 3 << 20, 64 << 20}) {
    void* first = allocator.Allocate(bytes);
    void* second = allocator.Allocate(bytes);
    const int64_t reserved = allocator.reserved_bytes();
    allocator.Free(first, bytes);
    allocator.Free(second, bytes);
    EXPECT_EQ(allocator.Allocate(bytes), second) << bytes;
    EXPECT_EQ(allocator.Allocate(bytes), first) << bytes;
    EXPECT_EQ(allocator.reserved_bytes(), reserved) << bytes;
  }
}

// Else the system could not back them by huge pages.
TYPED_TEST(CachingAllocatorTest, LargeBlocksBeginAtHugePages) {
  TypeParam source;
  CachingAllocator allocator(source);
  for (int64_t bytes : {2 << 20, 3 << 20, 64 << 20}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(allocator.Allocate(bytes)) % (2 << 20), 0) << bytes;
  }
}

// And so do the slabs of medium ones, which lie side by side there.
TYPED_TEST(CachingAllocatorTest, MediumBlocksShareHugePages) {
  for (int64_t bytes : {160 << 10, 512 << 10, 1 << 20}) {
    TypeParam source;
    CachingAllocator allocator(source);
    char* const first = static_cast<char*>(allocator.Allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % (2 << 20), 0) << bytes;
    for (int64_t i = 1; i < 16; ++i) EXPECT_EQ(allocator.Allocate(bytes), first + i * bytes);
  }
}

// An eighth to the size's class and one to the end of each slab.
TEST(PrivatePagesTest, LosesLittle) {
  for (int64_t bytes = 1000; bytes < 64 << 20; bytes += bytes / 3) {
    PrivatePages source;
    CachingAllocator allocator(source);
    int64_t total = 0;
    for (; total < 128 << 20; total += bytes) ASSERT_NE(allocator.Allocate(bytes), nullptr);
    constexpr int64_t kLastSlab = 16 << 20;
    EXPECT_LE(allocator.reserved_bytes(), total * 9 / 8 * 8 / 7 + kLastSlab) << bytes;
  }
}

TYPED_TEST(CachingAllocatorTest, AStepThatRepeatsReservesNothing) {
  TypeParam source;
  CachingAllocator allocator(source);
  const auto step = [&] {
    std::vector<std::pair<void*, int64_t>> blocks;
    for (int64_t i = 1; i < 200; ++i)
      blocks.emplace_back(allocator.Allocate(i * i * 40), i * i * 40);
    for (auto [data, bytes] : blocks) allocator.Free(data, bytes);
  };
  step();
  const int64_t reserved = allocator.reserved_bytes();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(allocator.reserved_bytes(), reserved);
}

TYPED_TEST(CachingAllocatorTest, GivesBackWhatIsFreeBeforeItRefuses) {
  TypeParam source;
  CachingAllocator allocator(source);
  void* used = allocator.Allocate(1 << 20);
  std::memset(used, 7, 1 << 20);
  void* small = allocator.Allocate(100);
  void* medium = allocator.Allocate(1 << 20);
  allocator.Free(allocator.Allocate(8 << 20), 8 << 20);
  allocator.Free(small, 100);
  allocator.Free(medium, 1 << 20);
  for (int64_t bytes : {int64_t{1} << 47, (int64_t{1} << 47) + 1, int64_t{1} << 62}) {
    EXPECT_EQ(allocator.Allocate(bytes), nullptr);
  }
  // What is in use stays, and what shares a slab with it.
  EXPECT_EQ(allocator.reserved_bytes(), 16 << 20);
  EXPECT_EQ(static_cast<char*>(used)[12345], 7);
  EXPECT_EQ(allocator.Allocate(1 << 20), medium);
}

// As a program does whose batches grow: only a few of the sizes are kept that are never used again.
TYPED_TEST(CachingAllocatorTest, KeepsNoBlockOfEachSizeThereEverWas) {
  TypeParam source;
  CachingAllocator allocator(source);
  constexpr int64_t kLargestBytes = 74 << 20;
  for (int64_t bytes = 16 << 20; bytes <= kLargestBytes; bytes += 1 << 20) {
    allocator.Free(allocator.Allocate(bytes), bytes);
    EXPECT_LE(allocator.reserved_bytes(), 9 * bytes / 4) << bytes;
  }
}

// However its sizes differ, once each was there.
TYPED_TEST(CachingAllocatorTest, AStepThatRepeatsNeverPaysForTheBound) {
  TypeParam source;
  CachingAllocator allocator(source);
  const auto step = [&] {
    std::vector<std::pair<void*, int64_t>> blocks;
    for (int64_t i = 20; i < 60; ++i) {
      blocks.emplace_back(allocator.Allocate(i << 17), i << 17);
    }
    for (auto [data, bytes] : blocks) allocator.Free(data, bytes);
    // In its other half few of them, so that most are free.
    allocator.Free(allocator.Allocate(20 << 17), 20 << 17);
  };
  step();
  const int64_t reserved = allocator.reserved_bytes();
  for (int i = 0; i < 5; ++i) {
    step();
    EXPECT_EQ(allocator.reserved_bytes(), reserved);
  }
}

TYPED_TEST(CachingAllocatorTest, KeepsAsMuchAsItIsToldAndWhatWasFreedLast) {
  TypeParam source;
  CachingAllocator allocator(source);
  allocator.set_kept_bytes(20 << 20);
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(allocator.Allocate(8 << 20));
  EXPECT_EQ(allocator.reserved_bytes(), 40 << 20);  // what is in use does not count
  void* const other = allocator.Allocate(4 << 20);
  for (void* block : blocks) allocator.Free(block, 8 << 20);
  allocator.Free(other, 4 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), 20 << 20);
  EXPECT_EQ(allocator.Allocate(4 << 20), other);
  EXPECT_EQ(allocator.Allocate(8 << 20), blocks[4]);
  EXPECT_EQ(allocator.Allocate(8 << 20), blocks[3]);
  allocator.Free(blocks[3], 8 << 20);
  allocator.set_kept_bytes(0);
  EXPECT_EQ(allocator.reserved_bytes(), 12 << 20);
  allocator.Free(blocks[4], 8 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), 4 << 20);
}

// Those that are carved from slabs as well.
TYPED_TEST(CachingAllocatorTest, KeepsNoSlabsOfEachSizeThereEverWas) {
  TypeParam source;
  CachingAllocator allocator(source);
  constexpr int64_t kLive = 32 << 20, kSlab = 16 << 20;
  for (int64_t bytes = 1000; bytes < 2 << 20; bytes += bytes / 3) {
    std::vector<void*> blocks;
    for (int64_t live = 0; live < kLive; live += bytes) blocks.push_back(allocator.Allocate(bytes));
    for (void* block : blocks) allocator.Free(block, bytes);
    // What is in use and kept, a class's eighth more; what is kept before slabs are looked at; and
    // the ends of two.
    EXPECT_LE(allocator.reserved_bytes(), 2 * kLive * 9 / 8 + kSlab + 2 * kSlab) << bytes;
  }
}

TYPED_TEST(CachingAllocatorTest, WhatWasFreedFirstGoesWhetherItIsSlabsOrNot) {
  TypeParam source;
  CachingAllocator allocator(source);
  const auto all = [&](int64_t bytes) {
    std::vector<void*> blocks;
    for (int64_t live = 0; live < 48 << 20; live += bytes) {
      blocks.push_back(allocator.Allocate(bytes));
    }
    for (void* block : blocks) allocator.Free(block, bytes);
  };
  all(1 << 20);
  all(8 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), 96 << 20);
  allocator.Free(allocator.Allocate(4 << 20), 4 << 20);  // for which the slabs go
  EXPECT_EQ(allocator.reserved_bytes(), (48 << 20) + (4 << 20));
  all(8 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), (48 << 20) + (4 << 20));
  all(1 << 20);  // for which the large ones go
  EXPECT_LE(allocator.reserved_bytes(), (48 << 20) + (64 << 20));
  const int64_t reserved = allocator.reserved_bytes();
  all(1 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), reserved);
}

TYPED_TEST(CachingAllocatorTest, KeepsAsManySlabsAsItIsTold) {
  TypeParam source;
  CachingAllocator allocator(source);
  std::vector<void*> blocks;
  const auto allocate = [&] {
    blocks.clear();
    for (int i = 0; i < 64; ++i) blocks.push_back(allocator.Allocate(1 << 20));
  };
  const auto free = [&] {
    for (void* block : blocks) allocator.Free(block, 1 << 20);
  };
  allocate();
  free();
  EXPECT_EQ(allocator.reserved_bytes(), 64 << 20);
  allocator.set_kept_bytes(20 << 20);
  EXPECT_EQ(allocator.reserved_bytes(), 16 << 20);
  EXPECT_EQ(allocator.Allocate(1 << 20), blocks.back());  // freed last
  allocator.Free(blocks.back(), 1 << 20);
  allocator.set_kept_bytes(0);
  EXPECT_EQ(allocator.reserved_bytes(), 0);
  allocate();
  free();
  EXPECT_LE(allocator.reserved_bytes(), 2 * (16 << 20));  // what is kept may lie in two slabs
}

// Each slab has one block in use at a look, so nothing goes; later it does.
TYPED_TEST(CachingAllocatorTest, WhatKeptSlabsDoesNotKeepThemLater) {
  for (const int64_t bytes : {4096, 64 << 10}) {
    TypeParam source;
    CachingAllocator allocator(source);
    allocator.set_kept_bytes(0);
    const int64_t in_slab = (1 << 20) / bytes;
    std::vector<void*> blocks;
    for (int64_t i = 0; i < 100 * in_slab; ++i) blocks.push_back(allocator.Allocate(bytes));
    for (int64_t i = 0; i < 100 * in_slab; ++i) {
      if (i % in_slab != 0) allocator.Free(blocks[i], bytes);
    }
    EXPECT_GE(allocator.reserved_bytes(), 100 << 20);
    for (int64_t i = 0; i < 100 * in_slab; i += in_slab) allocator.Free(blocks[i], bytes);
    EXPECT_LE(allocator.reserved_bytes(), 16 << 20) << bytes;
  }
}

// However often slabs go back: those stay that have something in use.
TYPED_TEST(CachingAllocatorTest, WhatIsInUseStaysWhileSlabsGoBack) {
  struct Block {
    char* data;
    int64_t bytes;
    char value;
  };
  TypeParam source;
  CachingAllocator allocator(source);
  allocator.set_kept_bytes(1 << 20);
  std::mt19937_64 random(1);
  std::vector<Block> blocks;
  int64_t live = 0, most_reserved = 0;
  for (int i = 0; i < 5000; ++i) {
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (uint64_t{1} << (6 + random() % 16)));
    Block& block = blocks.emplace_back();
    block = {static_cast<char*>(allocator.Allocate(bytes)), bytes, static_cast<char>(i)};
    block.data[0] = block.data[bytes - 1] = block.value;
    live += bytes;
    while (live > 40 << 20 || (i % 1000 == 999 && !blocks.empty())) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [data, size, value] = blocks.back();
      ASSERT_EQ(data[0], value);
      ASSERT_EQ(data[size - 1], value);
      allocator.Free(data, size);
      blocks.pop_back();
      live -= size;
    }
    most_reserved = std::max(most_reserved, allocator.reserved_bytes());
    if (blocks.empty()) {
      EXPECT_LT(allocator.reserved_bytes(), most_reserved);
    }
  }
}

TYPED_TEST(CachingAllocatorTest, TrimGivesBackAllButWhatIsInUse) {
  TypeParam source;
  CachingAllocator allocator(source);
  const std::vector<int64_t> sizes = {1,         100,     1000,    100 << 10,
                                      200 << 10, 1 << 20, 3 << 20, 9 << 20};
  std::mt19937_64 random(1);
  std::vector<std::pair<char*, int64_t>> blocks;
  for (int i = 0; i < 500; ++i) {
    const int64_t bytes = sizes[random() % sizes.size()];
    blocks.emplace_back(static_cast<char*>(allocator.Allocate(bytes)), bytes);
  }
  char* const small = static_cast<char*>(allocator.Allocate(100));
  char* const large = static_cast<char*>(allocator.Allocate(5 << 20));
  small[99] = large[12345] = 7;
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (auto [data, bytes] : blocks) allocator.Free(data, bytes);
  allocator.Trim();
  EXPECT_EQ(allocator.reserved_bytes(), (1 << 20) + (5 << 20));
  EXPECT_EQ(small[99] + large[12345], 14);
  // It goes on as before.
  for (auto& [data, bytes] : blocks) {
    data = static_cast<char*>(allocator.Allocate(bytes));
    data[0] = data[bytes - 1] = 1;
  }
  for (auto [data, bytes] : blocks) allocator.Free(data, bytes);
  allocator.Free(small, 100);
  allocator.Free(large, 5 << 20);
  allocator.Trim();
  EXPECT_EQ(allocator.reserved_bytes(), 0);
}

// Sanitizers map more than any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(PrivatePagesTest, DoesWithoutSlabsWhereThereIsNoRoomForOne) {
  PrivatePages source;
  CachingAllocator allocator(source);
  allocator.Free(allocator.Allocate(8 << 20), 8 << 20);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(statm >> pages);
  rlimit before, tight;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  tight = before;
  tight.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (4 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  void* const medium = allocator.Allocate(1 << 20);
  const int64_t reserved = allocator.reserved_bytes();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_NE(medium, nullptr);
  std::memset(medium, 7, 1 << 20);
  EXPECT_EQ(reserved, 1 << 20);  // the free 8 MiB went back first
}
#endif

#if defined(__SANITIZE_ADDRESS__)
TEST(CachingAllocatorDeathTest, AddressSanitizerSeesUseAfterFree) {
  PrivatePages source;
  CachingAllocator allocator(source);
  char* data = static_cast<char*>(allocator.Allocate(100));
  EXPECT_DEATH(data[100] = 1, "use-after-poison");
  allocator.Free(data, 100);
  EXPECT_DEATH(data[50] = 1, "use-after-poison");
}
#endif

}  // namespace
}  // namespace dtensor
