// MessageCommunicator: ranks that cannot read each other's memory, over any MessageTransport.
//
// An exchange, on each rank of the group:
//   Begin   tells every other member what it is about to do, with a fingerprint of it, and what
//           that member receives where that is little; somewhat more is sent behind it, unasked
//   Finish  waits until every member has told it the same; tells those who have much for it to go
//           on (of a pair, at once); takes in what they send, piece by piece, combines terms in the
//           order listed, as threads do, so with the same bits; and waits until others have what
//           they receive
// Between the two, in every wait for a message, and by Progress, what others were told to wait for
// is sent.
//
// A piece lies in staging, at most staging_bytes() of each exchange that is on its way, where it
// cannot be sent or received in place: where it has rows shorter than the transport takes
// (least_row_bytes), is converted, or has several terms.
//
// With a carrier (exchange_carrier.h), messages are left to that: Finish tells every other member
// that this rank is there, waits until all have said so, and has the exchange carried.
//
// A wait ends when the world fails, when a peer has left, is lost, or is silent for the time-out,
// or when ranks wait for each other in a cycle. Time in which this process was stopped does not
// count.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/box_pieces.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/exchange_carrier.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/comm/send_list.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

struct CallSummary;  // call_summary.h
struct Note;         // message_notes.h
struct RankWait;     // wait_notes.h
struct WaitNote;
enum class WaitStage : uint8_t;

struct MessageOptions {
  // Of a piece, at least 8. 0: 1 MiB, less in large worlds.
  int64_t piece_bytes = 0;
  // What one rank sends another in one exchange goes with the call where it is not more; at most
  // half a note.
  int64_t note_bytes = 8192;
  // And right behind the call, without waiting for a word, where it is not more than this. -1: a
  // piece; at most MessageTransport::kMostUnaskedBytes.
  int64_t eager_bytes = -1;
  // Moves the bytes of exchanges, in place of all that is said above. Outlives the communicator.
  ExchangeCarrier* carrier = nullptr;
};

// Of one rank's thread. Device, transport and world outlive it; without a carrier, the device's
// memory is the host's.
class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(int rank, int size, Device& device, MessageTransport& transport,
                      WorldState& world, const MessageOptions& options = {});
  ~MessageCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int64_t staging_bytes() const override {
    return carrier_ != nullptr ? carrier_->staging_bytes() : kPiecesAtATime * size_ * piece_bytes_;
  }
  absl::Status FinishDropped() override;
  absl::Status Barrier(absl::string_view what) override;
  absl::Status Fail(const absl::Status& reason) override;
  absl::Status failure() const override { return world_.failure(); }

  // For a wait that is not for messages: sends what others wait for, as far as that goes without
  // waiting. Returns whether there is more to send. An error fails the world. Requires: no other
  // call of this is on its way.
  bool Progress();

  // The world is over: forgets what is on its way. Later calls are refused, and do not use the
  // transport.
  void End();

 private:
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override;
  absl::Status FinishExchange(const Collective& collective) override;
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override;

  // Of each peer: two that it sends, two that it receives, and what came unasked.
  static constexpr int64_t kPiecesAtATime = 5;

  // How what one rank sends another in an exchange comes there; both know how many bytes it is.
  enum class Way : uint8_t { kInNote, kUnasked, kAsked };
  Way WayOf(int64_t bytes) const;

  struct Exchange;
  struct Group;     // of ranks, as this one sees it
  struct Outgoing;  // what a peer receives from here
  struct Incoming;  // what a peer said
  struct Wait;

  static constexpr size_t kMostIdle = 64;  // groups that are kept without an exchange
  Group& GroupOf(absl::Span<const int> ranks);
  void ForgetIdleGroups();
  absl::Status Abandon(const Collective& collective, const absl::Status& why);
  absl::Status Start(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Complete(Exchange& exchange);
  absl::Status Perform(Exchange& exchange);
  absl::Status PerformCarried(Exchange& exchange);
  Exchange* Find(const Collective& collective);
  void Forget(Exchange& exchange);
  absl::Status Usable() const;

  // Sending.
  void FindOutgoing(Exchange& exchange);
  absl::Status TellCall(Exchange& exchange);
  void TellGo(Exchange& exchange);
  void Tell(const Exchange& exchange, int peer, Note note);  // but for the number
  absl::StatusOr<std::string> PackAll(const Exchange& exchange, const Outgoing& outgoing);
  absl::Status SendMore(Exchange& exchange, Outgoing& outgoing);

  // Agreement.
  absl::Status TakeNotes(Exchange& exchange);
  absl::Status Heed(Exchange& exchange, int peer, const Note& note);
  absl::Status CompareCalls(Exchange& exchange);
  static CallSummary SummaryOf(const Exchange& exchange);
  absl::Status DisagreeWith(Exchange& exchange, int peer, const CallSummary& mine);

  // Receiving.
  int64_t BytesFrom(const Exchange& exchange, int peer) const;
  absl::Status CheckNative(const Exchange& exchange) const;
  absl::Status ReceiveAll(Exchange& exchange);
  int64_t OthersIn(const ReceiveBox& box) const;  // terms
  static absl::Status MoveOwn(const ExchangePart& part, const ReceiveBox& box);
  absl::Status Receive(Exchange& exchange, const ExchangePart& part, const ReceiveBox& box);
  absl::Status ReceivePiece(Exchange& exchange, const ExchangePart& part, const ReceiveBox& box,
                            const BoxDims& piece);
  absl::Status ReceiveFrom(Exchange& exchange, int peer, const TakenRows& into, int& pending);

  // Waits until `over`, for `peer`; what others wait for is sent meanwhile.
  absl::Status Await(const Exchange& exchange, int peer, WaitStage stage,
                     const std::function<bool()>& over);
  absl::Status Advance(std::chrono::microseconds longest);
  absl::Status CheckPeer(const Exchange& exchange, int peer);
  static std::string CallOf(const Exchange& exchange);
  absl::Status Settle();  // what was launched has run

  // Who waits for whom.
  static constexpr uint64_t kWaitChannel = 0;
  RankWait Described(const Wait& wait) const;
  void SendProbe(const Wait& wait);
  absl::Status TakeWaitNotes(Wait& wait);
  absl::Status HeedProbe(const Wait& wait, WaitNote note);
  bool HasDone(const RankWait& wait) const;
  absl::Status TimeOut(const Wait& wait);

  const int rank_, size_;
  Device& device_;
  MessageTransport& transport_;
  WorldState& world_;
  ExchangeCarrier* const carrier_;  // null: messages
  const int64_t piece_bytes_, note_bytes_, eager_bytes_;
  std::vector<int> everyone_;
  SendLists lists_;
  std::list<Group> groups_;                         // the one used last first
  std::unordered_map<uint64_t, uint64_t> numbers_;  // by channel: of groups that were forgotten
  std::list<std::unique_ptr<Exchange>> exchanges_;  // on their way, as they began
  std::list<std::pair<const Collective*, absl::Status>> finished_;  // not asked for yet
  uint64_t waits_ = 0;
  bool ended_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_COMMUNICATOR_H_
