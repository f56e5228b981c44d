// FramedLink: messages over a socket. A frame is its length (4 bytes), a type (1 byte), and a body.
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

// The bytes of a frame.
std::string EncodeFrame(uint8_t type, absl::string_view body);

// Extracts frames from a stream of bytes, however the stream is split.
class FrameReader {
 public:
  explicit FrameReader(size_t most) : most_(most) {}
  void Add(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // The next complete frame, or none yet. Errors: kInvalidArgument for a body of more than `most`
  // bytes; the stream cannot be used after that.
  absl::StatusOr<std::optional<Frame>> Next();
  // Whether as many bytes were added as the largest frame has: Next then returns one, or an error.
  bool is_full() const;

 private:
  const size_t most_;
  std::string bytes_;
  size_t begin_ = 0;
};

// For one thread.
class FramedLink {
 public:
  FramedLink(Socket socket, size_t most_bytes_of_a_body)
      : socket_(std::move(socket)), reader_(most_bytes_of_a_body) {}

  const Socket& socket() const { return socket_; }
  bool is_open() const { return socket_.is_open(); }
  void Close() { socket_.Close(); }

  // Queue appends a frame to what Flush sends; Flush sends as much as fits now. Errors: the
  // socket's.
  void Queue(uint8_t type, absl::string_view body) { out_ += EncodeFrame(type, body); }
  absl::Status Flush();
  bool has_queued() const { return sent_ < out_.size(); }

  // Takes in what came, up to the memory for the largest frame; if there is more, the socket stays
  // readable. Errors: the socket's.
  absl::Status Receive();
  absl::StatusOr<std::optional<Frame>> Next() { return reader_.Next(); }

  // Waits for the next frame. Errors: kDeadlineExceeded; the socket's; FrameReader's.
  absl::StatusOr<Frame> Await(NetClock::time_point deadline);

 private:
  Socket socket_;
  FrameReader reader_;
  std::string out_;
  size_t sent_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_FRAMED_LINK_H_
