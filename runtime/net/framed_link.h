// FramedLink: messages over a socket. A frame is its length in 4 bytes, a type in one, and a body.
#ifndef DTENSOR_RUNTIME_NET_FRAMED_LINK_H_
#define DTENSOR_RUNTIME_NET_FRAMED_LINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/net/socket.h"

namespace DTENSOR_EXPORT dtensor {

struct Frame {
  uint8_t type = 0;
  std::string body;
};

// The text of a frame.
std::string EncodeFrame(uint8_t type, absl::string_view body);

// Frames out of a stream of bytes, however it is cut.
class FrameReader {
 public:
  explicit FrameReader(size_t most) : most_(most) {}
  void Add(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // The next whole one, or none yet. Errors: kInvalidArgument for a body of more than `most` bytes;
  // then the stream is of no use any more.
  absl::StatusOr<std::optional<Frame>> Next();
  // What was added is as much as the largest frame: Next has one, or an error.
  bool is_full() const;

 private:
  const size_t most_;
  std::string bytes_;
  size_t begin_ = 0;
};

// Of one thread.
class FramedLink {
 public:
  FramedLink(Socket socket, size_t most_bytes_of_a_body)
      : socket_(std::move(socket)), reader_(most_bytes_of_a_body) {}

  const Socket& socket() const { return socket_; }
  bool is_open() const { return socket_.is_open(); }
  void Close() { socket_.Close(); }

  // To be sent by Flush, which sends as much as fits now. Errors: the socket's.
  void Queue(uint8_t type, absl::string_view body) { out_ += EncodeFrame(type, body); }
  absl::Status Flush();
  bool has_queued() const { return sent_ < out_.size(); }

  // Takes in what came, as far as memory for the largest frame: the socket can be read still where
  // there is more. Errors: the socket's.
  absl::Status Receive();
  absl::StatusOr<std::optional<Frame>> Next() { return reader_.Next(); }

  // The next frame, waiting for it. Errors: kDeadlineExceeded; the socket's; FrameReader's.
  absl::StatusOr<Frame> Await(NetClock::time_point deadline);

 private:
  Socket socket_;
  FrameReader reader_;
  std::string out_;
  size_t sent_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_FRAMED_LINK_H_
