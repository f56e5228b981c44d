// Non-blocking TCP sockets that never raise SIGPIPE. Waiting is done in poll().
#ifndef DTENSOR_RUNTIME_NET_SOCKET_H_
#define DTENSOR_RUNTIME_NET_SOCKET_H_

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

using NetClock = std::chrono::steady_clock;
// The time `seconds` from now, limited to what the clock can represent.
NetClock::time_point DeadlineIn(double seconds);

// Owns a descriptor, which child programs do not inherit.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }  // the caller closes it
  bool is_open() const { return fd_ >= 0; }
  void Close();

  // Transfers as many bytes as are available, or fit, now; returns 0 if there are none, or none
  // fit. Errors: kUnavailable, "the connection was closed" or the system's message for what broke
  // it.
  absl::StatusOr<size_t> ReceiveSome(absl::Span<std::byte> into);
  // With `more_follows`, the system may hold back what does not fill a packet until more comes.
  absl::StatusOr<size_t> SendSome(absl::Span<const std::byte> bytes, bool more_follows = false);

  // The same for memory in several places, in one call. Requires: at most kMostPlaces, at least one
  // byte.
  static constexpr size_t kMostPlaces = 1024;  // the system's own limit (IOV_MAX)
  absl::StatusOr<size_t> ReceiveSome(absl::Span<const iovec> into);
  absl::StatusOr<size_t> SendSome(absl::Span<const iovec> bytes, bool more_follows = false);

 private:
  static absl::StatusOr<size_t> Received(ssize_t got);
  static absl::StatusOr<size_t> Sent(ssize_t sent);
  int fd_ = -1;
};

// Where a process listens: a host and a port.
struct HostPort {
  std::string host;
  int port = 0;
  std::string ToString() const;  // "host:port", "[::1]:port"
};
// Reads "host:port", "[v6]:port". Errors: kInvalidArgument if the port is missing or outside of 1
// to 65535.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Whether it is "localhost", or a numeric address of this machine's own that others cannot reach.
bool IsLoopback(absl::string_view host);

// Listens on `at`; port 0 takes a free one, and an empty host means all addresses of this machine.
// A name of this machine other than "localhost" means all addresses, too: elsewhere it may stand
// for another address than here, where /etc/hosts often maps it to a loopback address, and it may
// have several. Errors: kUnavailable, naming address and remedy: if the port is taken, at one or
// more of the host's addresses, if the host is not this machine, or if a name cannot be looked up
// now; kInvalidArgument for a host that has no address; kResourceExhausted if the process has no
// descriptor left.
absl::StatusOr<Socket> ListenAt(const HostPort& at);
// Reserves a free port of 127.0.0.1, at which somebody else may listen, in this process or another.
// As long as the socket is open, the system does not choose this port for anybody, for example for
// an outgoing connection. Errors: kUnavailable, kResourceExhausted.
absl::StatusOr<Socket> ReservePort();
// The port of a socket that listens or reserves a port.
absl::StatusOr<int> PortOf(const Socket& socket);
// The address of a connection's peer, without its port.
absl::StatusOr<std::string> PeerHostOf(const Socket& connection);
// Accepts the next connection; returns a closed socket if nobody waits. Errors: kResourceExhausted
// if the process has no descriptor left, kUnavailable.
absl::StatusOr<Socket> AcceptFrom(const Socket& listener);
// Called repeatedly while something is retried: an error ends that, and becomes its result.
using GivenUp = std::function<absl::Status()>;

// Tries until it succeeds, or until `deadline`: the listener may start later, and the host's
// address may become known later (a container's name may be known only once that has started).
// Errors: kDeadlineExceeded, naming the address and the last attempt's error; kInvalidArgument for
// a host that has no address then; kResourceExhausted if the process has no descriptor left.
absl::StatusOr<Socket> ConnectTo(const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up = nullptr);

// Waits until the socket can be read, or written; returns false if `deadline` comes first. If the
// peer is gone, the socket is readable.
bool AwaitReadable(const Socket& socket, NetClock::time_point deadline);
bool AwaitWritable(const Socket& socket, NetClock::time_point deadline);

// Transfers all bytes before `deadline`. Errors: kDeadlineExceeded; the socket's.
absl::Status SendAll(Socket& socket, absl::Span<const std::byte> bytes,
                     NetClock::time_point deadline);
absl::Status ReceiveAll(Socket& socket, absl::Span<std::byte> into, NetClock::time_point deadline);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_SOCKET_H_
