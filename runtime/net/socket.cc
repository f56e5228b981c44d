#include "dtensor/runtime/net/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr std::chrono::seconds kTry(2);  // for one address
constexpr std::chrono::seconds kBetweenLookUps(1);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

bool IsOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

absl::Status NoDescriptor(absl::string_view what, int error) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": ", std::strerror(error), "; raise ",
      error == ENFILE ? "the machine's limit of open files (sysctl fs.file-max)"
                      : absl::StrCat("this process's limit of open files (ulimit -n), which is ",
                                     static_cast<uint64_t>(limit.rlim_cur))));
}

absl::StatusOr<Addresses> Resolve(const HostPort& at, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.empty() ? nullptr : at.host.c_str(),
                                absl::StrCat(at.port).c_str(), &hints, &found);
  const int why = errno;
  if (error == 0) return Addresses(found, freeaddrinfo);
  if (error == EAI_SYSTEM && IsOfDescriptors(why)) {
    return NoDescriptor(absl::StrCat("cannot look up ", at.host), why);
  }
  if (error == EAI_AGAIN || error == EAI_SYSTEM || error == EAI_MEMORY) {
    return absl::UnavailableError(
        absl::StrCat("nobody knows ", at.host, " at the moment (",
                     error == EAI_SYSTEM ? std::strerror(why) : gai_strerror(error), ")"));
  }
  return InvalidArgument({"there is no host ", at.host, " (", gai_strerror(error),
                          "); give a name or an address that this machine can look up"});
}

Socket NewSocket(const addrinfo& address) {
  return Socket(OffStandardStreams(socket(
      address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol)));
}

void SetOption(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof(value));
}

// Makes small messages leave at once.
void Hurry(const Socket& socket) { SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

absl::Status Broken(int error) {
  return absl::UnavailableError(absl::StrCat("the connection broke: ", std::strerror(error)));
}

bool IsTemporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Whether an error of accept(2) is about a connection that broke before it was accepted.
bool IsOfCaller(int error) {
  for (const int known : {ECONNABORTED, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET,
                          EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, EPERM}) {
    if (error == known) return true;
  }
  return false;
}

bool Await(const Socket& socket, short events, NetClock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - NetClock::now()).count();
    pollfd wait = {socket.fd(), events, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    if (ready > 0) return true;
    if (left <= 0) return false;
  }
}

// Tries once, at one address. Errors: errno.
int TryToConnect(const addrinfo& address, NetClock::time_point deadline, const GivenUp& given_up,
                 Socket& made) {
  made = NewSocket(address);
  if (!made.is_open()) return errno;
  if (connect(made.fd(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  constexpr std::chrono::milliseconds kSlice(100);
  while (!AwaitWritable(made, std::min(deadline, NetClock::now() + kSlice))) {
    if (NetClock::now() >= deadline || (given_up && !given_up().ok())) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

// Tries once, at one address. Errors: errno.
int TryToBind(const addrinfo& address, Socket& made) {
  made = NewSocket(address);
  if (!made.is_open()) return errno;
  SetOption(made, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) SetOption(made, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  return bind(made.fd(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
}
int TryToListen(const addrinfo& address, Socket& made) {
  const int error = TryToBind(address, made);
  if (error != 0) return error;
  return listen(made.fd(), SOMAXCONN) == 0 ? 0 : errno;
}

// Listens at the first available address, trying these families in turn (AF_UNSPEC: any). If
// another program has the port at one of the addresses, listens at none: callers may try that
// address first. Errors: errno.
int TryToListen(const addrinfo& addresses, std::initializer_list<int> families, Socket& made) {
  int error = EADDRNOTAVAIL;
  for (const int family : families) {
    for (const addrinfo* address = &addresses; address != nullptr; address = address->ai_next) {
      if (family != AF_UNSPEC && address->ai_family != family) continue;
      error = TryToListen(*address, made);
      if (error == 0 || error == EADDRINUSE || IsOfDescriptors(error)) return error;
    }
  }
  return error;
}

// Whether the host is a name for which other hosts may find another address.
bool IsName(const HostPort& at) {
  return !at.host.empty() && !IsLoopback(at.host) && !Resolve(at, AI_NUMERICHOST).ok();
}

// On Linux a socket may connect to itself, if it connects to a port of the ephemeral range on the
// same host.
bool IsItself(const Socket& socket) {
  sockaddr_storage mine = {}, peers = {};
  socklen_t my_length = sizeof(mine), peers_length = sizeof(peers);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&mine), &my_length);
  getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&peers), &peers_length);
  return my_length == peers_length && std::memcmp(&mine, &peers, my_length) == 0;
}

// A connection that is closed in order keeps its port for a minute. Here that is the port of the
// process that is waited for, which could then not listen there.
void CloseWithoutTrace(Socket& socket) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket.Close();
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<size_t> Socket::ReceiveSome(absl::Span<std::byte> into) {
  if (into.empty()) return 0;
  return Received(recv(fd_, into.data(), into.size(), 0));
}

absl::StatusOr<size_t> Socket::ReceiveSome(absl::Span<const iovec> into) {
  return Received(readv(fd_, into.data(), static_cast<int>(into.size())));
}

absl::StatusOr<size_t> Socket::Received(ssize_t got) {
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return absl::UnavailableError("the connection was closed");
  if (IsTemporary(errno)) return 0;
  return Broken(errno);
}

absl::StatusOr<size_t> Socket::SendSome(absl::Span<const std::byte> bytes, bool more_follows) {
  if (bytes.empty()) return 0;
  const int flags = MSG_NOSIGNAL | (more_follows ? MSG_MORE : 0);
  return Sent(send(fd_, bytes.data(), bytes.size(), flags));
}

absl::StatusOr<size_t> Socket::SendSome(absl::Span<const iovec> bytes, bool more_follows) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(bytes.data());  // the call only reads it
  message.msg_iovlen = bytes.size();
  return Sent(sendmsg(fd_, &message, MSG_NOSIGNAL | (more_follows ? MSG_MORE : 0)));
}

absl::StatusOr<size_t> Socket::Sent(ssize_t sent) {
  if (sent >= 0) return static_cast<size_t>(sent);
  if (IsTemporary(errno)) return 0;
  return Broken(errno);
}

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  absl::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  // A host has none of these characters, and a port is digits alone.
  const bool is_host =
      !host.empty() && host.find_first_of(absl::string_view("[] \0", 4)) == host.npos;
  HostPort read = {std::string(host)};
  if (colon == text.npos || !is_host ||
      text.substr(colon + 1).find_first_not_of("0123456789") != text.npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &read.port) || read.port < 1 || read.port > 65535) {
    return InvalidArgument({text, " is no address; write host:port, with a port from 1 to 65535"});
  }
  return read;
}

NetClock::time_point DeadlineIn(double seconds) {
  constexpr double kLongest = 1e9;
  return NetClock::now() + std::chrono::duration_cast<NetClock::duration>(
                               std::chrono::duration<double>(std::min(seconds, kLongest)));
}

bool IsLoopback(absl::string_view host) {
  const bool is_number = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "::1" || (is_number && absl::StartsWith(host, "127."));
}

absl::StatusOr<Socket> ListenAt(const HostPort& at) {
  DT_ASSIGN_OR_RETURN(Addresses addresses, Resolve(at, AI_PASSIVE));
  Socket made;
  int error = 0;
  bool on_all = at.host.empty();
  if (!on_all) error = TryToListen(*addresses, {AF_UNSPEC}, made);
  if (error == 0 && IsName(at)) {  // the address is this machine's
    made.Close();
    DT_ASSIGN_OR_RETURN(addresses, Resolve({"", at.port}, AI_PASSIVE));
    on_all = true;
  }
  // An IPv6 socket bound to all addresses also accepts IPv4 connections.
  if (on_all) error = TryToListen(*addresses, {AF_INET6, AF_INET}, made);
  if (error == 0) return made;
  if (IsOfDescriptors(error)) {
    return NoDescriptor(absl::StrCat("cannot listen at ", at.ToString()), error);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen at ", at.ToString(), " (", std::strerror(error), "); ",
                   error == EADDRINUSE ? "another program has that port: choose another"
                   : error == EACCES   ? "choose a port that is not reserved, from 1024 on"
                                       : "give an address of this machine"));
}

// Linux lets several sockets bind a port if all set SO_REUSEADDR and none listens yet.
absl::StatusOr<Socket> ReservePort() {
  DT_ASSIGN_OR_RETURN(const Addresses addresses, Resolve({"127.0.0.1", 0}, AI_PASSIVE));
  Socket made;
  const int error = TryToBind(*addresses, made);
  if (error == 0) return made;
  if (IsOfDescriptors(error)) return NoDescriptor("no port can be reserved", error);
  return absl::UnavailableError(absl::StrCat("127.0.0.1 has no free port: ", std::strerror(error)));
}

absl::StatusOr<int> PortOf(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Broken(errno);
  }
  const bool v6 = address.ss_family == AF_INET6;
  return ntohs(v6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                  : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

absl::StatusOr<std::string> PeerHostOf(const Socket& connection) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST];
  if (getpeername(connection.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Broken(errno);
  }
  const int error = getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host),
                                nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  // An IPv4 caller of a socket that accepts both versions.
  absl::string_view name = host;
  absl::ConsumePrefix(&name, "::ffff:");
  return std::string(name);
}

absl::StatusOr<Socket> AcceptFrom(const Socket& listener) {
  Socket made(
      OffStandardStreams(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
  if (made.is_open()) {
    Hurry(made);
    return made;
  }
  if (IsTemporary(errno) || IsOfCaller(errno)) return Socket();
  if (IsOfDescriptors(errno)) return NoDescriptor("no connection can be accepted", errno);
  if (errno == ENOBUFS || errno == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no connection can be accepted: ", std::strerror(errno)));
  }
  return Broken(errno);
}

absl::StatusOr<Socket> ConnectTo(const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up) {
  std::string last;
  absl::StatusOr<Addresses> addresses = Resolve(to, 0);
  NetClock::time_point resolved = NetClock::now();
  do {
    if (NetClock::now() > resolved + kBetweenLookUps) {
      addresses = Resolve(to, 0);
      resolved = NetClock::now();
    }
    if (absl::IsResourceExhausted(addresses.status())) return addresses.status();
    last = std::string(addresses.status().message());
    for (const addrinfo* address = addresses.ok() ? addresses->get() : nullptr; address != nullptr;
         address = address->ai_next) {
      Socket made;
      // Another address of the host may answer if this one does not.
      const NetClock::time_point most = std::min(deadline, NetClock::now() + kTry);
      int error = TryToConnect(*address, most, given_up, made);
      if (error == 0 && IsItself(made)) {
        CloseWithoutTrace(made);
        error = ECONNREFUSED;
      }
      if (IsOfDescriptors(error)) {
        return NoDescriptor(absl::StrCat("cannot connect to ", to.ToString()), error);
      }
      last = std::strerror(error);
      if (error != 0) continue;
      Hurry(made);
      return made;
    }
    if (given_up) DT_RETURN_IF_ERROR(given_up());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } while (NetClock::now() < deadline);
  // The host's name could not be resolved in all that time.
  if (absl::IsInvalidArgument(addresses.status())) return addresses.status();
  return absl::DeadlineExceededError(
      absl::StrCat("nobody answers at ", to.ToString(), " (", last, ")"));
}

bool AwaitReadable(const Socket& socket, NetClock::time_point deadline) {
  return Await(socket, POLLIN, deadline);
}

bool AwaitWritable(const Socket& socket, NetClock::time_point deadline) {
  return Await(socket, POLLOUT, deadline);
}

absl::Status SendAll(Socket& socket, absl::Span<const std::byte> bytes,
                     NetClock::time_point deadline) {
  while (!bytes.empty()) {
    DT_ASSIGN_OR_RETURN(const size_t sent, socket.SendSome(bytes));
    bytes.remove_prefix(sent);
    if (!bytes.empty() && !AwaitWritable(socket, deadline)) {
      return absl::DeadlineExceededError("the peer takes nothing");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(Socket& socket, absl::Span<std::byte> into, NetClock::time_point deadline) {
  while (!into.empty()) {
    DT_ASSIGN_OR_RETURN(const size_t got, socket.ReceiveSome(into));
    into.remove_prefix(got);
    if (!into.empty() && !AwaitReadable(socket, deadline)) {
      return absl::DeadlineExceededError("the peer says nothing");
    }
  }
  return absl::OkStatus();
}

}  // namespace dtensor
