#include "dtensor/runtime/net/framed_link.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

constexpr size_t kHeaderBytes = 5;

}  // namespace

std::string EncodeFrame(uint8_t type, absl::string_view body) {
  WireWriter frame;
  frame.U32(static_cast<uint32_t>(body.size()));
  frame.U8(type);
  frame.Raw(body);
  return frame.bytes();
}

bool FrameReader::is_full() const { return bytes_.size() - begin_ >= kHeaderBytes + most_; }

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  const absl::string_view left = absl::string_view(bytes_).substr(begin_);
  if (left.size() < kHeaderBytes) return std::optional<Frame>();
  WireReader in(left);
  const size_t size = in.U32();
  Frame frame;
  frame.type = in.U8();
  if (size > most_) {
    return InvalidArgument({"a message of ", absl::StrCat(size), " bytes, where ",
                            absl::StrCat(most_), " are the most"});
  }
  if (left.size() < kHeaderBytes + size) return std::optional<Frame>();
  frame.body = std::string(in.Raw(size));
  begin_ += kHeaderBytes + size;
  if (begin_ == bytes_.size() || begin_ > (1 << 16)) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

absl::Status FramedLink::Flush() {
  while (has_queued()) {
    const absl::string_view left = absl::string_view(out_).substr(sent_);
    DT_ASSIGN_OR_RETURN(
        const size_t sent,
        socket_.SendSome({reinterpret_cast<const std::byte*>(left.data()), left.size()}));
    if (sent == 0) return absl::OkStatus();
    sent_ += sent;
  }
  out_.clear();
  sent_ = 0;
  return absl::OkStatus();
}

absl::Status FramedLink::Receive() {
  std::array<std::byte, 4096> buffer;
  while (!reader_.is_full()) {
    DT_ASSIGN_OR_RETURN(const size_t got, socket_.ReceiveSome(absl::MakeSpan(buffer)));
    reader_.Add({reinterpret_cast<const char*>(buffer.data()), got});
    if (got < buffer.size()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Frame> FramedLink::Await(NetClock::time_point deadline) {
  while (true) {
    DT_ASSIGN_OR_RETURN(std::optional<Frame> frame, Next());
    if (frame) return *std::move(frame);
    if (!AwaitReadable(socket_, deadline)) {
      return absl::DeadlineExceededError("the peer says nothing");
    }
    const absl::Status received = Receive();
    if (received.ok()) continue;
    DT_ASSIGN_OR_RETURN(frame, Next());  // a frame may have arrived before the end
    if (!frame) return received;
    return *std::move(frame);
  }
}

}  // namespace dtensor
