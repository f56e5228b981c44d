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

}  // namespace
}  // namespace dtensor
