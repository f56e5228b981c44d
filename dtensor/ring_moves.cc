#include "dtensor/ring_moves.h"

#include <algorithm>

#include "absl/algorithm/container.h"
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
}

absl::Status RingMoves::Begin(const RingBlocks& held,
                              absl::FunctionRef<absl::StatusOr<RingBlock>(int block)> buffer,
                              Communicator& communicator) {
  if (!any()) return absl::OkStatus();
  for (const RingMessage& message : turn().*receives_) {
    auto block = buffer(message.block);
    if (!block.ok()) return communicator.Fail(block.status());
    Receive(message, *std::move(block));
  }
  const std::vector<int> mine = SlotsOf(turn().*sends_);
  for (size_t slot = 0; slot < slots_; ++slot) {
    for (size_t i = 0; i < most_received_; ++i) {
      for (Tensor RingBlock::*half : {&RingBlock::k, &RingBlock::v}) {
        ExchangePart& part = parts_.emplace_back();
        if (slot < mine.size()) part.src = held.at(mine[slot]).*half;
        if (i >= received_.size() || SlotOf((turn().*receives_)[i]) != slot) continue;
        part.dst = received_[i].second.*half;
        part.receives = absl::MakeConstSpan(&transfers_[i], 1);
      }
    }
  }
  return communicator.Begin(collective_, parts_);
}

absl::Status RingMoves::End(Communicator& communicator) {
  if (!any()) return absl::OkStatus();
  const absl::Status status = communicator.Finish(collective_);
  parts_.clear();
  return status;
}

size_t RingMoves::SlotOf(const RingMessage& received) const {
  const std::vector<int> blocks = SlotsOf(step_.turns[received.peer].*sends_);
  return absl::c_find(blocks, received.block) - blocks.begin();
}

void RingMoves::Receive(const RingMessage& message, RingBlock buffer) {
  Transfer& transfer = transfers_.emplace_back();
  transfer.peers = {ring_.ranks()[message.peer]};
  for (const int64_t size : buffer.k.shape()) transfer.dims.push_back({.length = size});
  received_.push_back({message.block, std::move(buffer)});
}

}  // namespace dtensor
