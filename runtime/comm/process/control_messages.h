// What processes say to each other over the control plane. The reading functions accept any bytes,
// and refuse those that are no such message.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_MESSAGES_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

enum class ControlMessage : uint8_t {
  kCard = 1,  // to rank 0: a text, when a rank joins
  kCards,     // from rank 0: WorldCards, when all have joined
  kAlive,     // a heartbeat
  kFail,      // to rank 0: a RankStatus that fails the world
  kFailed,    // from rank 0: the world's failure, as a RankStatus
  kLeave,     // to rank 0: a RankStatus, what the rank returned
  kLeft,      // from rank 0: the same, to all
  kOver,      // from rank 0: all have left
};

// The longest body: the cards of a large world.
constexpr size_t kMostControlBytes = size_t{64} << 20;

struct RankStatus {
  int rank = 0;
  absl::Status status;
};
std::string Encode(const RankStatus& message);
// Errors: kInvalidArgument if the bytes are no such message, or for a rank outside of the world.
absl::StatusOr<RankStatus> ReadRankStatus(absl::string_view body, int size);

// What each rank tells the others when it joins.
struct RankCard {
  std::string host;  // its address, as rank 0 sees it; empty: that of rank 0
  std::string text;  // what it gave to ControlPlane::Join
};
// What rank 0 tells all ranks when all have joined.
struct WorldCards {
  double timeout_seconds = 60;  // for a silent rank: rank 0's, for all ranks; in whole microseconds
  std::vector<RankCard> ranks;
};
std::string Encode(const WorldCards& cards);
// Errors: kInvalidArgument if the bytes are no such message, or for another number of ranks than
// `size`.
absl::StatusOr<WorldCards> ReadCards(absl::string_view body, int size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_MESSAGES_H_
