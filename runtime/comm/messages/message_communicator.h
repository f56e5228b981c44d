// MessageCommunicator: for ranks that cannot read each other's memory, over any MessageTransport.
//
// An exchange, on each rank of the group:
//   Begin   sends every other member its call: what it is about to do, with a fingerprint of it.
//           What that member receives goes along with the call if it is little (note_bytes); if it
//           is somewhat more, it follows as a message without being asked for (eager_bytes)
//   Finish  waits until every member has sent the same call; tells those that have more to send to
//           go on (in a group of two, before it waits); takes in what they send, piece by piece;
//           combines terms in the order listed, as threads do, so with the same bits; and waits
//           until the others have what they receive from here
// Data that others asked for is sent between the two calls, in every wait for a message, and by
// Progress.
//
// A piece is staged if it cannot be sent or received in place: if it has rows shorter than the
// transport accepts (least_row_bytes), is converted, or has several terms. Staging takes at most
// staging_bytes() for each exchange in flight.
//
// With a carrier (exchange_carrier.h), no data is sent in messages: Finish tells every other member
// that this rank is there, waits until all have said so, and lets the carrier carry the exchange.
//
// A wait ends with an error when the world fails, when a peer has left, is lost, or is silent for
// the time-out, or when ranks wait for each other in a cycle. Time in which this process was
// stopped does not count.
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
  // The size of a piece, at least 8. 0: 1 MiB, less in large worlds.
  int64_t piece_bytes = 0;
  // If what one rank sends another in one exchange is at most this, it goes with the call. At most
  // half of kMostNoteBytes.
  int64_t note_bytes = 8192;
  // If it is more, but at most this, it is sent right behind the call, without being asked for. -1:
  // a piece; at most MessageTransport::kMostUnaskedBytes.
  int64_t eager_bytes = -1;
  // Moves the bytes of exchanges, instead of messages. Outlives the communicator.
  ExchangeCarrier* carrier = nullptr;
};

// Belongs to one rank's thread. Device, transport and world outlive it. Without a carrier, the
// device's memory must be host memory.
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
  Delivery delivery(const Collective& collective) const override;
  absl::Status FinishDropped() override;
  absl::Status Barrier(absl::string_view what) override;
  absl::Status Fail(const absl::Status& reason) override;
  absl::Status failure() const override { return world_.failure(); }

  // Call this in a wait for something other than messages: sends what others wait for, as far as
  // possible without blocking. Returns whether there is more to send. An error fails the world.
  // Requires: no other call of this object is in progress.
  bool Progress();

  // The world is over: forgets the exchanges in flight. Later calls are refused, and do not use the
  // transport.
  void End();

 private:
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override;
  absl::Status FinishExchange(const Collective& collective) override;
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override;

  // For each peer: two that are sent, two that are received, and what came without being asked for.
  static constexpr int64_t kPiecesAtATime = 5;

  // How the bytes that one rank sends another in an exchange travel; both know how many they are.
  enum class Way : uint8_t { kInNote, kUnasked, kAsked };
  Way WayOf(int64_t bytes) const;

  struct Exchange;
  struct Group;     // of ranks, as this one sees it
  struct Outgoing;  // to a peer: what it receives from here
  struct Incoming;  // from a peer: its call, and what is expected
  struct Wait;

  static constexpr size_t kMostIdle = 64;  // groups that are kept without an exchange
  Group& GroupOf(absl::Span<const int> ranks);
  void ForgetIdleGroups();
  absl::Status Abandon(const Collective& collective, const absl::Status& why);
  absl::Status Start(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Complete(Exchange& exchange);
  absl::Status Perform(Exchange& exchange);
  absl::Status PerformCarried(Exchange& exchange);
  Exchange* Find(const Collective& collective) const;
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

  // Waits for `peer` until `over` returns true, and meanwhile sends what others wait for.
  absl::Status Await(const Exchange& exchange, int peer, WaitStage stage,
                     const std::function<bool()>& over);
  absl::Status Advance(std::chrono::microseconds longest);
  absl::Status CheckPeer(const Exchange& exchange, int peer);
  static std::string CallOf(const Exchange& exchange);
  absl::Status Settle();  // waits until what was launched has run

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
  std::list<Group> groups_;                         // most recently used first
  std::unordered_map<uint64_t, uint64_t> numbers_;  // of forgotten groups, by channel
  std::list<std::unique_ptr<Exchange>> exchanges_;  // in flight, in the order in which they began
  std::list<std::pair<const Collective*, absl::Status>> finished_;  // Finish not called yet
  uint64_t waits_ = 0;
  bool ended_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_COMMUNICATOR_H_
