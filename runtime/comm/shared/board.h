// Board: what a rank shows the other ranks of its host, at the start of its arena. It alone writes
// there; the others read. All of it is zeros at first.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_
#define DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A member's part in one group's exchanges, as RankGroup (local) keeps it: posts are kept twice,
// for even and odd numbers.
struct alignas(64) BoardGroup {
  static constexpr size_t kWords = 240;

  struct Post {
    uint64_t call, reads;
    // The sources' descriptions: here, or at that offset of the arena.
    uint64_t at;
    uint64_t words[kWords];
  };

  std::atomic<uint64_t> key;          // the group's fingerprint; 0: no group
  std::atomic<uint64_t> counters[2];  // by ExchangeStage: the last number posted, and done
  Post posts[2];

  const std::atomic<uint64_t>& counter(ExchangeStage stage) const {
    return counters[static_cast<int>(stage)];
  }
};

// A text of at most kBytes, cut off where it is longer.
struct BoardText {
  static constexpr size_t kBytes = 1000;
  uint32_t size;
  char bytes[kBytes];
};

struct Board {
  static constexpr size_t kGroups = 8192;
  static constexpr size_t kWaitWords = 64;

  uint64_t arena_key;
  // Whether this rank has left an exchange that failed: what it posted may be written over.
  std::atomic<bool> withdrawn;
  std::atomic<uint32_t> groups_made;

  // Of a rank that sleeps: the rank that it waits for, and 1 more; 0: it does not sleep.
  alignas(64) std::atomic<uint32_t> sleeps_for;
  // What a wait that lasts is for; see BoardWait. The version is odd while it changes.
  std::atomic<uint64_t> wait_version;
  std::atomic<uint64_t> wait[kWaitWords];

  // Written once, when ranks disagree: what this rank asked for.
  std::atomic<bool> disagrees;
  BoardText op, kind, what;
  bool described;  // CallSummary's

  // By key % kGroups, or the first free place after that, and round. None goes away.
  BoardGroup groups[kGroups];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// The place of `key`; null if it has none. Thread-safe.
const BoardGroup* FindGroup(const Board& board, uint64_t key);
// By the owner: makes the place if there is none; null where all are taken.
BoardGroup* FindOrMakeGroup(Board& board, uint64_t key);

// Sleeps until `word`'s low half is no longer that of `seen`, at most so long; wakes those who do.
// Over any mapping of the memory.
void SleepWhile(const std::atomic<uint64_t>& word, uint64_t seen, int64_t microseconds);
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t seen, int64_t microseconds);
void Wake(const std::atomic<uint64_t>& word);
void Wake(const std::atomic<uint32_t>& word);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_
