// ReorderedSends: a transport whose sends are done in another order than they were given in: of
// those to a peer that are on their way, the newest first. (MPI is done with a short message at
// once, and with a long one when its receiver has answered.) A message's bytes are read when it is
// done, and not before, so those that were written over meanwhile arrive wrong.
#ifndef DTENSOR_RUNTIME_COMM_TESTING_REORDERED_SENDS_H_
#define DTENSOR_RUNTIME_COMM_TESTING_REORDERED_SENDS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/message_transport.h"

namespace dtensor {

class ReorderedSends : public MessageTransport {
 public:
  // Sends by `inner`, which outlives it, and which nobody else uses.
  explicit ReorderedSends(MessageTransport& inner) : inner_(inner) {}

  void Send(int peer, uint64_t channel, SentRows bytes, int& pending) override;
  void SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) override;
  void Progress(std::chrono::microseconds longest) override;
  void Leave() override;
  bool is_sending() const override { return !held_.empty() || inner_.is_sending(); }
  void Cancel() override;

  void SendNote(int peer, uint64_t channel, absl::string_view note) override {
    inner_.SendNote(peer, channel, note);
  }
  void SendNoteAhead(int peer, uint64_t channel, absl::string_view note) override {
    inner_.SendNoteAhead(peer, channel, note);
  }
  std::optional<std::string> TakeNote(int peer, uint64_t channel) override {
    return inner_.TakeNote(peer, channel);
  }
  void Receive(int peer, uint64_t channel, TakenRows into, int& pending) override {
    inner_.Receive(peer, channel, into, pending);
  }
  size_t least_row_bytes() const override { return inner_.least_row_bytes(); }
  uint64_t moved(int peer) const override { return inner_.moved(peer); }
  absl::Status lost(int peer) const override { return inner_.lost(peer); }
  bool has_left(int peer) const override { return inner_.has_left(peer); }

 private:
  struct Message {
    uint64_t channel;
    SentRows bytes;
    int* pending;  // null: it is done
    bool unasked;
    std::string copy = {};  // of what is done
    int sending = 0;        // by `inner`
  };
  using Messages = std::list<Message>;

  void Hold(int peer, Message message);
  static void EndNewest(Messages& held);
  void PassOn(int peer, Messages& held);

  MessageTransport& inner_;
  std::map<int, Messages> held_;  // of each peer, in their order; empty ones are left out
  Messages sent_;                 // by `inner`
  bool cancelled_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_REORDERED_SENDS_H_
