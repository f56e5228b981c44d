// MessageTransport: moves bytes between this rank and others that cannot read its memory.
//
// There are channels between each two ranks. On each channel, notes arrive in the order in which
// they were sent, and messages fill the memory given for them in the order in which it was given;
// notes do not wait for messages. A message is sent only after its receiver has said, by a note,
// that it is about to give memory for it, so normally the receiver buffers nothing that it did not
// ask for. SendUnasked is for data that is worth buffering.
//
// Belongs to one rank's thread. Data moves only within a call.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_TRANSPORT_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class MessageTransport {
 public:
  virtual ~MessageTransport() = default;

  static constexpr size_t kMostNoteBytes = 1 << 20;
  // Sends a short text, which is kept at the receiver until it is taken. Requires: at most
  // kMostNoteBytes.
  virtual void SendNote(int peer, uint64_t channel, absl::string_view note) = 0;
  // As SendNote, for a note before a message that this rank is about to send to the peer: it may be
  // held back here until that message, or until the next call of Progress.
  virtual void SendNoteAhead(int peer, uint64_t channel, absl::string_view note) {
    SendNote(peer, channel, note);
  }
  // Takes the oldest note that came from the peer, if any.
  virtual std::optional<std::string> TakeNote(int peer, uint64_t channel) = 0;

  // `pending` counts what is not done: it rises by one now, and falls by one when the bytes have
  // been sent or have arrived. Until then they must stay in place and unchanged. What was given
  // later may be done earlier, for example a short message before a long one. Both sides agree
  // about sizes and nothing else: a message may be sent from several rows and received in one.
  // Requires: one row, or several of which each has at least least_row_bytes().
  virtual void Send(int peer, uint64_t channel, SentRows bytes, int& pending) = 0;
  static constexpr size_t kMostUnaskedBytes = 1 << 20;
  // As Send, for at most kMostUnaskedBytes, whether or not the peer is about to give memory. Until
  // it does, the message is kept there, and does not hold up what is sent later. (If 64 MiB or more
  // of one peer's messages are kept, each further one may be taken in later, the later the more
  // there are, so that the peer sends more slowly. How many are kept in the end depends on what
  // peers send.)
  virtual void SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) {
    Send(peer, channel, std::move(bytes), pending);
  }
  virtual void Receive(int peer, uint64_t channel, TakenRows into, int& pending) = 0;
  // If a message consists of several rows of at least this many bytes, moving them in place costs
  // less than a pass over memory. By default, several rows are never accepted.
  virtual size_t least_row_bytes() const { return std::numeric_limits<size_t>::max(); }

  // Bytes of messages, to and from the peer, that have moved so far. A peer is not silent as long
  // as this number grows.
  virtual uint64_t moved(int peer) const = 0;

  // Moves what can be moved. If that is nothing, waits until something happens, but no longer than
  // `longest`.
  virtual void Progress(std::chrono::microseconds longest) = 0;
  // Why nothing more comes from the peer; OK while something may. What it sent before its
  // connection broke has been taken in.
  virtual absl::Status lost(int peer) const = 0;

  // Tells all peers that this rank sends nothing more.
  virtual void Leave() = 0;
  // The peer has called Leave, and all that it sent before has been taken in.
  virtual bool has_left(int peer) const = 0;
  // Whether something that was sent, Leave included, may make no progress unless Progress is
  // called.
  virtual bool is_sending() const = 0;

  // Forgets for good whatever is not done; the memory is no longer touched.
  virtual void Cancel() = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_TRANSPORT_H_
