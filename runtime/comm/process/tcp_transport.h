// TcpTransport: messages over one TCP connection for each pair of ranks.
//
// A frame has the size of what follows in 8 bytes, its kind in one, and its channel in 8. What
// follows a message's frame is read into the memory that waits for it. While there is none, the
// connection is not read, and the peer's sending stops of itself; a message that came unasked is
// left there for two calls of Progress, and then read aside, for what lies behind it.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_TCP_TRANSPORT_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_TCP_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/comm/process/tcp_link.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

class TcpTransport final : public MessageTransport {
 public:
  // Connects every pair of ranks: to those below at their addresses, which listen since before the
  // world was complete; those above come to `listener`. `failed` is called with an error while the
  // connections that there are still stand: once they break, peers say why themselves. Errors:
  // kDeadlineExceeded, naming the ranks that are missing; what Introduce() says; that of
  // `given_up`.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Connect(
      int rank, const JobKey& key, Socket listener, const std::vector<HostPort>& addresses,
      NetClock::time_point deadline, const GivenUp& given_up,
      absl::FunctionRef<void(const absl::Status&)> failed);

  // Of connections that are there: [rank], closed for the rank itself. Rows of `least_row_bytes`
  // are sent and read where they lie: of 512 bytes, that takes as long as a pass over memory.
  static constexpr size_t kLeastRowBytes = 1024;
  explicit TcpTransport(std::vector<Socket> peers, size_t least_row_bytes = kLeastRowBytes);
  ~TcpTransport() override;

  void SendNote(int peer, uint64_t channel, absl::string_view note) override;
  void SendNoteAhead(int peer, uint64_t channel, absl::string_view note) override;
  std::optional<std::string> TakeNote(int peer, uint64_t channel) override;
  void Send(int peer, uint64_t channel, SentRows bytes, int& pending) override;
  void SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) override;
  void Receive(int peer, uint64_t channel, TakenRows into, int& pending) override;
  size_t least_row_bytes() const override { return least_row_bytes_; }
  uint64_t moved(int peer) const override;
  void Progress(std::chrono::microseconds longest) override;
  absl::Status lost(int peer) const override;
  void Leave() override;
  bool has_left(int peer) const override;
  bool is_sending() const override;
  void Cancel() override;

 private:
  void SendMessage(int peer, uint64_t channel, SentRows bytes, bool unasked, int& pending);
  TcpLink& link(int peer) { return *links_[peer]; }

  std::vector<std::unique_ptr<TcpLink>> links_;  // null: this rank
  const size_t least_row_bytes_;
  bool cancelled_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_TCP_TRANSPORT_H_
