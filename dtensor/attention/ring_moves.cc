#include "dtensor/attention/ring_moves.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::vector<int> SlotsOf(const std::vector<RingMessage>& sends) {
  std::vector<int> blocks;
  for (const RingMessage& message : sends) {
    if (!absl::c_linear_search(blocks, message.block)) blocks.push_back(message.block);
  }
  return blocks;
}

}  // namespace

RingMoves::RingMoves(const RankRing& ring, const RingStep& step, Messages sends, Messages receives,
                     uint64_t digest, absl::string_view op)
    : ring_(ring), step_(step), sends_(sends), receives_(receives) {
  for (const RingTurn& turn : step.turns) {
    slots_ = std::max(slots_, SlotsOf(turn.*sends).size());
    most_received_ = std::max(most_received_, (turn.*receives).size());
  }
  collective_.kind = CollectiveKind::kPermute;
  collective_.axes = ring.axes();
  collective_.op = op;
  collective_.group = ring.group();
  collective_.digest = digest + step.hop;
  collective_.description = this;
  collective_.boxes = this;
  Digest boxes;
  boxes.Add(static_cast<int64_t>(ring.digest()));
  boxes.Add(step.hop);
  boxes.Add(receives == &RingTurn::receives);
  boxes_digest_ = boxes.value();
}

std::string RingMoves::ToString() const {
  const RingProblem& problem = ring_.schedule().problem();
  return absl::StrCat("hop ", step_.hop, ", ", dtensor::ToString(problem.dtype), " on ",
                      problem.q.mesh().ToString(), ", queries ", problem.q.ToString(), " of ",
                      problem.q_length, ", keys ", problem.kv.ToString(), " of ", problem.kv_length,
                      ", mask ", problem.mask.ToString());
}

absl::Status RingMoves::Begin(const RingBlocks& held,
                              absl::FunctionRef<absl::StatusOr<RingBlock>(int block)> buffer,
                              Communicator& communicator) {
  if (!any()) return absl::OkStatus();
  for (const RingMessage& message : turn().*receives_) {
    auto block = buffer(message.block);
    if (!block.ok()) return communicator.Fail(block.status());
    transfers_.push_back(BoxOf(message));
    received_.push_back({message.block, *std::move(block)});
  }
  for (const int block : SlotsOf(turn().*sends_)) sent_.push_back(held.at(block));
  for (size_t slot = 0; slot < slots_; ++slot) {
    for (size_t i = 0; i < most_received_; ++i) {
      const bool pairs = Pairs(turn(), slot, i);
      const auto transfers = absl::MakeConstSpan(transfers_).subspan(pairs ? i : 0, pairs ? 1 : 0);
      for (Tensor RingBlock::*half : {&RingBlock::k, &RingBlock::v}) {
        const Tensor& source = slot < sent_.size() ? sent_[slot].*half : none_;
        const Tensor& result = pairs ? received_[i].second.*half : none_;
        parts_.push_back({source, result, transfers});
      }
    }
  }
  return communicator.Begin(collective_, parts_);
}

absl::Status RingMoves::End(Communicator& communicator) {
  if (!any()) return absl::OkStatus();
  const absl::Status status = communicator.Finish(collective_);
  parts_.clear();
  sent_.clear();
  return status;
}

// Whether the ring rank of `turn` receives its i-th message from this slot of its peer.
bool RingMoves::Pairs(const RingTurn& turn, size_t slot, size_t i) const {
  if (i >= (turn.*receives_).size()) return false;
  const RingMessage& message = (turn.*receives_)[i];
  const std::vector<int> blocks = SlotsOf(step_.turns[message.peer].*sends_);
  return slot < blocks.size() && blocks[slot] == message.block;
}

ReceiveBox RingMoves::BoxOf(const RingMessage& message) const {
  const RingProblem& problem = ring_.schedule().problem();
  ReceiveBox box;
  box.peers = {ring_.ranks()[message.peer]};
  for (const int64_t size : {problem.batch, ring_.schedule().kv_positions(message.block).size(),
                             problem.kv_heads, problem.head_dim}) {
    box.dims.push_back({.length = size});
  }
  return box;
}

// Parts are in the same order as in Begin(): by slot, message and half (k, v).
std::vector<ReceiveBox> RingMoves::Receives(size_t part, int rank) const {
  const size_t slot = part / 2 / most_received_, i = part / 2 % most_received_;
  const RingTurn& turn = step_.turns[absl::c_find(ring_.ranks(), rank) - ring_.ranks().begin()];
  if (!Pairs(turn, slot, i)) return {};
  return {BoxOf((turn.*receives_)[i])};
}

}  // namespace dtensor
