#include "dtensor/runtime/device/cpu/shared_arena.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = int64_t{1} << 32;

// What `fn` returns in a process of its own, which ends then.
int InChild(const std::function<int()>& fn) {
  const pid_t child = fork();
  if (child == 0) _exit(fn());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int64_t MemoryOf(const SharedArena& arena) {
  struct stat about;
  fstat(arena.name().descriptor, &about);
  return about.st_blocks * 512;
}

TEST(SharedArenaTest, AnotherProcessReadsWhatIsWritten) {
  DT_ASSERT_OK_AND_ASSIGN(const auto arena, SharedArena::Create(kBytes, 0));
  char* const data = static_cast<char*>(arena->Map(3 << 20));
  ASSERT_NE(data, nullptr);
  std::memset(data, 7, 3 << 20);
  const auto read = [&] {
    const absl::StatusOr<ArenaView> view = ArenaView::Open(arena->name());
    if (!view.ok()) return 1;
    return view->data()[data - arena->data() + (3 << 20) - 1] == 7 ? 0 : 2;
  };
  EXPECT_EQ(InChild(read), 0);
}

// A service, cron and `program <&- >&-` start so: what the program prints is nobody's tensor.
TEST(SharedArenaTest, IsNoStandardStream) {
  const auto create = [] {
    for (const int stream : {0, 1, 2}) close(stream);
    const auto arena = SharedArena::Create(kBytes, 0);
    return arena.ok() && (*arena)->name().descriptor > 2 ? 0 : 1;
  };
  EXPECT_EQ(InChild(create), 0);
}

TEST(SharedArenaTest, AViewCannotBeWritten) {
  DT_ASSERT_OK_AND_ASSIGN(const auto arena, SharedArena::Create(kBytes, 0));
  const auto write = [&] {
    const absl::StatusOr<ArenaView> view = ArenaView::Open(arena->name());
    if (!view.ok() || view->data()[100] != 0) return 0;
    const_cast<volatile char*>(view->data())[100] = 1;
    return 0;
  };
  EXPECT_NE(InChild(write), 0);
}

// The parent's later values, and its memory to write to, would be nobody's snapshot.
TEST(SharedArenaTest, AForkedChildHasNoneOfIt) {
  DT_ASSERT_OK_AND_ASSIGN(const auto arena, SharedArena::Create(kBytes, 0));
  DT_ASSERT_OK_AND_ASSIGN(const ArenaView view, ArenaView::Open(arena->name()));
  char* const data = static_cast<char*>(arena->Map(1 << 20));
  ASSERT_NE(data, nullptr);
  data[0] = 7;
  const char* const same = view.data() + (data - arena->data());
  ASSERT_EQ(same[0], 7);
  for (const char* const place : {static_cast<const char*>(data), same}) {
    // 0 where the child can read it.
    EXPECT_NE(InChild([&] { return *const_cast<const volatile char*>(place) == 7 ? 0 : 1; }), 0);
    EXPECT_NE(InChild([&] {
                *const_cast<volatile char*>(data) = 8;
                return 0;
              }),
              0);
  }
  EXPECT_EQ(data[0], 7);
}

TEST(SharedArenaTest, FindsOnlyTheArenaThatIsMeant) {
  DT_ASSERT_OK_AND_ASSIGN(auto arena, SharedArena::Create(kBytes, 0));
  ArenaName name = arena->name();
  name.key ^= 2;
  EXPECT_EQ(ArenaView::Open(name).status().code(), absl::StatusCode::kNotFound);
  name = arena->name();
  name.bytes /= 2;
  EXPECT_EQ(ArenaView::Open(name).status().code(), absl::StatusCode::kNotFound);
  name = arena->name();
  arena = nullptr;
  EXPECT_EQ(ArenaView::Open(name).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedArenaTest, BlocksAreApartAndMemoryGoesBack) {
  DT_ASSERT_OK_AND_ASSIGN(const auto arena, SharedArena::Create(kBytes, 4096));
  const int64_t before = MemoryOf(*arena);
  std::map<char*, int64_t> blocks;
  std::mt19937_64 random(5);
  int64_t used = 0;
  for (int i = 0; i < 500; ++i) {
    if (blocks.size() > 20 || (!blocks.empty() && random() % 3 == 0)) {
      const auto it = std::next(blocks.begin(), random() % blocks.size());
      EXPECT_EQ(it->first[it->second - 1], 1);
      arena->Unmap(it->first, it->second);
      used -= it->second;
      blocks.erase(it);
    }
    const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 1000);
    char* const data = static_cast<char*>(arena->Map(bytes));
    ASSERT_NE(data, nullptr);
    EXPECT_GE(data, arena->data() + 4096);
    if (bytes >= PageSource::kHugePage) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % PageSource::kHugePage, 0);
    }
    EXPECT_EQ(data[0], 0);
    EXPECT_EQ(data[bytes - 1], 0);
    data[0] = data[bytes - 1] = 1;
    const auto after = blocks.lower_bound(data);
    if (after != blocks.end()) {
      EXPECT_LE(data + bytes, after->first);
    }
    if (after != blocks.begin()) {
      const auto left = std::prev(after);
      EXPECT_LE(left->first + left->second, data);
    }
    blocks[data] = bytes;
    used += bytes;
    EXPECT_EQ(MemoryOf(*arena) - before, used);
  }
  for (const auto& [data, bytes] : blocks) arena->Unmap(data, bytes);
  EXPECT_EQ(MemoryOf(*arena), before);
  // All of it is one again.
  EXPECT_EQ(arena->Map(64 << 20), arena->data() + PageSource::kHugePage);
}

TEST(SharedArenaTest, SaysWhichLimitToRaise) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limits that this sets";
#else
  const auto refusal = [](int resource, rlim_t most, const char* text) {
    const rlimit limit = {most, most};
    setrlimit(resource, &limit);
    const auto arena = SharedArena::Create(kBytes, 0);
    return arena.status().message().find(text) != absl::string_view::npos &&
                   arena.status().message().find("DTENSOR_TRANSPORT=tcp") != absl::string_view::npos
               ? 0
               : 1;
  };
  EXPECT_EQ(InChild([&] { return refusal(RLIMIT_AS, 1 << 29, "ulimit -v"); }), 0);
  EXPECT_EQ(InChild([&] { return refusal(RLIMIT_FSIZE, 1 << 20, "ulimit -f"); }), 0);
  EXPECT_EQ(InChild([&] { return refusal(RLIMIT_NOFILE, 3, "ulimit -n"); }), 0);
#endif
}

// 47 bits of addresses are a process's, whatever its limits are.
TEST(SharedArenaTest, SaysWhoHasTheAddresses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers leave a program few addresses";
#else
  DT_ASSERT_OK_AND_ASSIGN(const auto arena, SharedArena::Create(int64_t{1} << 45, 0));
  std::vector<ArenaView> views;
  absl::StatusOr<ArenaView> view = ArenaView::Open(arena->name());
  for (; view.ok() && views.size() < 10; view = ArenaView::Open(arena->name())) {
    views.push_back(*std::move(view));
  }
  EXPECT_THAT(view, StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("addresses"), HasSubstr("ulimit -v"),
                                   HasSubstr("leave this process's other worlds first"))));
#endif
}

TEST(SharedArenaTest, TakesFewerAddressesWhereThereAreFewer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limits that this sets";
#else
  EXPECT_EQ(InChild([] {
              const rlimit limit = {rlim_t{1} << 33, rlim_t{1} << 33};
              setrlimit(RLIMIT_AS, &limit);
              const auto arena = SharedArena::Create(int64_t{1} << 40, 0);
              return arena.ok() && (*arena)->bytes() >= int64_t{1} << 31 ? 0 : 1;
            }),
            0);
#endif
}

}  // namespace
}  // namespace dtensor
