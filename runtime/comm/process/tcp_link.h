// TcpLink: one rank's end of a TcpTransport's connection to one peer, and what is kept of either
// direction. The frames are in tcp_transport.h.
//
// Headers and messages that wait to be sent go in one call of the system, whether a message is one
// row of bytes or many; so do those of a message that is read, and the header behind it.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_TCP_LINK_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_TCP_LINK_H_

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

class TcpLink {
 public:
  explicit TcpLink(Socket socket);
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  // Queue what Send() is to send. A message's memory stays where it is until `pending`, which
  // counts it, is one less.
  void PushNote(uint64_t channel, absl::string_view note);
  void PushMessage(uint64_t channel, SentRows bytes, bool unasked, int& pending);
  void PushLeave();
  std::optional<std::string> TakeNote(uint64_t channel);
  void Receive(uint64_t channel, TakenRows into, int& pending);

  int fd() const { return socket_.fd(); }
  bool wants_to_send() const { return lost_.ok() && !deaf_ && !out_.empty(); }
  bool wants_to_read() const { return lost_.ok() && !is_held_up(); }
  // What fits, and what came.
  void Send();
  void Read();
  // Reads an unasked message that is in the way aside, at the second call that finds it there, or
  // where there is much aside, somewhat later. Returns how long to wait at most before it is called
  // again.
  std::chrono::microseconds MakeWay();

  const absl::Status& lost() const { return lost_; }
  bool left() const { return left_; }
  uint64_t moved() const { return moved_; }  // bytes of messages, both ways
  // Forgets what is not done. Nothing is called afterwards but lost(), left() and moved().
  void Cancel();

 private:
  enum class FrameKind : uint8_t { kNote = 1, kMessage, kLeave, kUnasked };
  static constexpr size_t kHeaderBytes = 17;

  // Memory that messages are read into.
  struct Slot {
    TakenRows into;  // what is not filled
    int* pending;
    size_t size;
  };
  struct Piece {
    std::string text;  // a header, a note
    SentRows bytes;    // or what is left of a message's
    int* pending = nullptr;
  };

  static bool IsMessage(FrameKind kind) {
    return kind == FrameKind::kMessage || kind == FrameKind::kUnasked;
  }
  static std::string Header(size_t size, FrameKind kind, uint64_t channel);
  void PushText(std::string text);

  struct Offer {
    size_t bytes;
    bool is_all;
  };
  Offer PlacesToSend();
  void HasSent(size_t bytes);
  size_t PlacesOfPart();
  void HasRead(size_t bytes);
  TakenRows& part();
  void Expect(char* memory, size_t bytes);
  void EndOfPart();
  void ReadHeader();

  // By a message that no memory waits for.
  bool is_held_up() const { return in_body_ && IsMessage(kind_) && !is_aside_ && !HasSlot(); }
  bool HasSlot() const { return slots_.find(channel_) != slots_.end(); }
  void TakeAside(uint64_t channel, const Slot& slot);
  void CheckSlot();
  bool CheckSize(const Slot& slot, uint64_t came);
  void Lose(const absl::Status& why);

  Socket socket_;
  absl::Status lost_;
  bool left_ = false;
  bool deaf_ = false;  // the peer takes nothing more
  std::deque<Piece> out_;
  size_t text_sent_ = 0;       // of the first piece's
  uint64_t moved_ = 0;         // of messages, bytes
  std::vector<iovec> places_;  // of one call
  // What is being read.
  char header_[kHeaderBytes];
  TakenRows rest_;  // of a header, or of text_, not filled
  bool in_body_ = false;
  uint64_t size_ = 0, channel_ = 0;
  FrameKind kind_ = FrameKind::kNote;
  std::string text_;       // a note, or a message that is read aside
  bool is_aside_ = false;  // what is being read
  bool was_held_up_ = false;
  NetClock::time_point held_up_since_;
  // Of the channels that have some.
  std::map<uint64_t, std::deque<Slot>> slots_;
  std::map<uint64_t, std::deque<std::string>> notes_;
  std::map<uint64_t, std::deque<std::string>> aside_;  // messages; then there are no slots
  size_t aside_bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_TCP_LINK_H_
