// TcpTransport: messages over one TCP connection per pair of ranks.
//
// A frame is the size of its body (8 bytes), its kind (1 byte), its channel (8 bytes), and the
// body. The body of a message is read into the memory that was given for it. While there is none,
// the connection is not read, so the peer's sending stops by itself. A message that came unasked is
// left there for two calls of Progress, and is then read aside, to reach what is behind it.
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
  // Connects every pair of ranks. This rank connects to the lower ranks at their addresses, at
  // which they have listened since before the world was complete; the higher ranks connect to
  // `listener`. `failed` is called with an error while the existing connections are still open,
  // since peers report a failure of their own once these break. Errors: kDeadlineExceeded, naming
  // the ranks that are missing; what Introduce() returns; that of `given_up`.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Connect(
      int rank, const JobKey& key, Socket listener, const std::vector<HostPort>& addresses,
      NetClock::time_point deadline, const GivenUp& given_up,
      absl::FunctionRef<void(const absl::Status&)> failed);

  // Takes existing connections: peers[rank], closed for the rank itself. Rows of at least
  // `least_row_bytes` are sent and read in place; at 512 bytes, that takes as long as a pass over
  // memory.
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
