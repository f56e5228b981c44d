// All messages of one kind in one step of a ring schedule, as one exchange between the ring's
// ranks.
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

// The keys and values of a block, or their gradients.
struct RingBlock {
  Tensor k, v;
};
using RingBlocks = std::map<int, RingBlock>;  // by number

// A rank puts what it sends into slots, one per block. A part of the exchange pairs a slot with a
// message that is received. All ranks have the same number of parts.
class RingMoves final : private CallDescription, private ExchangeBoxes {
 public:
  using Messages = std::vector<RingMessage> RingTurn::*;

  // All arguments must outlive this. `digest` is a digest of all that the ring's ranks must agree
  // on.
  RingMoves(const RankRing& ring, const RingStep& step, Messages sends, Messages receives,
            uint64_t digest, absl::string_view op);

  // `held` contains all that this rank sends; peers may read from it until End(). `buffer`
  // allocates the memory for a block that arrives. Errors: the world's failure; those of `buffer`,
  // which fail the world.
  absl::Status Begin(const RingBlocks& held,
                     absl::FunctionRef<absl::StatusOr<RingBlock>(int block)> buffer,
                     Communicator& communicator);
  absl::Status End(Communicator& communicator);

  // The blocks that arrived, with their numbers. Call it after End().
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
