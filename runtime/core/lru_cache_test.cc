#include "dtensor/runtime/core/lru_cache.h"

#include <string>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(LruCacheTest, ForgetsTheLeastRecentlyUsed) {
  LruCache<int, std::string> cache(3);
  for (int i : {0, 1, 2}) cache.Insert(i, std::to_string(i));
  ASSERT_NE(cache.Find(0), nullptr);
  EXPECT_EQ(*cache.Find(0), "0");
  cache.Insert(3, "3");  // in place of 1
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.Find(1), nullptr);
  for (int i : {0, 2, 3}) {
    ASSERT_NE(cache.Find(i), nullptr);
    EXPECT_EQ(*cache.Find(i), std::to_string(i));
  }
}

TEST(LruCacheTest, MakesRoomForManyAtOnce) {
  LruCache<int, int> cache(64);
  for (int i = 0; i < 64; ++i) cache.Insert(i, i);
  for (int i = 0; i < 16; i += 2) ASSERT_NE(cache.Find(i), nullptr);
  cache.Insert(64, 64);
  EXPECT_EQ(cache.size(), 57);
  for (int i = 0; i <= 64; ++i) EXPECT_EQ(cache.Find(i) != nullptr, i >= 16 || i % 2 == 0) << i;
}

TEST(LruCacheTest, HeavyEntriesMakeRoomByTheirWeight) {
  LruCache<int, int> cache(64, /*most_weight=*/80);
  cache.Insert(-1, 0);  // weighs nothing
  for (int i = 0; i < 8; ++i) cache.Insert(i, i, 10);
  EXPECT_EQ(cache.size(), 9);
  ASSERT_NE(cache.Find(0), nullptr);
  cache.Insert(8, 8, 10);  // in place of 1 and 2: 70 are left, an eighth less than may be
  for (int i = -1; i <= 8; ++i) EXPECT_EQ(cache.Find(i) != nullptr, i != 1 && i != 2) << i;
  cache.Insert(9, 9, 10);  // nobody goes: there was room
  EXPECT_EQ(cache.size(), 9);
  // Heavier than all may be.
  cache.Insert(10, 10, 1000);
  for (int i = -1; i <= 10; ++i) EXPECT_EQ(cache.Find(i) != nullptr, i == -1 || i == 10) << i;
  cache.Insert(11, 11, 1);
  EXPECT_EQ(cache.Find(10), nullptr);
  EXPECT_NE(cache.Find(11), nullptr);
  // What goes for its number no longer counts.
  for (int i = 12; i < 1000; ++i) cache.Insert(i, i, i % 2);
  EXPECT_LE(cache.size(), 64);
  for (int i = 999; i > 999 - 57; --i) EXPECT_NE(cache.Find(i), nullptr) << i;
}

}  // namespace
}  // namespace dtensor
