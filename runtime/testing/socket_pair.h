// Two connected ends, deadlines, bytes and ports: for tests of what talks over sockets.
#ifndef DTENSOR_RUNTIME_TESTING_SOCKET_PAIR_H_
#define DTENSOR_RUNTIME_TESTING_SOCKET_PAIR_H_

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

inline std::pair<Socket, Socket> SocketPair() {
  int ends[2];
  DT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

inline NetClock::time_point In(double seconds) {
  return NetClock::now() +
         std::chrono::duration_cast<NetClock::duration>(std::chrono::duration<double>(seconds));
}

inline double SecondsSince(NetClock::time_point start) {
  return std::chrono::duration<double>(NetClock::now() - start).count();
}

inline absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline absl::Span<std::byte> BytesOf(std::string& text) {
  return {reinterpret_cast<std::byte*>(text.data()), text.size()};
}

// Bytes that tell where they are, and by the seed whose they are.
inline std::string Pattern(size_t size, int seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 131 + seed) >> 2);
  return bytes;
}

// A port of this machine that is free, and stays so for whom the test means to listen there.
inline int FreePort() {
  static std::deque<Socket>* const reserved = new std::deque<Socket>;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  return PortOf(reserved->emplace_back(ReservePort().value())).value();
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_SOCKET_PAIR_H_
