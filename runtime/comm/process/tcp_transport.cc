#include "dtensor/runtime/comm/process/tcp_transport.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/admission.h"
#include "dtensor/runtime/net/wire.h"

namespace dtensor {
namespace {

enum class FrameKind : uint8_t { kNote = 1, kMessage, kLeave, kUnasked };
bool IsMessage(FrameKind kind) {
  return kind == FrameKind::kMessage || kind == FrameKind::kUnasked;
}

constexpr size_t kHeaderBytes = 17;
constexpr size_t kMostAside = 64 << 20;  // bytes of a peer's messages that nobody gave memory for

std::string EncodeHeader(size_t size, FrameKind kind, uint64_t channel) {
  WireWriter header;
  header.U64(size);
  header.U8(static_cast<uint8_t>(kind));
  header.U64(channel);
  return header.bytes();
}

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

struct TcpTransport::Link {
  // Memory that a message is read into, or sent from.
  struct Slot {
    absl::Span<std::byte> into;
    int* pending;
  };
  struct Piece {
    std::string text;                   // a header, a note
    absl::Span<const std::byte> bytes;  // or a message's
    int* pending = nullptr;
    absl::Span<const std::byte> all() const { return text.empty() ? bytes : BytesOf(text); }
  };

  explicit Link(Socket socket_in) : socket(std::move(socket_in)) {}

  bool wants_to_send() const { return lost.ok() && !deaf && !out.empty(); }
  bool wants_to_read() const { return lost.ok() && !is_held_up(); }
  // By a message that no memory waits for.
  bool is_held_up() const { return in_body && IsMessage(kind) && !is_aside && !HasSlot(); }
  bool HasSlot() const { return slots.find(channel) != slots.end(); }

  void Send() {
    while (wants_to_send()) {
      Piece& piece = out.front();
      // A header goes with what it is for: it would wake the peer for nothing.
      const auto sent = socket.SendSome(piece.all().subspan(done), /*more_follows=*/out.size() > 1);
      // What the peer said before is there to be read; reading meets the end too.
      if (!sent.ok()) {
        deaf = true;
        Read();
        return;
      }
      done += *sent;
      if (piece.pending != nullptr) moved += *sent;
      if (done < piece.all().size()) return;
      if (piece.pending != nullptr) --*piece.pending;
      out.pop_front();
      done = 0;
    }
  }

  // Until nothing comes, or nothing may be read. Whether anything came.
  bool Read() {
    bool any = false;
    while (wants_to_read()) {
      const absl::Span<std::byte> into = Into();
      size_t got = 0;
      if (!into.empty()) {
        const auto some = socket.ReceiveSome(into);
        if (!some.ok()) {
          Lose(some.status());
          return true;
        }
        got = *some;
        if (got == 0) return any;
      }
      any = true;
      filled += got;
      if (in_body && IsMessage(kind)) moved += got;
      if (got == into.size()) EndOfPart();
    }
    return any;
  }

  // Where the rest of the header, the note or the message goes.
  absl::Span<std::byte> Into() {
    if (!in_body) {
      return absl::MakeSpan(reinterpret_cast<std::byte*>(header), kHeaderBytes).subspan(filled);
    }
    if (kind == FrameKind::kNote || is_aside) {
      return absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()).subspan(filled);
    }
    return slots[channel].front().into.subspan(filled);
  }

  void EndOfPart() {
    filled = 0;
    if (!in_body) return ReadHeader();
    in_body = false;
    if (kind == FrameKind::kNote) {
      notes[channel].push_back(std::move(text));
    } else if (is_aside && !HasSlot()) {
      aside_bytes += text.size();
      aside[channel].push_back(std::move(text));
    } else {
      const auto slot = slots.find(channel);
      const Slot& filled_one = slot->second.front();
      if (is_aside) absl::c_copy(BytesOf(text), filled_one.into.begin());
      --*filled_one.pending;
      slot->second.pop_front();
      if (slot->second.empty()) slots.erase(slot);
    }
    is_aside = false;
  }

  // Reads a message that is in the way aside, at the second call that finds it there. Whether this
  // is the first.
  bool MakeWay() {
    const bool may_go_aside =
        is_held_up() && kind == FrameKind::kUnasked && aside_bytes + size <= kMostAside;
    const bool again = std::exchange(was_held_up, may_go_aside);
    if (!may_go_aside || !again) return may_go_aside;
    is_aside = true;
    was_held_up = false;
    text.assign(size, '\0');
    return false;
  }

  // The oldest message of the channel that was read aside, into memory that is given now.
  void TakeAside(uint64_t from, const Slot& slot) {
    const auto known = aside.find(from);
    const std::string message = std::move(known->second.front());
    known->second.pop_front();
    if (known->second.empty()) aside.erase(known);
    aside_bytes -= message.size();
    if (!CheckSize(slot, message.size())) return;
    absl::c_copy(BytesOf(message), slot.into.begin());
    --*slot.pending;
  }

  void ReadHeader() {
    WireReader in({header, kHeaderBytes});
    size = in.U64();
    kind = static_cast<FrameKind>(in.U8());
    channel = in.U64();
    if (kind == FrameKind::kLeave) {
      left = true;
    } else if (kind == FrameKind::kNote && size <= kMostNoteBytes) {
      text.assign(size, '\0');
      in_body = true;
    } else if (kind == FrameKind::kMessage ||
               (kind == FrameKind::kUnasked && size <= kMostUnaskedBytes)) {
      in_body = true;
      CheckSlot();
    } else {
      Lose(InvalidArgument({"it sent what no rank sends"}));
    }
  }

  void CheckSlot() {
    if (!in_body || !IsMessage(kind) || !HasSlot()) return;
    CheckSize(slots[channel].front(), size);
  }
  bool CheckSize(const Slot& slot, uint64_t came) {
    if (came == slot.into.size()) return true;
    Lose(InvalidArgument({"it sent a message of ", absl::StrCat(came), " bytes, where ",
                          absl::StrCat(slot.into.size()), " are expected"}));
    return false;
  }

  void Lose(const absl::Status& why) {
    lost = why;
    socket.Close();
  }

  Socket socket;
  absl::Status lost;
  bool left = false;
  bool deaf = false;  // the peer takes nothing more
  std::deque<Piece> out;
  size_t done = 0;     // of the first piece
  uint64_t moved = 0;  // of messages, bytes
  // What is being read.
  char header[kHeaderBytes];
  size_t filled = 0;
  bool in_body = false;
  uint64_t size = 0, channel = 0;
  FrameKind kind = FrameKind::kNote;
  std::string text;       // a note, or a message that is read aside
  bool is_aside = false;  // what is being read
  bool was_held_up = false;
  // Of the channels that have some.
  std::map<uint64_t, std::deque<Slot>> slots;
  std::map<uint64_t, std::deque<std::string>> notes;
  std::map<uint64_t, std::deque<std::string>> aside;  // messages; then there are no slots
  size_t aside_bytes = 0;
};

TcpTransport::TcpTransport(std::vector<Socket> peers) {
  for (Socket& socket : peers) {
    links_.push_back(socket.is_open() ? std::make_unique<Link>(std::move(socket)) : nullptr);
  }
}

TcpTransport::~TcpTransport() = default;

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Connect(
    int rank, const JobKey& key, Socket listener, const std::vector<HostPort>& addresses,
    NetClock::time_point deadline, const GivenUp& given_up) {
  const int size = static_cast<int>(addresses.size());
  std::vector<Socket> peers(size);
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
  return std::make_unique<TcpTransport>(std::move(peers));
}

void TcpTransport::SendNote(int peer, uint64_t channel, absl::string_view note) {
  if (cancelled_) return;
  DT_CHECK(note.size() <= kMostNoteBytes);
  Link& to = link(peer);
  to.out.push_back({absl::StrCat(EncodeHeader(note.size(), FrameKind::kNote, channel), note)});
  to.Send();
}

std::optional<std::string> TcpTransport::TakeNote(int peer, uint64_t channel) {
  auto& notes = link(peer).notes;
  const auto it = notes.find(channel);
  if (it == notes.end()) return std::nullopt;
  std::string note = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) notes.erase(it);
  return note;
}

void TcpTransport::Send(int peer, uint64_t channel, absl::Span<const std::byte> bytes,
                        int& pending) {
  SendMessage(peer, channel, bytes, /*unasked=*/false, pending);
}

void TcpTransport::SendUnasked(int peer, uint64_t channel, absl::Span<const std::byte> bytes,
                               int& pending) {
  DT_CHECK(bytes.size() <= kMostUnaskedBytes);
  SendMessage(peer, channel, bytes, /*unasked=*/true, pending);
}

void TcpTransport::SendMessage(int peer, uint64_t channel, absl::Span<const std::byte> bytes,
                               bool unasked, int& pending) {
  if (cancelled_) return;
  Link& to = link(peer);
  const FrameKind kind = unasked ? FrameKind::kUnasked : FrameKind::kMessage;
  to.out.push_back({EncodeHeader(bytes.size(), kind, channel)});
  if (!bytes.empty()) to.out.push_back({"", bytes, &pending});
  pending += bytes.empty() ? 0 : 1;
  to.Send();
}

void TcpTransport::Receive(int peer, uint64_t channel, absl::Span<std::byte> into, int& pending) {
  if (cancelled_) return;
  Link& from = link(peer);
  ++pending;
  if (from.aside.find(channel) != from.aside.end())
    return from.TakeAside(channel, {into, &pending});
  from.slots[channel].push_back({into, &pending});
  if (from.channel != channel) return;
  from.CheckSlot();
  // A message without bytes, whose header has come: nothing more will say so.
  if (from.in_body && from.size == 0 && from.wants_to_read()) from.Read();
}

void TcpTransport::Progress(std::chrono::microseconds longest) {
  if (cancelled_) return;
  std::vector<pollfd> waits;
  std::vector<Link*> of;
  bool comes_again = false;
  for (const auto& known : links_) {
    if (known == nullptr || !known->lost.ok()) continue;
    comes_again |= known->MakeWay();
    const short events =
        (known->wants_to_read() ? POLLIN : 0) | (known->wants_to_send() ? POLLOUT : 0);
    if (events == 0) continue;  // poll would return at once, again and again, once the peer is gone
    waits.push_back({known->socket.fd(), events, 0});
    of.push_back(known.get());
  }
  if (comes_again) longest = std::chrono::microseconds(0);
  const timespec time = {static_cast<time_t>(longest.count() / 1000000),
                         static_cast<long>(longest.count() % 1000000 * 1000)};
  if (ppoll(waits.data(), waits.size(), &time, nullptr) <= 0) return;
  for (size_t i = 0; i < waits.size(); ++i) {
    if ((waits[i].revents & POLLOUT) != 0) of[i]->Send();
    // An error is found by reading; while nothing may be read, by sending.
    if ((waits[i].revents & ~POLLOUT) != 0) of[i]->Read();
  }
}

uint64_t TcpTransport::moved(int peer) const { return links_[peer]->moved; }

absl::Status TcpTransport::lost(int peer) const { return links_[peer]->lost; }

void TcpTransport::Leave() {
  if (cancelled_) return;
  for (const auto& known : links_) {
    if (known == nullptr) continue;
    known->out.push_back({EncodeHeader(0, FrameKind::kLeave, 0)});
    known->Send();
  }
}

bool TcpTransport::has_left(int peer) const { return links_[peer]->left; }

bool TcpTransport::is_sending() const {
  for (const auto& known : links_) {
    if (known != nullptr && known->wants_to_send()) return true;
  }
  return false;
}

void TcpTransport::Cancel() {
  cancelled_ = true;
  for (const auto& known : links_) {
    if (known == nullptr) continue;
    known->out.clear();
    known->slots.clear();
    known->aside.clear();
  }
}

}  // namespace dtensor
