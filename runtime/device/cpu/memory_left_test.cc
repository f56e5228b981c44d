#include "dtensor/runtime/device/cpu/memory_left.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

class MemoryLeftTest : public testing::Test {
 protected:
  MemoryLeftTest() : root_(testing::TempDir() + "memory_left_test") {
    std::filesystem::remove_all(root_);
  }
  ~MemoryLeftTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int64_t> Left(const std::string& groups) {
    Write("groups", groups);
    return MemoryLeft(root_ + "/groups", root_);
  }

  const std::string root_;
};

TEST_F(MemoryLeftTest, Version2) {
  EXPECT_EQ(Left("0::/job/rank\n"), std::nullopt);
  Write("job/rank/memory.max", "max\n");
  Write("job/rank/memory.current", "500\n");
  EXPECT_EQ(Left("0::/job/rank\n"), std::nullopt);
  Write("job/rank/memory.max", "900\n");
  EXPECT_EQ(Left("0::/job/rank\n"), 400);
  Write("job/rank/memory.stat", "anon 300\ninactive_file 30\nshmem 50\nactive_file 4\n");
  EXPECT_EQ(Left("0::/job/rank\n"), 434);
  // The group that it is in leaves less.
  Write("job/memory.max", "2000\n");
  Write("job/memory.current", "1900\n");
  EXPECT_EQ(Left("0::/job/rank\n"), 100);
  Write("job/memory.current", "2100\n");
  EXPECT_EQ(Left("0::/job/rank\n"), 0);
}

// A container sees its own group as the root, whatever its path is called.
TEST_F(MemoryLeftTest, AContainersRoot) {
  Write("memory.max", "900");
  Write("memory.current", "500");
  EXPECT_EQ(Left("0::/docker/0123/\n"), 400);
  EXPECT_EQ(Left("0::/\n"), 400);
}

TEST_F(MemoryLeftTest, Version1) {
  // No limit. Cached files, which are read later, may be more than what is used.
  Write("memory/job/memory.limit_in_bytes", "9223372036854771712");
  Write("memory/job/memory.usage_in_bytes", "1000");
  Write("memory/job/memory.stat", "total_inactive_file 9000");
  EXPECT_EQ(Left("5:cpu:/\n4:hugetlb,memory:/job\n0::/\n"), std::nullopt);
  Write("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 5");
  Write("memory/job/memory.limit_in_bytes", "1500");
  EXPECT_EQ(Left("5:cpu:/\n4:hugetlb,memory:/job\n0::/\n"), 705);
  EXPECT_EQ(Left("5:cpu:/\n4:memoryless:/job\n"), std::nullopt);
}

TEST_F(MemoryLeftTest, WhatIsNoListOfGroups) {
  for (const char* text : {"", "\n", ":", "0:", "nonsense\n::", "0::relative"}) Left(text);
  EXPECT_EQ(MemoryLeft(root_ + "/missing", root_), std::nullopt);
}

}  // namespace
}  // namespace dtensor
