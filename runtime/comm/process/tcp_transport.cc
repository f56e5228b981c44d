#include "dtensor/runtime/comm/process/tcp_transport.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/admission.h"

namespace dtensor {

TcpTransport::TcpTransport(std::vector<Socket> peers, size_t least_row_bytes)
    : least_row_bytes_(least_row_bytes) {
  for (Socket& socket : peers) {
    links_.push_back(socket.is_open() ? std::make_unique<TcpLink>(std::move(socket)) : nullptr);
  }
}

TcpTransport::~TcpTransport() = default;

namespace {

// Connects every pair of ranks, as far as possible: peers[r] is open if rank r is connected.
absl::Status ConnectPeers(int rank, const JobKey& key, Socket listener,
                          const std::vector<HostPort>& addresses, NetClock::time_point deadline,
                          const GivenUp& given_up, std::vector<Socket>& peers) {
  const int size = static_cast<int>(addresses.size());
  peers.resize(size);
  for (int peer = 0; peer < rank; ++peer) {
    DT_ASSIGN_OR_RETURN(peers[peer],
                        ConnectAs(LinkKind::kData, rank, key, addresses[peer], deadline, given_up));
  }
  const auto is_awaited = [&](int peer) { return peer > rank && !peers[peer].is_open(); };
  Admission door(std::move(listener), LinkKind::kData, key, is_awaited);
  for (int missing = size - 1 - rank; missing > 0;) {
    constexpr std::chrono::milliseconds kSlice(100);
    DT_ASSIGN_OR_RETURN(std::optional<Admitted> guest,
                        door.Next(std::min(deadline, NetClock::now() + kSlice)));
    if (guest) {
      peers[guest->rank] = std::move(guest->socket);
      --missing;
      continue;
    }
    if (given_up) DT_RETURN_IF_ERROR(given_up());
    if (NetClock::now() < deadline) continue;
    std::vector<int> absent;
    for (int peer = rank + 1; peer < size; ++peer) {
      if (!peers[peer].is_open()) absent.push_back(peer);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("ranks ", absl::StrJoin(absent, ", "), " did not connect to rank ", rank,
                     " at ", addresses[rank].ToString(), "; can their hosts reach that address?"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Connect(
    int rank, const JobKey& key, Socket listener, const std::vector<HostPort>& addresses,
    NetClock::time_point deadline, const GivenUp& given_up,
    absl::FunctionRef<void(const absl::Status&)> failed) {
  std::vector<Socket> peers;
  absl::Status status =
      ConnectPeers(rank, key, std::move(listener), addresses, deadline, given_up, peers);
  if (status.ok()) return std::make_unique<TcpTransport>(std::move(peers));
  failed(status);
  return status;
}

void TcpTransport::SendNote(int peer, uint64_t channel, absl::string_view note) {
  SendNoteAhead(peer, channel, note);
  if (!cancelled_) link(peer).Send();
}

void TcpTransport::SendNoteAhead(int peer, uint64_t channel, absl::string_view note) {
  if (cancelled_) return;
  DT_CHECK(note.size() <= kMostNoteBytes);
  link(peer).PushNote(channel, note);
}

std::optional<std::string> TcpTransport::TakeNote(int peer, uint64_t channel) {
  return link(peer).TakeNote(channel);
}

void TcpTransport::SendMessage(int peer, uint64_t channel, SentRows bytes, bool unasked,
                               int& pending) {
  if (cancelled_) return;
  link(peer).PushMessage(channel, std::move(bytes), unasked, pending);
  link(peer).Send();
}

void TcpTransport::Send(int peer, uint64_t channel, SentRows bytes, int& pending) {
  SendMessage(peer, channel, std::move(bytes), /*unasked=*/false, pending);
}

void TcpTransport::SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) {
  DT_CHECK(bytes.bytes() <= kMostUnaskedBytes);
  SendMessage(peer, channel, std::move(bytes), /*unasked=*/true, pending);
}

void TcpTransport::Receive(int peer, uint64_t channel, TakenRows into, int& pending) {
  if (!cancelled_) link(peer).Receive(channel, std::move(into), pending);
}

void TcpTransport::Progress(std::chrono::microseconds longest) {
  if (cancelled_) return;
  std::vector<pollfd> waits;
  std::vector<TcpLink*> of;
  for (const auto& known : links_) {
    if (known == nullptr || !known->lost().ok()) continue;
    longest = std::min(longest, known->MakeWay());
    const short events =
        (known->wants_to_read() ? POLLIN : 0) | (known->wants_to_send() ? POLLOUT : 0);
    if (events == 0) continue;  // once the peer is gone, poll would always return immediately
    waits.push_back({known->fd(), events, 0});
    of.push_back(known.get());
  }
  const timespec time = {static_cast<time_t>(longest.count() / 1000000),
                         static_cast<long>(longest.count() % 1000000 * 1000)};
  if (ppoll(waits.data(), waits.size(), &time, nullptr) <= 0) return;
  for (size_t i = 0; i < waits.size(); ++i) {
    if ((waits[i].revents & POLLOUT) != 0) of[i]->Send();
    // An error is found by reading; if nothing may be read, by sending.
    if ((waits[i].revents & ~POLLOUT) != 0) of[i]->Read();
  }
}

uint64_t TcpTransport::moved(int peer) const { return links_[peer]->moved(); }

absl::Status TcpTransport::lost(int peer) const { return links_[peer]->lost(); }

void TcpTransport::Leave() {
  if (cancelled_) return;
  for (const auto& known : links_) {
    if (known == nullptr) continue;
    known->PushLeave();
    known->Send();
  }
}

bool TcpTransport::has_left(int peer) const { return links_[peer]->left(); }

bool TcpTransport::is_sending() const {
  for (const auto& known : links_) {
    if (known != nullptr && known->wants_to_send()) return true;
  }
  return false;
}

void TcpTransport::Cancel() {
  cancelled_ = true;
  for (const auto& known : links_) {
    if (known != nullptr) known->Cancel();
  }
}

}  // namespace dtensor
