// Board: what a rank shows to the other ranks of its host, at the start of its arena. Only the rank
// itself writes it; the others read it. It is all zeros at first.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_
#define DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A member's part in one group's exchanges. As in RankGroup (local), posts have two slots, for even
// and odd numbers.
struct alignas(64) BoardGroup {
  static constexpr size_t kWords = 240;

  struct Post {
    uint64_t call, reads;
    // The descriptions of the sources: in `words`, or at this offset of the arena.
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

// A text of at most kBytes; a longer one is cut off.
struct BoardText {
  static constexpr size_t kBytes = 1000;
  uint32_t size;
  char bytes[kBytes];
};

struct Board {
  static constexpr size_t kGroups = 8192;
  static constexpr size_t kWaitWords = 64;

  uint64_t arena_key;
  // Whether this rank has left an exchange that failed; what it posted may then be overwritten.
  std::atomic<bool> withdrawn;
  std::atomic<uint32_t> groups_made;

  // While this rank sleeps: 1 + the rank that it waits for. 0: it does not sleep.
  alignas(64) std::atomic<uint32_t> sleeps_for;
  // What a long wait is for; see BoardWait. The version is odd while it is being changed.
  std::atomic<uint64_t> wait_version;
  std::atomic<uint64_t> wait[kWaitWords];

  // Written once, when ranks disagree: what this rank asked for.
  std::atomic<bool> disagrees;
  BoardText op, kind, what;
  bool described;  // CallSummary's

  // A group is at key % kGroups, or at the first free place after that, wrapping around. Groups are
  // never removed.
  BoardGroup groups[kGroups];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Returns the place of `key`, or null if it has none. Thread-safe.
const BoardGroup* FindGroup(const Board& board, uint64_t key);
// For the owner of the board: also makes a place if there is none. Null if all are taken.
BoardGroup* FindOrMakeGroup(Board& board, uint64_t key);

// SleepWhile sleeps until the low half of `word` differs from that of `seen`, but no longer than
// the given time. Wake wakes those that sleep on the word, through whichever mapping of the memory.
void SleepWhile(const std::atomic<uint64_t>& word, uint64_t seen, int64_t microseconds);
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t seen, int64_t microseconds);
void Wake(const std::atomic<uint64_t>& word);
void Wake(const std::atomic<uint32_t>& word);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_BOARD_H_
