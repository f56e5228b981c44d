// TCP sockets that never block, and never raise SIGPIPE. Whoever waits, waits in poll().
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
// So many seconds from now; of very many, what a clock can add.
NetClock::time_point DeadlineIn(double seconds);

// Owns a descriptor, which programs that this one starts do not inherit.
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

  // As many bytes as there are now, or fit now: 0 where there are none, or none fit.
  // Errors: kUnavailable, "the connection was closed" or the system's word for what broke it.
  absl::StatusOr<size_t> ReceiveSome(absl::Span<std::byte> into);
  // With `more_follows`, the system may keep what fills no packet until then.
  absl::StatusOr<size_t> SendSome(absl::Span<const std::byte> bytes, bool more_follows = false);

  // The same of memory in several places, in one call. Requires: at most kMostPlaces, some byte.
  static constexpr size_t kMostPlaces = 1024;  // the system's own limit (IOV_MAX)
  absl::StatusOr<size_t> ReceiveSome(absl::Span<const iovec> into);
  absl::StatusOr<size_t> SendSome(absl::Span<const iovec> bytes, bool more_follows = false);

 private:
  static absl::StatusOr<size_t> Received(ssize_t got);
  static absl::StatusOr<size_t> Sent(ssize_t sent);
  int fd_ = -1;
};

// Where something listens: "host", and a port.
struct HostPort {
  std::string host;
  int port = 0;
  std::string ToString() const;  // "host:port", "[::1]:port"
};
// Reads "host:port", "[v6]:port". Errors: kInvalidArgument for no port, or one out of 1 to 65535.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// "localhost", or an address of the machine's own, in digits, that others cannot reach.
bool IsLoopback(absl::string_view host);

// Listens on `at`; port 0 takes a free one, and no host means all addresses of this machine. So
// does a name of this machine other than "localhost": elsewhere it may stand for another address
// than here, where /etc/hosts often has a loopback address for it, and it may have several.
// Errors: kUnavailable, naming address and remedy: a port that is taken, at one of the host's
// addresses or more, a host that is not this machine's; for a name, one that cannot be looked up
// now. kInvalidArgument for a host that has no address. kResourceExhausted where the process has no
// descriptor left.
absl::StatusOr<Socket> ListenAt(const HostPort& at);
// A free port of 127.0.0.1 for somebody else to listen at, in this process or another: as long as
// the socket is open, the system gives it to nobody who lets it choose, as who connects does.
// Errors: kUnavailable, kResourceExhausted.
absl::StatusOr<Socket> ReservePort();
// Of a socket that listens, or reserves: the port.
absl::StatusOr<int> PortOf(const Socket& socket);
// Of a connection: the peer's address, without its port.
absl::StatusOr<std::string> PeerHostOf(const Socket& connection);
// The next connection, or a closed socket if nobody waits. Errors: kResourceExhausted where the
// process has no descriptor left, kUnavailable.
absl::StatusOr<Socket> AcceptFrom(const Socket& listener);
// Asked while something is tried again and again: an error ends that, and is what comes of it.
using GivenUp = std::function<absl::Status()>;

// Tries until it works, or `deadline`: whoever is to listen may start later, and so may who knows
// the host's address: the name of a container may be known only when that has started. Errors:
// kDeadlineExceeded, naming the address and what the last try met; kInvalidArgument for a host that
// has no address then; kResourceExhausted where the process has no
// descriptor left.
absl::StatusOr<Socket> ConnectTo(const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up = nullptr);

// Waits until the socket can be read, or written, or `deadline`; false then. A peer that is gone
// makes it readable.
bool AwaitReadable(const Socket& socket, NetClock::time_point deadline);
bool AwaitWritable(const Socket& socket, NetClock::time_point deadline);

// All of it, before `deadline`. Errors: kDeadlineExceeded; the socket's.
absl::Status SendAll(Socket& socket, absl::Span<const std::byte> bytes,
                     NetClock::time_point deadline);
absl::Status ReceiveAll(Socket& socket, absl::Span<std::byte> into, NetClock::time_point deadline);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_SOCKET_H_
