// MessageCommunicator: what this rank receives, piece by piece.
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {

// Moves what a rank receives from itself alone.
absl::Status MessageCommunicator::MoveOwn(const ExchangePart& part, const ReceiveBox& box) {
  const Tensor* const sources[] = {&part.src};
  const kernels::BoxMove move(box, part.dst, sources, part.op, part.scale);
  return move.is_done() ? absl::OkStatus()
                        : kernels::MoveBoxes(part.dst.device(), "Exchange", {&move, 1}, 0,
                                             WrittenBytes({&part, 1}));
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

// In a native collective each rank receives the same amount from every peer, and gives each the
// same amount. If a plan marked another exchange as native, a backend that relies on it would hang.
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
  // What is already here is moved while data of others is in flight.
  for (const bool own : {true, false}) {
    for (const ExchangePart& part : exchange.parts) {
      for (const ReceiveBox& box : part.receives) {
        if (box.elements() == 0 || (OthersIn(box) == 0) != own) continue;
        DT_RETURN_IF_ERROR(own ? MoveOwn(part, box) : Receive(exchange, part, box));
      }
    }
  }
  return Settle();
}

int64_t MessageCommunicator::OthersIn(const ReceiveBox& box) const {
  return static_cast<int64_t>(box.peers.size()) - absl::c_count(box.peers, rank_);
}

absl::Status MessageCommunicator::Receive(Exchange& exchange, const ExchangePart& part,
                                          const ReceiveBox& box) {
  const int64_t others = OthersIn(box);
  const int64_t size = SizeOf(SentType(part));
  exchange.messages += others;
  exchange.bytes += others * box.elements() * size;
  for (const BoxDims& piece : CutBox(box.dims, piece_bytes_ / size)) {
    DT_RETURN_IF_ERROR(ReceivePiece(exchange, part, box, piece));
  }
  return absl::OkStatus();
}

// Receives the terms into separate buffers, or in place if there is one and the result is a copy of
// it. This rank's own term is read in place.
absl::Status MessageCommunicator::ReceivePiece(Exchange& exchange, const ExchangePart& part,
                                               const ReceiveBox& box, const BoxDims& piece) {
  const DType dtype = SentType(part);
  const bool is_copy = box.peers.size() == 1 && part.scale == 1 && dtype == part.dst.dtype();
  const auto in_place =
      is_copy ? RowsOf(part.dst, piece, BoxSide::kResult, transport_.least_row_bytes())
              : std::nullopt;
  absl::InlinedVector<Tensor, 8> terms;
  for (size_t i = 0; i < box.peers.size() && !in_place; ++i) {
    const bool is_own = box.peers[i] == rank_;
    if (const auto view = is_own ? ViewOf(part.src, piece) : std::nullopt; view) {
      terms.push_back(*view);
      continue;
    }
    DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(device_, dtype, ShapeOf(piece)));
    if (is_own) DT_RETURN_IF_ERROR(PackPiece(part.src, piece, term));
    terms.push_back(std::move(term));
  }
  DT_RETURN_IF_ERROR(Settle());  // the host writes memory that launched work may still read
  absl::InlinedVector<int, 8> pending(box.peers.size(), 0);
  for (size_t i = 0; i < box.peers.size(); ++i) {
    if (box.peers[i] == rank_) continue;
    const TakenRows into = in_place ? *in_place : TakenRows(BytesOf(terms[i]));
    DT_RETURN_IF_ERROR(ReceiveFrom(exchange, box.peers[i], into, pending[i]));
  }
  for (size_t i = 0; i < box.peers.size(); ++i) {
    if (box.peers[i] == rank_) continue;
    DT_RETURN_IF_ERROR(
        Await(exchange, box.peers[i], WaitStage::kBytes, [&] { return pending[i] == 0; }));
  }
  return in_place ? absl::OkStatus() : CombinePiece(part, piece, terms);
}

absl::Status MessageCommunicator::ReceiveFrom(Exchange& exchange, int peer, const TakenRows& into,
                                              int& pending) {
  Incoming& incoming = exchange.incoming.at(peer);
  if (WayOf(incoming.bytes) != Way::kInNote) {
    transport_.Receive(peer, exchange.group->channel, into, pending);
    return absl::OkStatus();
  }
  DT_CHECK(incoming.taken + into.bytes() <= incoming.in_note.size());
  const char* const taken = incoming.in_note.data() + incoming.taken;
  CopyInto(into, {reinterpret_cast<const std::byte*>(taken), into.bytes()});
  incoming.taken += into.bytes();
  return absl::OkStatus();
}

}  // namespace dtensor
