#include "dtensor/runtime/comm/shared/board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <ctime>

namespace dtensor {
namespace {

// A futex has 32 bits: the low half is at the word's address.
static_assert(std::endian::native == std::endian::little);

void FutexWait(const void* word, uint32_t seen, int64_t microseconds) {
  const timespec longest = {microseconds / 1000000, microseconds % 1000000 * 1000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &longest, nullptr, 0);
}

void FutexWake(const void* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

const BoardGroup* FindGroup(const Board& board, uint64_t key) {
  for (size_t i = 0; i < Board::kGroups; ++i) {
    const BoardGroup& group = board.groups[(key + i) % Board::kGroups];
    const uint64_t known = group.key.load(std::memory_order_acquire);
    if (known == key) return &group;
    if (known == 0) return nullptr;
  }
  return nullptr;
}

BoardGroup* FindOrMakeGroup(Board& board, uint64_t key) {
  for (size_t i = 0; i < Board::kGroups; ++i) {
    BoardGroup& group = board.groups[(key + i) % Board::kGroups];
    const uint64_t known = group.key.load(std::memory_order_relaxed);
    if (known == key) return &group;
    if (known != 0) continue;
    group.key.store(key, std::memory_order_seq_cst);
    board.groups_made.fetch_add(1, std::memory_order_seq_cst);
    Wake(board.groups_made);
    return &group;
  }
  return nullptr;
}

void SleepWhile(const std::atomic<uint64_t>& word, uint64_t seen, int64_t microseconds) {
  FutexWait(&word, static_cast<uint32_t>(seen), microseconds);
}
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t seen, int64_t microseconds) {
  FutexWait(&word, seen, microseconds);
}
void Wake(const std::atomic<uint64_t>& word) { FutexWake(&word); }
void Wake(const std::atomic<uint32_t>& word) { FutexWake(&word); }

}  // namespace dtensor
