#include "dtensor/tools/cuda/fake/nccl_links.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "dtensor/tools/cuda/fake/ordering.h"

namespace dtensor::fake_cuda {
namespace {

constexpr int kBacklog = 64;

// In the abstract namespace: the first byte is 0.
socklen_t AddressOf(const std::string& id, int rank, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const int length =
      std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%s.%d", id.c_str(), rank);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

int NewSocket() {
  return static_cast<int>(
      syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool WriteAll(NcclLink& link, const void* bytes, size_t size, const std::function<bool()>& stop) {
  for (size_t done = 0; done < size;) {
    if (stop()) return false;
    const size_t more = link.Write(static_cast<const char*>(bytes) + done, size - done);
    done += more;
    if (more == 0) SleepMicroseconds(200);
  }
  return true;
}

bool ReadAll(NcclLink& link, void* bytes, size_t size, const std::function<bool()>& stop) {
  for (size_t done = 0; done < size;) {
    if (stop()) return false;
    bool ended = false;
    const size_t more = link.Read(static_cast<char*>(bytes) + done, size - done, ended);
    done += more;
    if (ended) return false;
    if (more == 0) SleepMicroseconds(200);
  }
  return true;
}

}  // namespace

size_t NcclLink::Write(const void* bytes, size_t size) {
  if (fd_ < 0) return 0;
  const long done = syscall(SYS_sendto, fd_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
  return done > 0 ? static_cast<size_t>(done) : 0;
}

size_t NcclLink::Read(void* bytes, size_t size, bool& ended) {
  if (fd_ < 0) return 0;
  const long done = syscall(SYS_recvfrom, fd_, bytes, size, MSG_DONTWAIT, nullptr, nullptr);
  ended = done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR);
  return done > 0 ? static_cast<size_t>(done) : 0;
}

void NcclLink::Close() {
  if (fd_ >= 0) syscall(SYS_close, fd_);
  fd_ = -1;
}

std::string NcclLinks::Meet(const std::string& id, const NcclHello& mine,
                            const std::function<bool()>& stop) {
  data_.assign(mine.size, NcclLink());
  news_.assign(mine.size, NcclLink());
  hellos_.assign(mine.size, mine);
  sockaddr_un address;
  const socklen_t length = AddressOf(id, mine.rank, address);
  const int listener = NewSocket();
  if (syscall(SYS_bind, listener, &address, length) != 0 ||
      syscall(SYS_listen, listener, kBacklog) != 0) {
    syscall(SYS_close, listener);
    return "rank " + std::to_string(mine.rank) + " came twice, or the id was used before";
  }
  bool met = true;
  for (int peer = 0; peer < mine.rank && met; ++peer) met = Connect(id, mine, peer, stop);
  for (int more = 2 * (mine.size - 1 - mine.rank); more > 0 && met; --more) {
    met = Accept(listener, mine, stop);
  }
  // Those that were connected to answer when they have come so far.
  for (int peer = 0; peer < mine.rank && met; ++peer) {
    met = ReadAll(news_[peer], &hellos_[peer], sizeof(NcclHello), stop);
  }
  syscall(SYS_close, listener);
  if (!met) return "not all ranks met";
  return Compare(mine);
}

bool NcclLinks::Connect(const std::string& id, const NcclHello& mine, int peer,
                        const std::function<bool()>& stop) {
  sockaddr_un address;
  const socklen_t length = AddressOf(id, peer, address);
  for (const bool is_news : {false, true}) {
    NcclLink& link = (is_news ? news_ : data_)[peer];
    while (true) {
      if (stop()) return false;
      const int fd = NewSocket();
      link = NcclLink(fd);
      if (syscall(SYS_connect, fd, &address, length) == 0) break;
      link.Close();  // it has not come yet
      SleepMicroseconds(500);
    }
    NcclHello hello = mine;
    hello.is_news = is_news;
    if (!WriteAll(link, &hello, sizeof(hello), stop)) return false;
  }
  return true;
}

bool NcclLinks::Accept(int listener, const NcclHello& mine, const std::function<bool()>& stop) {
  while (true) {
    if (stop()) return false;
    const int fd = static_cast<int>(
        syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
      SleepMicroseconds(500);
      continue;
    }
    NcclLink link(fd);
    NcclHello theirs;
    if (!ReadAll(link, &theirs, sizeof(theirs), stop)) return false;
    if (theirs.rank <= mine.rank || theirs.rank >= mine.size) return false;
    (theirs.is_news ? news_ : data_)[theirs.rank] = link;
    hellos_[theirs.rank] = theirs;
    return !theirs.is_news || WriteAll(link, &mine, sizeof(mine), stop);
  }
}

// As the messages of NCCL 2.28 have it.
std::string NcclLinks::Compare(const NcclHello& mine) const {
  for (const NcclHello& one : hellos_) {
    if (one.size != mine.size) {
      return "rank " + std::to_string(one.rank) + " has a communicator of " +
             std::to_string(one.size) + " ranks, this one of " + std::to_string(mine.size);
    }
    for (const NcclHello& other : hellos_) {
      if (other.rank <= one.rank || other.gpu != one.gpu) continue;
      return "Duplicate GPU detected : rank " + std::to_string(one.rank) + " and rank " +
             std::to_string(other.rank) + " both on CUDA device " +
             std::to_string((one.gpu + 1) * 0x1000);
    }
  }
  return "";
}

void NcclLinks::Close() {
  for (std::vector<NcclLink>* const links : {&data_, &news_}) {
    for (NcclLink& link : *links) link.Close();
  }
}

std::string NewNcclId() {
  uint64_t words[2] = {};
  if (getrandom(words, sizeof(words), 0) != sizeof(words))
    words[0] = static_cast<uint64_t>(getpid());
  char text[64];
  std::snprintf(text, sizeof(text), "dtensor-fake-nccl-%016lx%016lx",
                static_cast<unsigned long>(words[0]), static_cast<unsigned long>(words[1]));
  return text;
}

}  // namespace dtensor::fake_cuda
