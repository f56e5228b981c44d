// How waiting ranks tell each other which rank they wait for, so that a cycle of waits is found,
// and a silent rank can be told from one that is itself waiting.
//
// A rank that has waited for a while sends a probe to the rank that it waits for. If a rank
// receives a probe while it waits itself, and has not done what is waited for, it adds its own
// wait, passes the probe on, and reports the chain so far to the probe's first sender. If a probe
// comes back to its first sender, and that is still in the same wait, there is a cycle: each rank
// in it was waiting when it passed the probe on, and the next one had not yet done what would end
// that wait. So none of them can go on.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_WAIT_NOTES_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_WAIT_NOTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/wait_chain.h"

namespace dtensor {

// What a rank waits for in an exchange.
enum class WaitStage : uint8_t {
  kCall,     // the peer makes the call too
  kReceive,  // the peer begins to receive
  kBytes,    // bytes in flight arrive or are taken; ranks that wait keep these moving
};

struct RankWait : WaitText {
  WaitStage stage = WaitStage::kCall;
  uint64_t channel = 0, number = 0;  // of the group, and of its exchange
};

enum class WaitNoteKind : uint8_t { kProbe = 1, kChain };
struct WaitNote {
  static constexpr size_t kMostWaits = 64, kMostCallBytes = 1000;
  WaitNoteKind kind = WaitNoteKind::kProbe;
  uint64_t id = 0;  // of the first rank's wait
  std::vector<RankWait> waits;
};
// A longer call text is cut to kMostCallBytes.
std::string Encode(const WaitNote& note);
// Errors: kInvalidArgument if the bytes are no note, or no chain of different ranks of a world of
// `size`; its last peer may be any rank.
absl::StatusOr<WaitNote> ReadWaitNote(absl::string_view bytes, int size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_WAIT_NOTES_H_
