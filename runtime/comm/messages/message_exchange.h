// What the sources of MessageCommunicator share, and only they use: a group, an exchange in flight,
// what its ranks send each other, and a wait.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_EXCHANGE_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_EXCHANGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/box_pieces.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/comm/messages/message_notes.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/comm/send_list.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// Of a packed tensor.
inline absl::Span<std::byte> BytesOf(const Tensor& packed) {
  return {packed.data<std::byte>(), static_cast<size_t>(packed.bytes())};
}

// A group as this rank sees it.
struct MessageCommunicator::Group {
  std::vector<int> ranks;
  uint64_t channel = 0;
  uint64_t number = 0;                    // of the last exchange that began
  Exchange* exchange = nullptr;           // in flight
  std::map<int, std::deque<Note>> notes;  // of each peer, not handled yet
};

// What one peer receives from here.
struct MessageCommunicator::Outgoing {
  int peer;
  std::vector<SendBox> boxes;
  int64_t bytes = 0;
  Way way = Way::kInNote;
  bool go = false;  // it may be sent: the peer said so, or need not
  // How much of it was given to the transport: the boxes before `box`, and of that box the pieces
  // before `piece`.
  size_t box = 0, piece = 0;
  std::vector<BoxDims> pieces;
  // Where a piece in flight is. The transport may finish the slots in any order.
  struct Slot {
    Tensor staged;  // the packed piece, if it was packed; not touched while pending
    int pending = 0;
  };
  Slot slots[2];
  Slot* FreeSlot() {
    for (Slot& slot : slots) {
      if (slot.pending == 0) return &slot;
    }
    return nullptr;
  }
  bool sent() const {
    const bool none_pending = slots[0].pending == 0 && slots[1].pending == 0;
    return way == Way::kInNote || (go && box == boxes.size() && none_pending);
  }
};

struct MessageCommunicator::Incoming {
  bool called = false;
  uint64_t fingerprint = 0;
  std::string in_note;  // what came with its call
  size_t taken = 0;     // bytes of it that were used
  std::string word;     // for the carrier
  int64_t bytes = 0;    // expected in all, however they travel
  std::optional<CallSummary> summary;
};

struct MessageCommunicator::Exchange {
  Group* group;
  const Collective* collective;
  absl::Span<const ExchangePart> parts;
  uint64_t number, fingerprint;
  DeviceEvent begun;                  // for the carrier
  std::shared_ptr<const void> owner;  // of a dropped exchange
  std::vector<Outgoing> outgoing;
  std::map<int, Incoming> incoming;
  bool receives = false;  // others may send now (or have nothing to send)
  int64_t messages = 0, bytes = 0;
};

// A wait for a peer in an exchange.
struct MessageCommunicator::Wait {
  uint64_t id;
  const Exchange* exchange;
  int peer;
  WaitStage stage;
  std::chrono::duration<double> waited{0};  // without time in which this process was stopped
  // For which rank the peer waits, and so on, as it reported at `chain_came`; empty if it did not.
  std::vector<RankWait> chain;
  std::chrono::duration<double> chain_came{0};
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_EXCHANGE_H_
