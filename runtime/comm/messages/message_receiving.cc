// MessageCommunicator: what this rank receives, piece by piece.
#include <cstring>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {

// What a rank receives from itself alone.
absl::Status MessageCommunicator::MoveOwn(const ExchangePart& part, const ReceiveBox& box) {
  const Tensor* const sources[] = {&part.src};
  const kernels::BoxMove move(box, part.dst, sources, part.op, part.scale);
  return move.is_done() ? absl::OkStatus()
                        : kernels::MoveBoxes(part.dst.device(), "Exchange", {&move, 1});
}

int64_t MessageCommunicator::BytesFrom(const Exchange& exchange, int peer) const {
  int64_t bytes = 0;
  for (const ExchangePart& part : exchange.parts) {
    for (const ReceiveBox& box : part.receives) {
      bytes += absl::c_count(box.peers, peer) * box.elements() * SizeOf(SentType(part));
    }
  }
  return bytes;
}

// A native collective gives each rank as much from every peer as from others, and as much as it
// gives them; a plan that says so of another exchange would hang where a backend takes it at its
// word.
absl::Status MessageCommunicator::CheckNative(const Exchange& exchange) const {
  for (const Outgoing& outgoing : exchange.outgoing) {
    const int64_t bytes = BytesFrom(exchange, outgoing.peer);
    if (bytes == outgoing.bytes && bytes == BytesFrom(exchange, exchange.outgoing[0].peer))
      continue;
    return absl::InternalError(absl::StrCat(ExchangeLabel(*exchange.collective), "rank ", rank_,
                                            " and rank ", outgoing.peer,
                                            " do not get alike in a native collective"));
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::ReceiveAll(Exchange& exchange) {
  if (exchange.collective->native) DT_RETURN_IF_ERROR(CheckNative(exchange));
  for (const auto& [peer, incoming] : exchange.incoming) {
    const int64_t bytes = incoming.bytes, in_note = incoming.in_note.size();
    if (in_note != (WayOf(bytes) == Way::kInNote ? bytes : 0)) {
      return absl::InternalError(absl::StrCat(ExchangeLabel(*exchange.collective), "rank ", peer,
                                              " sent ", in_note, " bytes with its call, where ",
                                              bytes, " are expected in all"));
    }
  }
  for (const ExchangePart& part : exchange.parts) {
    for (const ReceiveBox& box : part.receives) {
      if (box.elements() > 0) DT_RETURN_IF_ERROR(Receive(exchange, part, box));
    }
  }
  return Settle();
}

absl::Status MessageCommunicator::Receive(Exchange& exchange, const ExchangePart& part,
                                          const ReceiveBox& box) {
  const int64_t others = box.peers.size() - absl::c_count(box.peers, rank_);
  const int64_t size = SizeOf(SentType(part));
  exchange.messages += others;
  exchange.bytes += others * box.elements() * size;
  if (others == 0) return MoveOwn(part, box);
  for (const BoxDims& piece : CutBox(box.dims, piece_bytes_ / size)) {
    DT_RETURN_IF_ERROR(ReceivePiece(exchange, part, box, piece));
  }
  return absl::OkStatus();
}

// Its terms come side by side, and in place if there is one and it is what the result is to be.
absl::Status MessageCommunicator::ReceivePiece(Exchange& exchange, const ExchangePart& part,
                                               const ReceiveBox& box, const BoxDims& piece) {
  const DType dtype = SentType(part);
  const bool is_copy = box.peers.size() == 1 && part.scale == 1 && dtype == part.dst.dtype();
  const auto in_place = is_copy ? RunOf(part.dst, piece, BoxSide::kResult) : std::nullopt;
  absl::InlinedVector<Tensor, 8> terms;
  for (size_t i = 0; i < box.peers.size() && !in_place; ++i) {
    DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(device_, dtype, ShapeOf(piece)));
    if (box.peers[i] == rank_) DT_RETURN_IF_ERROR(PackPiece(part.src, piece, term));
    terms.push_back(std::move(term));
  }
  DT_RETURN_IF_ERROR(Settle());  // the host writes where work may still be reading
  absl::InlinedVector<int, 8> pending(box.peers.size(), 0);
  for (size_t i = 0; i < box.peers.size(); ++i) {
    if (box.peers[i] == rank_) continue;
    const absl::Span<std::byte> into =
        in_place
            ? *in_place
            : absl::MakeSpan(terms[i].data<std::byte>(), static_cast<size_t>(terms[i].bytes()));
    DT_RETURN_IF_ERROR(ReceiveFrom(exchange, box.peers[i], into, pending[i]));
  }
  for (size_t i = 0; i < box.peers.size(); ++i) {
    if (box.peers[i] == rank_) continue;
    DT_RETURN_IF_ERROR(
        Await(exchange, box.peers[i], WaitStage::kBytes, [&] { return pending[i] == 0; }));
  }
  return in_place ? absl::OkStatus() : CombinePiece(part, piece, terms);
}

absl::Status MessageCommunicator::ReceiveFrom(Exchange& exchange, int peer,
                                              absl::Span<std::byte> into, int& pending) {
  Incoming& incoming = exchange.incoming.at(peer);
  if (WayOf(incoming.bytes) != Way::kInNote) {
    transport_.Receive(peer, exchange.group->channel, into, pending);
    return absl::OkStatus();
  }
  DT_CHECK(incoming.taken + into.size() <= incoming.in_note.size());
  std::memcpy(into.data(), incoming.in_note.data() + incoming.taken, into.size());
  incoming.taken += into.size();
  return absl::OkStatus();
}

}  // namespace dtensor
