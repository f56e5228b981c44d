// How ranks that wait tell each other for whom, so that a cycle of waits is found, and a silent
// rank told from one that waits itself.
//
// A rank that has waited for a while sends a probe to the one that it waits for. A rank that gets
// one while it waits itself, and has not done what is waited for, adds its own wait, passes the
// probe on, and tells its first sender the chain so far. A probe that comes back to its first
// sender, which is in the same wait still, has found a cycle: each rank of it was waiting when it
// passed the probe on, and the next one had not yet done what would end that wait; so none of them
// can go on.
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
  kCall,     // that the peer makes the call too
  kReceive,  // that it begins to receive
  kBytes,    // that what is on its way comes, or is taken: ranks that wait see to that meanwhile
};

struct RankWait : WaitText {
  WaitStage stage = WaitStage::kCall;
  uint64_t channel = 0, number = 0;  // of the group, and of the exchange in it
};

enum class WaitNoteKind : uint8_t { kProbe = 1, kChain };
struct WaitNote {
  static constexpr size_t kMostWaits = 64, kMostCallBytes = 1000;
  WaitNoteKind kind = WaitNoteKind::kProbe;
  uint64_t id = 0;  // of the first rank's wait
  std::vector<RankWait> waits;
};
// Cuts what is longer than kMostCallBytes.
std::string Encode(const WaitNote& note);
// Errors: kInvalidArgument for bytes that are none, or no chain of different ranks of a world of
// `size`; its last peer may be any rank.
absl::StatusOr<WaitNote> ReadWaitNote(absl::string_view bytes, int size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_WAIT_NOTES_H_
