// What a rank sends in an exchange, for transports in which a rank cannot read its peers' memory.
// It is computed from what all ranks receive, which each of them knows (ExchangeBoxes).
#ifndef DTENSOR_RUNTIME_COMM_SEND_LIST_H_
#define DTENSOR_RUNTIME_COMM_SEND_LIST_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/lru_cache.h"

namespace DTENSOR_EXPORT dtensor {

// One box of this rank's source that another rank receives.
struct SendBox {
  int receiver = 0;  // world rank
  size_t part = 0;
  size_t index = 0;                         // of the box in the receiver's list for the part
  absl::InlinedVector<MatchedRun, 4> dims;  // the receiver's; src is in this rank's source
};

// Ascending by receiver, part and index, so both sides know the order of what one rank sends
// another. The rank itself is never a receiver. Requires: collective.boxes.
std::vector<SendBox> SendListOf(const Collective& collective, size_t parts, int rank);

// Caches the send lists of the exchanges in which `rank` took part most recently, of those that may
// repeat.
class SendLists {
 public:
  explicit SendLists(int rank) : rank_(rank) {}
  // Valid until the next call. Requires: collective.boxes.
  absl::Span<const SendBox> Of(const Collective& collective, size_t parts);

 private:
  static constexpr size_t kMostLists = 256;
  const int rank_;
  LruCache<std::pair<uint64_t, size_t>, std::vector<SendBox>> lists_{kMostLists};
  std::vector<SendBox> latest_;  // of an exchange that does not repeat
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SEND_LIST_H_
