#include "dtensor/runtime/comm/process/tcp_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

// For a peer's messages for which no memory was given. Beyond this many bytes each further one is
// taken in later, the later the more there are, so that a peer that is ahead is slowed down. It is
// taken in eventually, since a note may be behind it.
constexpr size_t kMuchAside = 64 << 20;
constexpr double kPatience = 0.01;  // seconds, for a message of kMostUnaskedBytes at that size

NetClock::duration PatienceFor(uint64_t size, size_t aside) {
  if (aside + size <= kMuchAside) return {};
  const double messages = static_cast<double>(size) / MessageTransport::kMostUnaskedBytes;
  const std::chrono::duration<double> seconds(kPatience * messages * static_cast<double>(aside) /
                                              kMuchAside);
  return std::chrono::duration_cast<NetClock::duration>(seconds);
}

iovec PlaceOf(absl::Span<const std::byte> row) {
  // Memory that is sent is only read.
  return {const_cast<std::byte*>(row.data()), row.size()};
}

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

TcpLink::TcpLink(Socket socket) : socket_(std::move(socket)) { Expect(header_, kHeaderBytes); }

void TcpLink::Cancel() {
  out_.clear();
  slots_.clear();
  aside_.clear();
}

void TcpLink::Lose(const absl::Status& why) {
  lost_ = why;
  socket_.Close();
}

// --- Sending.

std::string TcpLink::Header(size_t size, FrameKind kind, uint64_t channel) {
  WireWriter header;
  header.U64(size);
  header.U8(static_cast<uint8_t>(kind));
  header.U64(channel);
  return header.bytes();
}

void TcpLink::PushText(std::string text) { out_.push_back({.text = std::move(text)}); }

void TcpLink::PushNote(uint64_t channel, absl::string_view note) {
  PushText(absl::StrCat(Header(note.size(), FrameKind::kNote, channel), note));
}

void TcpLink::PushMessage(uint64_t channel, SentRows bytes, bool unasked, int& pending) {
  PushText(Header(bytes.bytes(), unasked ? FrameKind::kUnasked : FrameKind::kMessage, channel));
  if (!bytes.empty()) {
    ++pending;
    out_.push_back({.bytes = std::move(bytes), .pending = &pending});
  }
}

void TcpLink::PushLeave() { PushText(Header(0, FrameKind::kLeave, 0)); }

void TcpLink::Send() {
  while (wants_to_send()) {
    const Offer offer = PlacesToSend();
    const auto sent = socket_.SendSome(places_, /*more_follows=*/!offer.is_all);
    // What the peer sent before can still be read, and reading finds the end too.
    if (!sent.ok()) {
      deaf_ = true;
      return Read();
    }
    HasSent(*sent);
    if (*sent < offer.bytes) return;
  }
}

// As much of the queue as one call takes.
TcpLink::Offer TcpLink::PlacesToSend() {
  places_.clear();
  size_t bytes = 0;
  for (const Piece& piece : out_) {
    const absl::Span<const std::byte> text =
        BytesOf(piece.text).subspan(&piece == &out_.front() ? text_sent_ : 0);
    const absl::Span<const SentRows::Row> rows =
        piece.text.empty() ? piece.bytes.rows() : absl::MakeConstSpan(&text, 1);
    for (const SentRows::Row row : rows) {
      if (places_.size() == Socket::kMostPlaces) return {bytes, false};
      places_.push_back(PlaceOf(row));
      bytes += row.size();
    }
  }
  return {bytes, true};
}

void TcpLink::HasSent(size_t bytes) {
  while (bytes > 0) {
    Piece& piece = out_.front();
    const bool is_text = piece.pending == nullptr;
    const size_t left = is_text ? piece.text.size() - text_sent_ : piece.bytes.bytes();
    const size_t some = std::min(bytes, left);
    bytes -= some;
    if (is_text) {
      text_sent_ += some;
    } else {
      piece.bytes.RemovePrefix(some);
      moved_ += some;
    }
    if (some < left) return;
    if (!is_text) --*piece.pending;
    out_.pop_front();
    text_sent_ = 0;
  }
}

// --- Reading.

// Until nothing comes, or nothing may be read.
void TcpLink::Read() {
  while (wants_to_read()) {
    const size_t of_part = PlacesOfPart();
    size_t wanted = of_part;
    // After a body, a header may follow.
    if (in_body_ && of_part == part().bytes()) {
      places_.push_back({header_, kHeaderBytes});
      wanted += kHeaderBytes;
    }
    if (of_part == 0) {
      EndOfPart();
      continue;
    }
    const auto got = socket_.ReceiveSome(places_);
    if (!got.ok()) return Lose(got.status());
    HasRead(std::min(*got, of_part));
    if (*got > of_part) HasRead(*got - of_part);
    if (*got < wanted) return;
  }
}

// As much of what is being read as one call takes, including a header behind it. Returns bytes.
size_t TcpLink::PlacesOfPart() {
  places_.clear();
  size_t bytes = 0;
  for (const TakenRows::Row row : part().rows()) {
    if (places_.size() + 1 == Socket::kMostPlaces) break;
    places_.push_back(PlaceOf(row));
    bytes += row.size();
  }
  return bytes;
}

void TcpLink::HasRead(size_t bytes) {
  if (bytes == 0) return;
  part().RemovePrefix(bytes);
  if (in_body_ && IsMessage(kind_)) moved_ += bytes;
  if (part().empty()) EndOfPart();
}

// Where the rest of the header, the note or the message is written.
TakenRows& TcpLink::part() {
  const bool is_placed = in_body_ && IsMessage(kind_) && !is_aside_;
  return is_placed ? slots_[channel_].front().into : rest_;
}

void TcpLink::Expect(char* memory, size_t bytes) {
  rest_ = TakenRows(absl::MakeSpan(reinterpret_cast<std::byte*>(memory), bytes));
}

void TcpLink::EndOfPart() {
  if (!in_body_) return ReadHeader();
  in_body_ = false;
  Expect(header_, kHeaderBytes);
  if (kind_ == FrameKind::kNote) {
    notes_[channel_].push_back(std::move(text_));
  } else if (is_aside_ && !HasSlot()) {
    aside_bytes_ += text_.size();
    aside_[channel_].push_back(std::move(text_));
  } else {
    const auto slot = slots_.find(channel_);
    const Slot& filled = slot->second.front();
    if (is_aside_) CopyInto(filled.into, BytesOf(text_));
    --*filled.pending;
    slot->second.pop_front();
    if (slot->second.empty()) slots_.erase(slot);
  }
  is_aside_ = false;
}

void TcpLink::ReadHeader() {
  WireReader in({header_, kHeaderBytes});
  Expect(header_, kHeaderBytes);
  size_ = in.U64();
  kind_ = static_cast<FrameKind>(in.U8());
  channel_ = in.U64();
  if (kind_ == FrameKind::kLeave) {
    left_ = true;
  } else if (kind_ == FrameKind::kNote && size_ <= MessageTransport::kMostNoteBytes) {
    text_.assign(size_, '\0');
    Expect(text_.data(), text_.size());
    in_body_ = true;
  } else if (kind_ == FrameKind::kMessage ||
             (kind_ == FrameKind::kUnasked && size_ <= MessageTransport::kMostUnaskedBytes)) {
    in_body_ = true;
    CheckSlot();
  } else {
    Lose(InvalidArgument({"it sent what no rank sends"}));
  }
}

std::optional<std::string> TcpLink::TakeNote(uint64_t channel) {
  const auto it = notes_.find(channel);
  if (it == notes_.end()) return std::nullopt;
  std::string note = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) notes_.erase(it);
  return note;
}

// --- Memory for messages, and messages without memory.

void TcpLink::Receive(uint64_t channel, TakenRows into, int& pending) {
  ++pending;
  const size_t size = into.bytes();
  const Slot slot = {std::move(into), &pending, size};
  if (aside_.find(channel) != aside_.end()) return TakeAside(channel, slot);
  slots_[channel].push_back(slot);
  if (channel_ != channel) return;
  CheckSlot();
  // A message without bytes whose header has come: no later event would complete it.
  if (in_body_ && size_ == 0 && wants_to_read()) Read();
}

std::chrono::microseconds TcpLink::MakeWay() {
  if (!is_held_up() || kind_ != FrameKind::kUnasked) {
    was_held_up_ = false;
    return std::chrono::microseconds::max();
  }
  const auto now = NetClock::now();
  if (!std::exchange(was_held_up_, true)) {
    held_up_since_ = now;
    return std::chrono::microseconds(0);
  }
  const auto left = held_up_since_ + PatienceFor(size_, aside_bytes_) - now;
  if (left > NetClock::duration(0)) return std::chrono::ceil<std::chrono::microseconds>(left);
  is_aside_ = true;
  was_held_up_ = false;
  text_.assign(size_, '\0');
  Expect(text_.data(), text_.size());
  return std::chrono::microseconds::max();
}

// Copies the channel's oldest message that was read aside into memory that is given now.
void TcpLink::TakeAside(uint64_t channel, const Slot& slot) {
  const auto known = aside_.find(channel);
  const std::string message = std::move(known->second.front());
  known->second.pop_front();
  if (known->second.empty()) aside_.erase(known);
  aside_bytes_ -= message.size();
  if (!CheckSize(slot, message.size())) return;
  CopyInto(slot.into, BytesOf(message));
  --*slot.pending;
}

void TcpLink::CheckSlot() {
  if (!in_body_ || !IsMessage(kind_) || !HasSlot()) return;
  CheckSize(slots_[channel_].front(), size_);
}

bool TcpLink::CheckSize(const Slot& slot, uint64_t came) {
  if (came == slot.size) return true;
  Lose(InvalidArgument({"it sent a message of ", absl::StrCat(came), " bytes, where ",
                        absl::StrCat(slot.size), " are expected"}));
  return false;
}

}  // namespace dtensor
