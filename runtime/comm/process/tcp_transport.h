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
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

class TcpTransport final : public MessageTransport {
 public:
  // Connects every pair of ranks: to those below at their addresses, which listen since before the
  // world was complete; those above come to `listener`. Errors: kDeadlineExceeded, naming the ranks
  // that are missing; what Introduce() says; that of `given_up`.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Connect(
      int rank, const JobKey& key, Socket listener, const std::vector<HostPort>& addresses,
      NetClock::time_point deadline, const GivenUp& given_up = nullptr);

  // Of connections that are there: [rank], closed for the rank itself.
  explicit TcpTransport(std::vector<Socket> peers);
  ~TcpTransport() override;

  void SendNote(int peer, uint64_t channel, absl::string_view note) override;
  std::optional<std::string> TakeNote(int peer, uint64_t channel) override;
  void Send(int peer, uint64_t channel, absl::Span<const std::byte> bytes, int& pending) override;
  void SendUnasked(int peer, uint64_t channel, absl::Span<const std::byte> bytes,
                   int& pending) override;
  void Receive(int peer, uint64_t channel, absl::Span<std::byte> into, int& pending) override;
  uint64_t moved(int peer) const override;
  void Progress(std::chrono::microseconds longest) override;
  absl::Status lost(int peer) const override;
  void Leave() override;
  bool has_left(int peer) const override;
  bool is_sending() const override;
  void Cancel() override;

 private:
  struct Link;
  void SendMessage(int peer, uint64_t channel, absl::Span<const std::byte> bytes, bool unasked,
                   int& pending);
  Link& link(int peer) { return *links_[peer]; }

  std::vector<std::unique_ptr<Link>> links_;  // null: this rank
  bool cancelled_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_TCP_TRANSPORT_H_
