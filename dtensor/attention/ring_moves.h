// One step's messages of a ring schedule, of one kind, as an exchange between its ranks.
#ifndef DTENSOR_ATTENTION_RING_MOVES_H_
#define DTENSOR_ATTENTION_RING_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// Keys and values, or their gradients.
struct RingBlock {
  Tensor k, v;
};
using RingBlocks = std::map<int, RingBlock>;  // by number

// A rank lays out what it sends in slots, one for each block; a part of the exchange pairs a slot
// with a message that is received. All ranks have as many parts.
class RingMoves final : private CallDescription, private ExchangeBoxes {
 public:
  using Messages = std::vector<RingMessage> RingTurn::*;

  // All arguments outlive this. `digest` is of all that the ring's ranks must agree on.
  RingMoves(const RankRing& ring, const RingStep& step, Messages sends, Messages receives,
            uint64_t digest, absl::string_view op);

  // `held` has all that this rank sends; peers may read from it until End(). `buffer` gives memory
  // to a block that comes. Errors: the world's failure; buffer's, which fails the world.
  absl::Status Begin(const RingBlocks& held,
                     absl::FunctionRef<absl::StatusOr<RingBlock>(int block)> buffer,
                     Communicator& communicator);
  absl::Status End(Communicator& communicator);

  // What came, by block. After End().
  absl::Span<const std::pair<int, RingBlock>> received() const { return received_; }

 private:
  std::string ToString() const override;
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override;
  uint64_t digest() const override { return boxes_digest_; }
  const RingTurn& turn() const { return step_.turns[ring_.ring_rank()]; }
  bool any() const { return most_received_ > 0; }
  bool Pairs(const RingTurn& turn, size_t slot, size_t i) const;
  ReceiveBox BoxOf(const RingMessage& message) const;

  const RankRing& ring_;
  const RingStep& step_;
  const Messages sends_, receives_;
  size_t slots_ = 0, most_received_ = 0;  // of any rank
  Collective collective_;
  std::vector<std::pair<int, RingBlock>> received_;
  std::vector<ReceiveBox> transfers_;
  uint64_t boxes_digest_ = 0;
  std::vector<RingBlock> sent_;  // by slot
  const Tensor none_;
  std::vector<ExchangePart> parts_;
};

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_RING_MOVES_H_
