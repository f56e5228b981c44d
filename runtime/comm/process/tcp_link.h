// TcpLink: one rank's end of a TcpTransport's connection to one peer, with the queues of both
// directions. The frames are described in tcp_transport.h.
//
// One system call sends all headers and messages that are waiting, whether a message is one row of
// bytes or many. Likewise, one call reads a message and the header behind it.
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

  // These queue what Send() is to send. A message's memory must stay in place until `pending`,
  // which counts it, falls by one.
  void PushNote(uint64_t channel, absl::string_view note);
  void PushMessage(uint64_t channel, SentRows bytes, bool unasked, int& pending);
  void PushLeave();
  std::optional<std::string> TakeNote(uint64_t channel);
  void Receive(uint64_t channel, TakenRows into, int& pending);

  int fd() const { return socket_.fd(); }
  bool wants_to_send() const { return lost_.ok() && !deaf_ && !out_.empty(); }
  bool wants_to_read() const { return lost_.ok() && !is_held_up(); }
  // Send as much as the system takes, and read as much as has come.
  void Send();
  void Read();
  // If an unasked message is in the way (no memory was given for it), reads it into a buffer
  // ("aside"): at the second call that finds it there, or somewhat later if much has been read
  // aside already. Returns the longest time after which this must be called again.
  std::chrono::microseconds MakeWay();

  const absl::Status& lost() const { return lost_; }
  bool left() const { return left_; }
  uint64_t moved() const { return moved_; }  // bytes of messages, both ways
  // Forgets what is not done. Only lost(), left() and moved() may be called afterwards.
  void Cancel();

 private:
  enum class FrameKind : uint8_t { kNote = 1, kMessage, kLeave, kUnasked };
  static constexpr size_t kHeaderBytes = 17;

  // Memory into which messages are read.
  struct Slot {
    TakenRows into;  // the part that is not filled yet
    int* pending;
    size_t size;
  };
  struct Piece {
    std::string text;  // a header or a note
    SentRows bytes;    // or the rest of a message
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

  // Whether reading is blocked by a message for which no memory was given.
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
  size_t text_sent_ = 0;       // of the first piece
  uint64_t moved_ = 0;         // bytes of messages
  std::vector<iovec> places_;  // of one system call
  // What is being read.
  char header_[kHeaderBytes];
  TakenRows rest_;  // the unfilled part of header_ or text_
  bool in_body_ = false;
  uint64_t size_ = 0, channel_ = 0;
  FrameKind kind_ = FrameKind::kNote;
  std::string text_;       // a note, or a message that is read aside
  bool is_aside_ = false;  // what is being read
  bool was_held_up_ = false;
  NetClock::time_point held_up_since_;
  // Channels without entries are absent.
  std::map<uint64_t, std::deque<Slot>> slots_;
  std::map<uint64_t, std::deque<std::string>> notes_;
  std::map<uint64_t, std::deque<std::string>> aside_;  // messages; such a channel has no slots
  size_t aside_bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_TCP_LINK_H_
