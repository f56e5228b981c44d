// MessageCommunicator: what others receive from here.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

void MessageCommunicator::FindOutgoing(Exchange& exchange) {
  std::map<int, Outgoing> by_peer;
  for (const int peer : exchange.group->ranks) {
    if (peer == rank_) continue;
    by_peer[peer].peer = peer;
    exchange.incoming[peer];
  }
  if (carrier_ == nullptr && !exchange.parts.empty() && !by_peer.empty()) {
    for (const SendBox& box : lists_.Of(*exchange.collective, exchange.parts.size())) {
      Outgoing& outgoing = by_peer.at(box.receiver);
      const int64_t elements = NumElements(ShapeOf(box.dims));
      if (elements == 0) continue;
      outgoing.bytes += elements * SizeOf(SentType(exchange.parts[box.part]));
      outgoing.boxes.push_back(box);
    }
  }
  for (auto& [peer, outgoing] : by_peer) {
    outgoing.way = WayOf(outgoing.bytes);
    outgoing.go = carrier_ == nullptr && outgoing.way != Way::kAsked;
    exchange.outgoing.push_back(std::move(outgoing));
  }
}

absl::Status MessageCommunicator::TellCall(Exchange& exchange) {
  for (const Outgoing& outgoing : exchange.outgoing) {
    Note note = {.kind = NoteKind::kCall, .fingerprint = exchange.fingerprint};
    if (outgoing.way == Way::kInNote && !outgoing.boxes.empty()) {
      DT_ASSIGN_OR_RETURN(note.bytes, PackAll(exchange, outgoing));
    }
    Tell(exchange, outgoing.peer, std::move(note));
  }
  for (Outgoing& outgoing : exchange.outgoing) DT_RETURN_IF_ERROR(SendMore(exchange, outgoing));
  return absl::OkStatus();
}

// Called before this rank sends what it was asked for: so both can send at the same time.
void MessageCommunicator::TellGo(Exchange& exchange) {
  exchange.receives = true;
  for (auto& [peer, incoming] : exchange.incoming) {
    incoming.bytes = BytesFrom(exchange, peer);
    if (WayOf(incoming.bytes) == Way::kAsked) Tell(exchange, peer, {.kind = NoteKind::kGo});
  }
}

void MessageCommunicator::Tell(const Exchange& exchange, int peer, Note note) {
  note.number = exchange.number;
  const uint64_t channel = exchange.group->channel;
  // In a group of two, the call goes together with the message right behind it, which saves waking
  // the peer twice. If there are several peers, each should hear of the call before the first of
  // them gets its message.
  const bool goes_ahead = note.kind == NoteKind::kCall && exchange.outgoing.size() == 1 &&
                          exchange.outgoing[0].way == Way::kUnasked;
  if (goes_ahead) {
    transport_.SendNoteAhead(peer, channel, Encode(note));
  } else {
    transport_.SendNote(peer, channel, Encode(note));
  }
}

absl::StatusOr<std::string> MessageCommunicator::PackAll(const Exchange& exchange,
                                                         const Outgoing& outgoing) {
  std::vector<Tensor> packed;
  for (const SendBox& box : outgoing.boxes) {
    const Tensor& source = exchange.parts[box.part].src;
    DT_ASSIGN_OR_RETURN(Tensor piece, Tensor::Empty(device_, source.dtype(), ShapeOf(box.dims)));
    DT_RETURN_IF_ERROR(PackPiece(source, box.dims, piece));
    packed.push_back(std::move(piece));
  }
  DT_RETURN_IF_ERROR(Settle());
  std::string bytes;
  for (const Tensor& piece : packed) bytes.append(piece.data<char>(), piece.bytes());
  return bytes;
}

absl::Status MessageCommunicator::SendMore(Exchange& exchange, Outgoing& outgoing) {
  while (outgoing.go && outgoing.way != Way::kInNote && outgoing.box < outgoing.boxes.size()) {
    const SendBox& box = outgoing.boxes[outgoing.box];
    const Tensor& source = exchange.parts[box.part].src;
    if (outgoing.pieces.empty()) {
      outgoing.pieces = CutBox(box.dims, piece_bytes_ / SizeOf(source.dtype()));
    }
    Outgoing::Slot* const slot = outgoing.FreeSlot();
    if (slot == nullptr) return absl::OkStatus();
    const BoxDims& piece = outgoing.pieces[outgoing.piece];
    std::optional<TakenRows> bytes =
        RowsOf(source, piece, BoxSide::kSource, transport_.least_row_bytes());
    if (!bytes) {
      slot->staged = Tensor();
      DT_ASSIGN_OR_RETURN(slot->staged, Tensor::Empty(device_, source.dtype(), ShapeOf(piece)));
      DT_RETURN_IF_ERROR(PackPiece(source, piece, slot->staged));
      bytes = BytesOf(slot->staged);
    }
    DT_RETURN_IF_ERROR(Settle());
    const uint64_t channel = exchange.group->channel;
    if (outgoing.way == Way::kUnasked) {
      transport_.SendUnasked(outgoing.peer, channel, *bytes, slot->pending);
    } else {
      transport_.Send(outgoing.peer, channel, *bytes, slot->pending);
    }
    if (++outgoing.piece < outgoing.pieces.size()) continue;
    ++outgoing.box;
    outgoing.piece = 0;
    outgoing.pieces.clear();
  }
  return absl::OkStatus();
}

}  // namespace dtensor
