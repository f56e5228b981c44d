// MessageTransport: moves bytes between this rank and others, which cannot read its memory.
//
// Between two ranks there are channels. On each, notes come in the order in which they were sent,
// and messages fill the memory that was given for them in the order in which it was given; notes do
// not wait for messages. A message is sent only after its receiver has said, by a note, that it is
// about to give it memory, so as a rule nothing is kept that nobody asked for; SendUnasked is for
// what is worth keeping until then.
//
// Of one rank's thread. Nothing moves but within a call.
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
  // A short text, which waits at the receiver until it is taken. Requires: at most kMostNoteBytes.
  virtual void SendNote(int peer, uint64_t channel, absl::string_view note) = 0;
  // The same, for what comes before a message that this rank is about to send the peer: it may wait
  // here for that, or the next call of Progress.
  virtual void SendNoteAhead(int peer, uint64_t channel, absl::string_view note) {
    SendNote(peer, channel, note);
  }
  // The oldest of a peer's that came, if any.
  virtual std::optional<std::string> TakeNote(int peer, uint64_t channel) = 0;

  // `pending` counts what is not done: one more now, one less when the bytes were sent, or have
  // come. They stay where they are, and as they are, until then. What was given later may be done
  // sooner: a short message before a long one, say. Both sides agree about sizes, and about nothing
  // else: a message may leave several rows and fill one. Requires: one row, or several of which
  // each has at least least_row_bytes().
  virtual void Send(int peer, uint64_t channel, SentRows bytes, int& pending) = 0;
  static constexpr size_t kMostUnaskedBytes = 1 << 20;
  // As Send, of at most kMostUnaskedBytes, whether the peer is about to give memory or not: until
  // it does the message is kept, and what is sent afterwards is not held up. (Where 64 MiB or
  // more of one peer's are kept, each one more may be taken later, the later the more there are, so
  // that the peer sends more slowly; how many there are at last, is what peers send.)
  virtual void SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) {
    Send(peer, channel, std::move(bytes), pending);
  }
  virtual void Receive(int peer, uint64_t channel, TakenRows into, int& pending) = 0;
  // Rows of a message that are as long are moved from where they lie, and to there, for less than a
  // pass over memory costs. As a rule none are.
  virtual size_t least_row_bytes() const { return std::numeric_limits<size_t>::max(); }

  // Bytes of messages, to the peer and from it, that have moved so far: a peer of which they do is
  // not silent.
  virtual uint64_t moved(int peer) const = 0;

  // Moves what can be moved; if that is nothing, waits for something to happen, at most so long.
  virtual void Progress(std::chrono::microseconds longest) = 0;
  // Why nothing comes from the peer any more; OK while something may. What it sent before its
  // connection broke has been taken in.
  virtual absl::Status lost(int peer) const = 0;

  // This rank sends nothing more.
  virtual void Leave() = 0;
  // The peer has said so, and all that it sent before has been taken in.
  virtual bool has_left(int peer) const = 0;
  // What was sent, Leave among it, may come to a halt unless Progress is called.
  virtual bool is_sending() const = 0;

  // Forgets all that is not done, for good: the memory is no longer touched.
  virtual void Cancel() = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_TRANSPORT_H_
